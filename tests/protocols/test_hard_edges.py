"""Edge cases of the protocols that a comparison with the originals revealed."""

import json
from collections.abc import Iterator

import pytest
from conversation import Conversation
from qless_conversation import Qless, QlessClient
from workq_conversation import Workq, uid

#: Commands of the documented form of Qless.
DOCUMENTED = [
    "complete",
    "fail",
    "failed",
    "get",
    "getconfig",
    "heartbeat",
    "jobs",
    "pause",
    "peek",
    "pop",
    "put",
    "queues",
    "recur",
    "setconfig",
    "tag",
    "track",
    "unfail",
    "unpause",
]


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


# Workq


def test_a_size_that_is_one_too_small_is_answered_at_once() -> None:
    """The server does not wait for more bytes: the byte after the block is no CR."""
    with Workq() as conversation:
        client = conversation.connect()
        client.says(b"add %b q 60000 60000 3\r\nabcd" % uid(1))
        client.hears(b"-CLIENT-ERROR Invalid payload size\r\n")


# Faktory


@pytest.mark.parametrize("body", [b"{}", b'{"JID":"job-0001"}', b"null"])
def test_an_acknowledgement_without_a_jid_is_refused(body: bytes) -> None:
    with Conversation() as conversation:
        client = conversation.client()
        client.says(b'PUSH {"jid":"job-0001","jobtype":"t","args":[]}\r\n').hears_ok()
        client.fetches()
        client.says(b"ACK " + body + b"\r\n").hears_error_like("invalid ACK ")
        assert len(conversation.engine.leased) == 1


# Qless


@pytest.mark.parametrize("dialect", ["C", "spec"])
@pytest.mark.parametrize("option", ["depends", "tags"])
@pytest.mark.parametrize("value", ['"a"', "1", "true"])
def test_a_wrong_type_of_an_option_is_an_error(
    talk: Qless, dialect: str, option: str, value: str
) -> None:
    """It was acknowledged and ignored, so the job ran too early."""
    client: QlessClient = talk.speaks(dialect)
    start = ("Put", 1, "q", "late") if dialect == "spec" else ("put", 1, "w1", "q", "late")
    clock = (1, 0) if dialect == "spec" else (0,)
    with pytest.raises(Exception, match=r"table|JSON|type|number|string|boolean"):
        client(*start, "klass", "{}", *clock, option, value)
    assert talk.engine.find("late") is None


@pytest.fixture(params=["A", "spec"])
def a(request: pytest.FixtureRequest, talk: Qless) -> QlessClient:
    """A client of the documented commands, as scripts and as plain commands."""
    return talk.speaks(request.param, *DOCUMENTED)


def put(a: QlessClient, now: float, jid: str, *options: object, delay: float = 0) -> None:
    assert a("put", 1, "q", jid, "klass", "{}", now, delay, *options) == jid


def pop(a: QlessClient, now: float, count: int = 1) -> list[str]:
    return [json.loads(job)["jid"] for job in a("pop", 1, "q", "w1", count, now)]


def test_complete_accepts_the_name_of_another_queue(a: QlessClient) -> None:
    put(a, 1, "a")
    pop(a, 2)
    assert a("complete", 0, "a", "w1", "another", 3, "{}", "next", "p", "delay", 0) == "waiting"
    assert a.json("get", 0, "a")["queue"] == "p"
    a("pop", 1, "p", "w1", 1, 4)
    assert a("complete", 0, "a", "w1", "another", 5, "{}") == "complete"


@pytest.mark.parametrize("state", ["waiting", "scheduled", "depends", "failed", "complete"])
def test_complete_of_a_job_that_is_not_running_is_nil(a: QlessClient, state: str) -> None:
    bring(a, state)
    for queue in ("q", "another"):
        assert a("complete", 0, "a", "w1", queue, 9, "{}") is None
    assert a.json("get", 0, "a")["state"] == state


@pytest.mark.parametrize(
    "state", ["waiting", "scheduled", "depends", "running", "failed", "complete"]
)
def test_a_job_can_fail_in_any_state(a: QlessClient, state: str) -> None:
    bring(a, state)
    assert a("fail", 0, "a", "w1", "late", "too late", 9) == "a"
    job = a.json("get", 0, "a")
    assert (job["state"], job["failure"]["group"]) == ("failed", "late")
    assert a.json("failed", 0) == {"late": 1}
    assert "a" not in pop(a, 1000, 10)


