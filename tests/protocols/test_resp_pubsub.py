"""Subscriptions, messages, and the commands that a subscriber may send."""

import pytest
from resp_conversation import OK, SHA_C, Resp, array, bulk

from millrace.protocols.connection import Reply
from millrace.protocols.qless import pubsub
from millrace.protocols.qless.pubsub import MAX_CHANNEL_NAME, MAX_SUBSCRIPTIONS
from millrace.server.turns import refused_replies


def confirmation(word: str, name: str | None, count: int, sign: bytes = b"*") -> bytes:
    shown = b"$-1\r\n" if name is None else bulk(name)
    shown = b"_\r\n" if name is None and sign == b">" else shown
    return sign + b"3\r\n" + bulk(word) + shown + b":%d\r\n" % count


# Subscribing


def test_each_subscription_is_confirmed_with_the_count():
    with Resp() as talk:
        client = talk.connect().asks("SUBSCRIBE", "a", "b", "a")
        client.hears(
            confirmation("subscribe", "a", 1),
            confirmation("subscribe", "b", 2),
            confirmation("subscribe", "a", 2),
        )
        client.asks("PSUBSCRIBE", "x*").hears(confirmation("psubscribe", "x*", 3))
        client.asks("UNSUBSCRIBE", "nope", "a").hears(
            confirmation("unsubscribe", "nope", 3), confirmation("unsubscribe", "a", 2)
        )
        client.asks("UNSUBSCRIBE").hears(confirmation("unsubscribe", "b", 1))
        client.asks("PUNSUBSCRIBE").hears(confirmation("punsubscribe", "x*", 0))
        client.asks("UNSUBSCRIBE").hears(confirmation("unsubscribe", None, 0))
        client.asks("PUNSUBSCRIBE").hears(confirmation("punsubscribe", None, 0))
        client.asks("PING").hears(b"+PONG\r\n")


def test_pushes_in_resp3():
    with Resp() as talk:
        client = talk.connect().speaks_resp3()
        client.asks("SUBSCRIBE", "a").hears(confirmation("subscribe", "a", 1, b">"))
        client.asks("PSUBSCRIBE", "*").hears(confirmation("psubscribe", "*", 2, b">"))
        client.asks("PING").hears(b"+PONG\r\n")
        client.asks("PUBLISH", "a", "hi").hears(
            b">3\r\n", bulk("message"), bulk("a"), bulk("hi"),
            b">4\r\n", bulk("pmessage"), bulk("*"), bulk("a"), bulk("hi"),
            b":2\r\n",
        )  # fmt: skip
        client.asks("UNSUBSCRIBE", "x").hears(confirmation("unsubscribe", "x", 2, b">"))
        client.asks("UNSUBSCRIBE").hears(confirmation("unsubscribe", "a", 1, b">"))
        client.asks("UNSUBSCRIBE").hears(confirmation("unsubscribe", None, 1, b">"))


def test_the_commands_of_a_subscriber_in_resp2():
    with Resp() as talk:
        client = talk.connect().asks("SUBSCRIBE", "a").hears(confirmation("subscribe", "a", 1))
        for name in ("echo", "multi", "evalsha", "hello", "publish", "auth", "QLESS.PUT"):
            client.asks(name, *[0] * (2 if name in {"evalsha", "publish"} else name != "multi"))
            client.hears_resp_error(
                f"ERR Can't execute '{name.lower()}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING "
                "/ QUIT / RESET are allowed in this context"
            )
        client.asks("foo").hears_resp_error("ERR unknown command 'foo', with args beginning with: ")
        client.asks("PING").hears(array(bulk("pong"), bulk("")))
        client.asks("PING", "hi").hears(array(bulk("pong"), bulk("hi")))
        client.asks("RESET").hears(b"+RESET\r\n").asks("ECHO", "x").hears(bulk("x"))
        client.asks("PSUBSCRIBE", "a").hears(confirmation("psubscribe", "a", 1))
        client.asks("QUIT").hears(OK).hears_the_end()
        talk.connect().asks("PUBLISH", "a", "x").hears(b":0\r\n")


