"""Subscribing, publishing, and what a subscriber may say."""

import pytest
from resp_conversation import OK, SHA_C, Resp, array, bulk

from millrace.protocols.qless import pubsub
from millrace.protocols.qless.pubsub import MAX_CHANNEL_NAME, MAX_SUBSCRIPTIONS, Message


def told(word: str, name: str | None, count: int, sign: bytes = b"*") -> bytes:
    shown = b"$-1\r\n" if name is None else bulk(name)
    shown = b"_\r\n" if name is None and sign == b">" else shown
    return sign + b"3\r\n" + bulk(word) + shown + b":%d\r\n" % count


# Subscribing


def test_one_message_for_each_with_a_running_count():
    with Resp() as talk:
        client = talk.connect().asks("SUBSCRIBE", "a", "b", "a")
        client.hears(
            told("subscribe", "a", 1), told("subscribe", "b", 2), told("subscribe", "a", 2)
        )
        client.asks("PSUBSCRIBE", "x*").hears(told("psubscribe", "x*", 3))
        client.asks("UNSUBSCRIBE", "nope", "a").hears(
            told("unsubscribe", "nope", 3), told("unsubscribe", "a", 2)
        )
        client.asks("UNSUBSCRIBE").hears(told("unsubscribe", "b", 1))
        client.asks("PUNSUBSCRIBE").hears(told("punsubscribe", "x*", 0))
        client.asks("UNSUBSCRIBE").hears(told("unsubscribe", None, 0))
        client.asks("PUNSUBSCRIBE").hears(told("punsubscribe", None, 0))
        client.asks("PING").hears(b"+PONG\r\n")


def test_pushes_in_resp3():
    with Resp() as talk:
        client = talk.connect().speaks_resp3()
        client.asks("SUBSCRIBE", "a").hears(told("subscribe", "a", 1, b">"))
        client.asks("PSUBSCRIBE", "*").hears(told("psubscribe", "*", 2, b">"))
        client.asks("PING").hears(b"+PONG\r\n")
        client.asks("PUBLISH", "a", "hi").hears(
            b">3\r\n", bulk("message"), bulk("a"), bulk("hi"),
            b">4\r\n", bulk("pmessage"), bulk("*"), bulk("a"), bulk("hi"),
            b":2\r\n",
        )  # fmt: skip
        client.asks("UNSUBSCRIBE", "x").hears(told("unsubscribe", "x", 2, b">"))
        client.asks("UNSUBSCRIBE").hears(told("unsubscribe", "a", 1, b">"))
        client.asks("UNSUBSCRIBE").hears(told("unsubscribe", None, 1, b">"))


def test_what_a_subscriber_may_say_in_resp2():
    with Resp() as talk:
        client = talk.connect().asks("SUBSCRIBE", "a").hears(told("subscribe", "a", 1))
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
        client.asks("PSUBSCRIBE", "a").hears(told("psubscribe", "a", 1))
        client.asks("QUIT").hears(OK).hears_the_end()
        talk.connect().asks("PUBLISH", "a", "x").hears(b":0\r\n")


def test_subscriptions_are_bounded():
    with Resp() as talk:
        client = talk.connect()
        many = [f"c{n}" for n in range(MAX_SUBSCRIPTIONS)]
        client.asks("SUBSCRIBE", *many)
        client.hears(*(told("subscribe", name, n + 1) for n, name in enumerate(many)))
        client.asks("SUBSCRIBE", "more").hears_resp_error(
            "ERR a client may have 1000 subscriptions"
        )
        long = "x" * (MAX_CHANNEL_NAME + 1)
        other = talk.connect().asks("PSUBSCRIBE", long)
        other.hears_resp_error("ERR the name of a channel may have 1000 bytes")
        other.asks("PUBLISH", long, "x").hears(b":0\r\n")


# Publishing