def bring(a: QlessClient, state: str) -> None:
    """Put the job a, and move it to the given state."""
    if state == "depends":
        put(a, 1, "first")
        put(a, 1, "a", "depends", '["first"]')
    else:
        put(a, 1, "a", delay=100 if state == "scheduled" else 0)
    if state in {"running", "failed", "complete"}:
        assert pop(a, 2) == ["a"]
    if state == "failed":
        a("fail", 0, "a", "w1", "early", "broken", 3)
    if state == "complete":
        a("complete", 0, "a", "w1", "q", 3, "{}")
    assert a.json("get", 0, "a")["state"] == state


def test_untrack_of_an_unknown_job_is_zero(a: QlessClient) -> None:
    assert a("track", 0, "untrack", "nothing", 1) == 0


def test_a_pause_of_an_unknown_queue_is_remembered_and_not_listed(a: QlessClient) -> None:
    assert a("pause", 0, "q") is None
    assert a.json("queues", 0, 1) == {}
    put(a, 2, "a")
    assert [queue["name"] for queue in a.json("queues", 0, 3)] == ["q"]
    assert pop(a, 4) == []
    a("unpause", 0, "q")
    assert pop(a, 5) == ["a"]


def test_a_put_without_tags_moves_the_job_behind_others_of_its_tag(a: QlessClient) -> None:
    put(a, 1, "a", "tags", '["t"]')
    put(a, 2, "b", "tags", '["t"]')
    assert a.json("tag", 0, "get", "t")["jobs"] == ["a", "b"]
    put(a, 3, "a")
    assert a.json("tag", 0, "get", "t")["jobs"] == ["b", "a"]


def test_recur_update_of_an_unknown_job_is_nil(a: QlessClient) -> None:
    assert a("recur", 0, "update", "nothing", "priority", 1) is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("heartbeat", 60),
        ("stats-history", 30),
        ("histogram-history", 7),
        ("jobs-history", 604_800),
        ("jobs-history-count", 50_000),
        ("max-worker-age", 86_400),
        ("max-job-history", 100),
    ],
)
def test_getconfig_returns_the_default_until_the_option_is_set(
    a: QlessClient, option: str, value: int
) -> None:
    assert a("getconfig", 0, option) == value
    a("setconfig", 0, option, 5)
    assert a("getconfig", 0, option) == "5"
    a("setconfig", 0, option)
    assert a("getconfig", 0, option) == value


def test_a_repeated_put_moves_a_job_behind_the_jobs_put_in_between(a: QlessClient) -> None:
    for jid in "abca":
        put(a, 1, jid)
    assert pop(a, 2, 5) == ["b", "c", "a"]


def test_the_delayed_job_with_the_earlier_due_time_is_first(a: QlessClient) -> None:
    put(a, 1, "late", delay=20)
    put(a, 2, "early", delay=10)
    assert pop(a, 100, 5) == ["early", "late"]


def test_a_pop_in_the_documented_form_has_no_limit(talk: Qless, a: QlessClient) -> None:
    for number in range(1100):
        put(a, 1, f"j{number}")
    assert len(a("peek", 1, "q", 5000, 2)) == 1100
    assert len(pop(a, 2, 5000)) == 1100
    talk.failed = True  # the puts are not repeated byte by byte


@pytest.mark.parametrize("words", [131_072, 131_073])
def test_a_request_has_up_to_131072_words(talk: Qless, words: int) -> None:
    client = talk.speaks("C")
    client.asks("DEL", *map(str, range(words - 1)))
    if words == 131_072:
        assert client.reply() == 0
    else:
        client.hears_resp_error("ERR Protocol error: invalid multibulk length").hears_the_end()
    talk.failed = True  # the request is not repeated byte by byte


def test_json_in_options_has_up_to_500_levels(talk: Qless) -> None:
    client = talk.speaks("C")
    deep = "[" * 500 + "]" * 500
    text = client.refused("put", 1, "w", "q", "a", "klass", "{}", 0, "depends", deep)
    assert text == "Lua redis() command arguments must be strings or integers"
    text = client.refused("put", 1, "w", "q", "a", "klass", "{}", 0, "depends", f"[{deep}]")
    assert text == "Found too many nested data structures (501)"
    client.put(1, "a")
    levels = '{"a":' * 500 + "1" + "}" * 500
    client("log", 2, "a", "deep", levels)
    assert client.get("a")["history"][-1]["a"] == json.loads(levels)["a"]