def test_subscriptions_are_bounded():
    with Resp() as talk:
        client = talk.connect()
        many = [f"c{n}" for n in range(MAX_SUBSCRIPTIONS)]
        client.asks("SUBSCRIBE", *many)
        client.hears(*(confirmation("subscribe", name, n + 1) for n, name in enumerate(many)))
        client.asks("SUBSCRIBE", "more").hears_resp_error(
            "ERR a client may have at most 1000 subscriptions"
        )
        long = "x" * (MAX_CHANNEL_NAME + 1)
        other = talk.connect().asks("PSUBSCRIBE", long)
        other.hears_resp_error("ERR the name of a channel may have at most 1000 bytes")
        other.asks("PUBLISH", long, "x").hears(b":0\r\n")


# Publishing


def test_a_message_reaches_all_subscribers_before_the_reply_to_its_publisher():
    with Resp() as talk:
        one, two, three = talk.connect(), talk.connect(), talk.connect()
        one.asks("SUBSCRIBE", "news").hears(confirmation("subscribe", "news", 1))
        two.asks("PSUBSCRIBE", "n?ws", "n*").hears(
            confirmation("psubscribe", "n?ws", 1), confirmation("psubscribe", "n*", 2)
        )
        three.asks("PUBLISH", "news", "hi").hears(b":3\r\n")
        one.hears_message("news", "hi")
        two.hears(
            array(bulk("pmessage"), bulk("n?ws"), bulk("news"), bulk("hi")),
            array(bulk("pmessage"), bulk("n*"), bulk("news"), bulk("hi")),
        )
        three.asks("PUBLISH", "other", "hi").hears(b":0\r\n")
        one.hangs_up()
        three.asks("PUBLISH", "news", b"\r\n").hears(b":2\r\n")
        two.hears(
            array(bulk("pmessage"), bulk("n?ws"), bulk("news"), bulk("\r\n")),
            array(bulk("pmessage"), bulk("n*"), bulk("news"), bulk("\r\n")),
        )


def test_the_sequence_of_client_test_suites():
    """Subscribe to all channels, act on another connection, unsubscribe, read all messages."""
    with Resp() as talk:
        listener, actor = talk.connect(), talk.connect().loads()
        listener.asks("PSUBSCRIBE", "*").hears(confirmation("psubscribe", "*", 1))
        actor.asks("EVALSHA", SHA_C, 0, "put", "a").asks("EVALSHA", SHA_C, 0, "put", "b")
        actor.hears(bulk("a"), bulk("b"))
        listener.asks("PUNSUBSCRIBE", "*")
        listener.hears(
            *(
                array(bulk("pmessage"), bulk("*"), bulk("ql:log"), bulk(b'{"jid":"%b","event":"put"}' % jid))
                for jid in (b"a", b"b")
            ),
            confirmation("punsubscribe", "*", 0),
        )  # fmt: skip


def test_a_client_after_quit_receives_no_message():
    with Resp() as talk:
        listener = talk.connect().asks("SUBSCRIBE", "a").hears(confirmation("subscribe", "a", 1))
        listener.says(b"QUIT\r\n").hears(OK).hears_the_end()
        connection = listener.connection
        connection.channels[b"a"] = None
        talk.hub.pubsub.channels[b"a"] = {connection: None}  # closing, not yet closed
        talk.hub.pubsub.publish(b"a", b"x", changes=False)
        assert connection.replies == []
        talk.hub.pubsub.leave(connection)


def test_pubsub():
    with Resp() as talk:
        talk.connect().asks("SUBSCRIBE", "a", "b").hears(
            confirmation("subscribe", "a", 1), confirmation("subscribe", "b", 2)
        )
        talk.connect().asks("PSUBSCRIBE", "a*").hears(confirmation("psubscribe", "a*", 1))
        client = talk.connect()
        client.asks("PUBSUB", "CHANNELS").hears(array(bulk("a"), bulk("b")))
        client.asks("PUBSUB", "CHANNELS", "[b]").hears(array(bulk("b")))
        client.asks("PUBSUB", "NUMSUB", "a", "x").hears(
            array(bulk("a"), b":1\r\n", bulk("x"), b":0\r\n")
        )
        client.asks("PUBSUB", "NUMPAT").hears(b":1\r\n")
        client.asks("PUBSUB", "FOO").hears_resp_error(
            "ERR unknown subcommand 'FOO'. Try PUBSUB HELP."
        )