def test_a_message_reaches_all_who_listen_before_its_publisher_is_answered():
    with Resp() as talk:
        one, two, three = talk.connect(), talk.connect(), talk.connect()
        one.asks("SUBSCRIBE", "news").hears(told("subscribe", "news", 1))
        two.asks("PSUBSCRIBE", "n?ws", "n*").hears(
            told("psubscribe", "n?ws", 1), told("psubscribe", "n*", 2)
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


def test_what_clients_test_suites_do():
    """Listen to everything, act on another connection, stop listening, read up to that."""
    with Resp() as talk:
        listener, actor = talk.connect(), talk.connect().loads()
        listener.asks("PSUBSCRIBE", "*").hears(told("psubscribe", "*", 1))
        actor.asks("EVALSHA", SHA_C, 0, "put", "a").asks("EVALSHA", SHA_C, 0, "put", "b")
        actor.hears(bulk("a"), bulk("b"))
        listener.asks("PUNSUBSCRIBE", "*")
        listener.hears(
            *(
                array(bulk("pmessage"), bulk("*"), bulk("ql:log"), bulk(b'{"jid":"%b","event":"put"}' % jid))
                for jid in (b"a", b"b")
            ),
            told("punsubscribe", "*", 0),
        )  # fmt: skip


def test_whoever_says_quit_hears_no_more():
    with Resp() as talk:
        listener = talk.connect().asks("SUBSCRIBE", "a").hears(told("subscribe", "a", 1))
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
            told("subscribe", "a", 1), told("subscribe", "b", 2)
        )
        talk.connect().asks("PSUBSCRIBE", "a*").hears(told("psubscribe", "a*", 1))
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


# Messages that tell of a change


def test_they_wait_for_the_disk_with_the_change():
    with Resp() as talk:
        listener, actor = talk.connect(), talk.connect().loads()
        listener.asks("SUBSCRIBE", "ql:log", "x").hears(
            told("subscribe", "ql:log", 1), told("subscribe", "x", 2)
        )
        actor.asks("EVALSHA", SHA_C, 0, "put", "a").hears(bulk("a"))
        listener.hears_message("ql:log", '{"jid":"a","event":"put"}')
        actor.asks("PUBLISH", "x", "y").hears(b":1\r\n")
        listener.hears_message("x", "y")
        assert actor.wire.durable == [0, 1]
        assert listener.wire.durable == [2]


def test_a_listener_to_its_own_changes_waits_for_both():
    with Resp() as talk:
        client = talk.connect().speaks_resp3().loads()
        client.asks("SUBSCRIBE", "ql:log").hears(told("subscribe", "ql:log", 1, b">"))
        client.asks("EVALSHA", SHA_C, 0, "put", "a").hears(
            b">3\r\n", bulk("message"), bulk("ql:log"), bulk('{"jid":"a","event":"put"}'), bulk("a")
        )
        assert client.wire.durable == [1, 3, 4]


def test_if_the_change_is_refused_nobody_hears_of_it():
    with Resp() as talk:
        listener, actor = talk.connect(), talk.connect().loads()
        listener.asks("SUBSCRIBE", "ql:log").hears(told("subscribe", "ql:log", 1))
        actor.asks("EVALSHA", SHA_C, 0, "put", "a").hears(bulk("a"))
        message = listener.wire.replies[listener.wire.durable[0]]
        listener.hears_message("ql:log", '{"jid":"a","event":"put"}')
        assert isinstance(message, Message)
        assert listener.connection.refused(message, "disk full") == b""
        reply = actor.wire.replies[actor.wire.durable[-1]]
        assert actor.connection.refused(reply, "disk full").startswith(b"-MISCONF disk full: ")


@pytest.mark.parametrize("left", ["hangs_up", "says_no_more"])
def test_whoever_leaves_listens_no_more(left):
    with Resp() as talk:
        listener = talk.connect().asks("SUBSCRIBE", "a").hears(told("subscribe", "a", 1))
        listener.asks("PSUBSCRIBE", "a").hears(told("psubscribe", "a", 2))
        getattr(listener, left)()
        talk.connect().asks("PUBLISH", "a", "x").hears(b":0\r\n")
        assert not talk.hub.pubsub.channels
        assert not talk.hub.pubsub.patterns


def test_a_client_that_would_be_told_too_much_is_cut(monkeypatch):
    """A message comes once for each pattern that it matches; others hear it all the same."""
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
