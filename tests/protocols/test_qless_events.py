"""Published events: channels, payloads and their order."""

from collections.abc import Iterator

import pytest
from qless_conversation import Qless, QlessClient


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


@pytest.fixture
def c(talk: Qless) -> QlessClient:
    return talk.speaks("C")


@pytest.fixture
def all_channels_subscriber(talk: Qless) -> QlessClient:
    """A client that subscribes to all channels."""
    client = talk.connect()
    assert isinstance(client, QlessClient)
    return client.listens()


def log(text: str) -> tuple[str, str]:
    return "ql:log", text


PUT = log('{"jid":"a","event":"put","queue":"q"}')
LOST = '{"jid":"a","event":"lock_lost","worker":"w1"}'


def test_put(c: QlessClient, all_channels_subscriber: QlessClient) -> None:
    c.put(1, "a")
    assert all_channels_subscriber.hears_events() == [PUT]
    c("track", 2, "track", "a")
    assert all_channels_subscriber.hears_events() == [("ql:track", "a")]
    c.pop(3)
    assert all_channels_subscriber.hears_events() == [("ql:popped", "a")]
    c.put(4, "a")
    assert all_channels_subscriber.hears_events() == [
        PUT,
        ("ql:w:w1", LOST),
        log(LOST),
        ("ql:put", "a"),
    ]
    c("track", 5, "untrack", "a")
    assert all_channels_subscriber.hears_events() == [("ql:untrack", "a")]


def test_put_by_the_worker_that_holds_the_job(
    c: QlessClient, all_channels_subscriber: QlessClient
) -> None:
    c.put(1, "a")
    c.pop(2)
    c("put", 3, "w1", "q", "a", "klass", "{}", 0)
    assert all_channels_subscriber.hears_events() == [PUT, PUT]


def test_put_without_a_worker_in_dialect_b(
    talk: Qless, c: QlessClient, all_channels_subscriber: QlessClient
) -> None:
    b = talk.speaks("B")
    c.put(1, "a")
    c.pop(2)
    assert b("put", 3, "q", "a", "klass", "{}", 0) == "a"
    assert all_channels_subscriber.hears_events() == [PUT, PUT, ("ql:w:w1", LOST), log(LOST)]


def test_complete(c: QlessClient, all_channels_subscriber: QlessClient) -> None:
    c.put(1, "a")
    c("track", 2, "track", "a")
    c.pop(3)
    all_channels_subscriber.hears_events()
    c("complete", 4, "a", "w1", "q", "{}", "next", "q/2")
    advanced = log(r'{"jid":"a","to":"q\/2","event":"advanced","queue":"q"}')
    assert all_channels_subscriber.hears_events() == [("ql:completed", "a"), advanced]
    c.pop(5, queue="q/2")
    all_channels_subscriber.hears_events()
    c("complete", 6, "a", "w1", "q/2", "{}")
    completed = log(r'{"jid":"a","event":"completed","queue":"q\/2"}')
    assert all_channels_subscriber.hears_events() == [("ql:completed", "a"), completed]


def test_fail(c: QlessClient, all_channels_subscriber: QlessClient) -> None:
    c.put(1, "a")
    c("track", 2, "track", "a")
    c.pop(3)
    all_channels_subscriber.hears_events()
    c("fail", 4, "a", "w1", "group", 'a "message"')
    failed = r'{"message":"a \"message\"","jid":"a","group":"group","event":"failed","worker":"w1"}'
    assert all_channels_subscriber.hears_events() == [log(failed), ("ql:failed", "a")]


def test_expiry(c: QlessClient, all_channels_subscriber: QlessClient) -> None:
    c.put(1, "a", "retries", 0)
    c("track", 2, "track", "a")
    c.pop(3)
    all_channels_subscriber.hears_events()
    c.pop(100, worker="w2")
    assert all_channels_subscriber.hears_events() == [
        ("ql:stalled", "a"),
        ("ql:w:w1", LOST),
        log(LOST),
    ]
    c.pop(200, worker="w2")
    failed = (
        r'{"message":"Job exhausted retries in queue \"q\"","jid":"a","group":"failed-retries-q",'
        '"event":"failed","worker":"w1"}'
    )
    assert all_channels_subscriber.hears_events() == [("ql:failed", "a"), log(failed)]