# Messages about changes


def test_messages_wait_for_the_commit_of_the_change():
    with Resp() as talk:
        listener, actor = talk.connect(), talk.connect().loads()
        listener.asks("SUBSCRIBE", "ql:log", "x").hears(
            confirmation("subscribe", "ql:log", 1), confirmation("subscribe", "x", 2)
        )
        actor.asks("EVALSHA", SHA_C, 0, "put", "a").hears(bulk("a"))
        listener.hears_message("ql:log", '{"jid":"a","event":"put"}')
        actor.asks("PUBLISH", "x", "y").hears(b":1\r\n")
        listener.hears_message("x", "y")
        assert actor.wire.durable == [0, 1]
        assert listener.wire.durable == [2]


def test_message_and_reply_to_the_author_of_a_change_wait_for_the_commit():
    with Resp() as talk:
        client = talk.connect().speaks_resp3().loads()
        client.asks("SUBSCRIBE", "ql:log").hears(confirmation("subscribe", "ql:log", 1, b">"))
        client.asks("EVALSHA", SHA_C, 0, "put", "a").hears(
            b">3\r\n", bulk("message"), bulk("ql:log"), bulk('{"jid":"a","event":"put"}'), bulk("a")
        )
        assert client.wire.durable == [1, 3, 4]


def test_a_refused_change_publishes_no_message():
    with Resp() as talk:
        listener, actor = talk.connect(), talk.connect().loads()
        listener.asks("SUBSCRIBE", "ql:log").hears(confirmation("subscribe", "ql:log", 1))
        actor.asks("EVALSHA", SHA_C, 0, "put", "a").hears(bulk("a"))
        listener.hears_message("ql:log", '{"jid":"a","event":"put"}')
        message, put = Reply(b"message", must_wait=True, drop_if_refused=True), Reply(b"a", True)
        subscribed = Reply(b"subscribed", must_wait=False)
        assert listener.wire.optional == listener.wire.durable == [1]
        assert actor.wire.optional == []
        left = refused_replies(listener.connection, [subscribed, message, put], "disk full")
        assert left[0] is subscribed
        assert [reply.data for reply in left[1:]] == [
            actor.connection.unavailable_reply("disk full")
        ]


@pytest.mark.parametrize("left", ["hangs_up", "says_no_more"])
def test_a_closed_connection_has_no_subscriptions(left):
    with Resp() as talk:
        listener = talk.connect().asks("SUBSCRIBE", "a").hears(confirmation("subscribe", "a", 1))
        listener.asks("PSUBSCRIBE", "a").hears(confirmation("psubscribe", "a", 2))
        getattr(listener, left)()
        talk.connect().asks("PUBLISH", "a", "x").hears(b":0\r\n")
        assert not talk.hub.pubsub.channels
        assert not talk.hub.pubsub.patterns


def test_a_subscriber_with_too_much_unsent_data_is_disconnected(monkeypatch):
    """A message is sent once for each matching pattern; other subscribers receive it."""
    monkeypatch.setattr(pubsub, "MAX_UNSENT_BYTES", 1000)
    with Resp() as talk:
        greedy, modest = talk.connect(), talk.connect()
        for number in range(1, 9):
            greedy.asks("PSUBSCRIBE", "*" * number)
        greedy._taken = len(greedy.wire.heard)
        modest.asks("SUBSCRIBE", "c").hears(array(bulk("subscribe"), bulk("c"), b":1\r\n"))
        talk.connect().asks("PUBLISH", "c", "x" * 50).hears(b":9\r\n")
        modest.hears_message("c", "x" * 50)
        greedy._taken = len(greedy.wire.heard)
        greedy.is_still_there()
        talk.connect().asks("PUBLISH", "c", "x" * 300).hears(b":9\r\n")
        modest.hears_message("c", "x" * 300)
        greedy._taken = len(greedy.wire.heard)
        greedy.hears_the_end()