def test_cancel(c: QlessClient, all_channels_subscriber: QlessClient) -> None:
    c.put(1, "a")
    c.put(2, "b")
    c("track", 3, "track", "a")
    c.pop(4)
    all_channels_subscriber.hears_events()
    c("cancel", 5, "a", "b", "zz")
    with_worker = '{"jid":"a","queue":"q","event":"canceled","worker":"w1"}'
    assert all_channels_subscriber.hears_events() == [
        log(with_worker),
        ("ql:w:w1", with_worker),
        ("ql:canceled", "a"),
        log('{"jid":"b","queue":"q","event":"canceled","worker":""}'),
        log('{"jid":"zz","queue":false,"event":"canceled","worker":false}'),
    ]


def test_timeout(c: QlessClient, all_channels_subscriber: QlessClient) -> None:
    c.put(1, "a")
    c("track", 2, "track", "a")
    c.pop(3)
    all_channels_subscriber.hears_events()
    c("timeout", 4, "a")
    assert all_channels_subscriber.hears_events() == [("ql:w:w1", LOST), log(LOST)]


def test_retry_publishes_only_the_last_failure(
    c: QlessClient, all_channels_subscriber: QlessClient
) -> None:
    c.put(1, "a", "retries", 1)
    c("track", 2, "track", "a")
    c.pop(3)
    all_channels_subscriber.hears_events()
    c("retry", 4, "a", "q", "w1")
    assert all_channels_subscriber.hears_events() == []
    c.pop(5)
    all_channels_subscriber.hears_events()
    c("retry", 6, "a", "q", "w1")
    assert all_channels_subscriber.hears_events() == [("ql:failed", "a")]


def test_config(c: QlessClient, all_channels_subscriber: QlessClient) -> None:
    c("config.set", 1, "heartbeat", 10)
    c("config.unset", 2, "heartbeat")
    assert all_channels_subscriber.hears_events() == [
        log('{"option":"heartbeat","event":"config_set","value":"10"}'),
        log('{"event":"config_unset","option":"heartbeat"}'),
    ]


def test_commands_without_events(c: QlessClient, all_channels_subscriber: QlessClient) -> None:
    c.put(1, "a")
    c.put(1, "b", "depends", '["a"]')
    c("track", 1, "track", "a")
    c("recur", 1, "q2", "r", "klass", "{}", "interval", 10, 0)
    c.pop(2)
    all_channels_subscriber.hears_events()
    c("heartbeat", 3, "a", "w1")
    c("tag", 4, "add", "a", "t")
    c("priority", 5, "a", 7)
    c("depends", 6, "b", "off", "all")
    c("pause", 7, "q")
    c("unpause", 8, "q")
    c.pop(9, queue="q2")
    c("log", 10, "a", "hello")
    assert all_channels_subscriber.hears_events() == []
    c("fail", 11, "a", "w1", "group", "message")
    all_channels_subscriber.hears_events()
    c("unfail", 12, "q", "group")
    assert all_channels_subscriber.hears_events() == []


def test_a_refused_command_publishes_no_event(
    c: QlessClient, all_channels_subscriber: QlessClient
) -> None:
    c.refused("put", 1, "w", "q", "a", "klass", "{}", 0, "retries", "x")
    c.refused("timeout", 1, "zz")
    assert all_channels_subscriber.hears_events() == []


def test_a_subscriber_without_a_prefix_receives_events_of_other_clients(
    talk: Qless, c: QlessClient
) -> None:
    old = talk.connect()
    assert isinstance(old, QlessClient)
    old.asks("SUBSCRIBE", "completed").reply()
    c.put(1, "a")
    c("track", 2, "track", "a")
    c.pop(3)
    c("complete", 4, "a", "w1", "q", "{}")
    assert old.reply() == ["message", "completed", "a"]


def test_dialect_a_publishes_tracked_jobs_without_a_prefix(
    talk: Qless, all_channels_subscriber: QlessClient
) -> None:
    a = talk.speaks("A", "put", "track", "pop", "complete")
    a("put", 1, "q", "a", "klass", "{}", 1, 0)
    a("track", 0, "track", "a", 2)
    a("pop", 1, "q", "w1", 1, 3)
    a("complete", 0, "a", "w1", "q", 4, "{}")
    assert all_channels_subscriber.hears_events() == [
        PUT,
        ("ql:track", "a"),
        ("track", "a"),
        ("ql:popped", "a"),
        ("popped", "a"),
        ("ql:completed", "a"),
        ("completed", "a"),
        log('{"jid":"a","event":"completed","queue":"q"}'),
    ]
