"""Commands that read, in dialect C: jobs, queues, workers, failures, tags."""

from collections.abc import Iterator

import pytest
from qless_conversation import Qless, QlessClient, job_fields


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


@pytest.fixture
def c(talk: Qless) -> QlessClient:
    return talk.speaks("C")


# get, multiget


def test_get(c: QlessClient) -> None:
    assert c("get", 1, "zz") is None
    assert c.refused("get", 1) == "Job(): no jid provided"
    c.put(2, "a")
    assert c.get("a")["jid"] == "a"


def test_multiget_skips_unknown_jobs(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(1, "b")
    assert [job["jid"] for job in c.json("multiget", 2, "b", "zz", "a")] == ["b", "a"]
    assert [job["jid"] for job in c.json("multiget", 2, "b", "a", "b")] == ["b", "a"]
    assert c("multiget", 2, "zz") == "{}"
    assert c("multiget", 2) == "{}"


def test_numbers_are_written_with_fourteen_digits(c: QlessClient) -> None:
    c.put(1394000000.98765432, "a")
    c.json("pop", 1394000000.98765432, "q", "w", 1)
    assert '"expires":1394000060.9877,' in c("get", 0, "a")


def test_slashes_and_letters_beyond_ascii(c: QlessClient) -> None:
    c("put", 1, "w", "a/b", "jid/é", 'kl"ass', "{}", 0)
    assert job_fields(c.get("jid/é"), "jid", "klass", "queue") == ("jid/é", 'kl"ass', "a/b")


# jobs


def test_jobs_by_state(c: QlessClient) -> None:
    for jid in ("run", "late", "done"):
        c.put(1, jid)
    c.pop(2, 2)
    assert c.pop(30, worker="w2") == ["done"]
    c("complete", 31, "done", "w2", "q", "{}")
    c.put(32, "due", delay=1000)
    c.put(33, "dep", "depends", '["run"]')
    c("recur", 34, "q", "rec", "klass", "{}", "interval", 60, 60)
    c("heartbeat", 35, "run", "w1")
    assert c("jobs", 70, "running", "q") == ["run"]
    assert c("jobs", 70, "stalled", "q") == ["late"]
    assert c("jobs", 70, "scheduled", "q") == ["due"]
    assert c("jobs", 70, "depends", "q") == ["dep"]
    assert c("jobs", 70, "recurring", "q") == ["rec"]
    assert c("jobs", 70, "complete") == ["done"]
    assert c("jobs", 70, "running", "unknown") == []
    assert c("jobs", 2000, "scheduled", "q") == []
    assert c.state("due") == "waiting"


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((), 'Jobs(): Arg "state" missing'),
        (("running",), 'Jobs(): Arg "queue" missing'),
        (("foo",), 'Jobs(): Arg "queue" missing'),
        (("foo", "q"), 'Jobs(): Unknown type "foo"'),
        (("waiting", "q"), 'Jobs(): Unknown type "waiting"'),
        (("running", "q", "x"), 'Jobs(): Arg "offset" not a number: x'),
        (("running", "q", 0, "x"), 'Jobs(): Arg "count" not a number: x'),
        (("complete", "x"), 'Jobs(): Arg "offset" not a number: x'),
        (("complete", 0, "x"), 'Jobs(): Arg "count" not a number: x'),
    ],
)
def test_jobs_refuses_invalid_requests(
    c: QlessClient, args: tuple[object, ...], error: str
) -> None:
    assert c.refused("jobs", 1, *args) == error


def test_jobs_by_pages(c: QlessClient) -> None:
    names = [f"j{number:02}" for number in range(30)]
    for number, jid in enumerate(names):
        c.put(number, jid, delay=100)
    assert c("jobs", 50, "scheduled", "q") == names[:25]
    assert c("jobs", 50, "scheduled", "q", 25) == names[25:]
    assert c("jobs", 50, "scheduled", "q", 2, 3) == names[2:5]
    assert c("jobs", 50, "scheduled", "q", 0, -1) == names[:-1]  # all but the last
    assert c("jobs", 50, "scheduled", "q", 0, 0) == names  # 0..-1 is the whole range in Redis
    for number in range(30):
        c.pop(1000 + number)
    assert c("jobs", 1040, "running", "q", 28, 5) == names[28:]
    assert c("jobs", 1040, "running", "q", 0, -1) == names  # all
    assert c("jobs", 1040, "running", "q", 0, 0) == []
    for number, jid in enumerate(names):
        c("complete", 1041 + number, jid, "w1", "q", "{}")
    assert c("jobs", 2000, "complete") == names[::-1][:25]
    assert c("jobs", 2000, "complete", 28, 10) == ["j01", "j00"]


# queues, length


def test_queues(c: QlessClient) -> None:
    assert c("queues", 1) == "{}"
    zeros = dict.fromkeys(("waiting", "running", "stalled", "scheduled", "depends", "recurring"), 0)
    assert c.json("queues", 1, "unknown") == {"name": "unknown", "paused": False, **zeros}
    assert c("queues", 1) == "{}"
    c.put(1, "a", queue="second")
    c.put(2, "b", queue="first")
    c.put(2, "c", queue="fifth")
    c.put(0, "a", queue="second")
    names = [queue["name"] for queue in c.json("queues", 3)]
    assert names == ["second", "fifth", "first"]  # by the first time, then by name


def test_queues_count_by_state(c: QlessClient) -> None:
    for number, jid in enumerate("abcd"):
        c.put(number, jid)
    c.pop(10, 2)
    c("heartbeat", 30, "b", "w1")
    c.put(31, "e", delay=20)
    c.put(32, "f", delay=100)
    c.put(33, "g", "depends", '["a"]')
    c("recur", 34, "q", "r", "klass", "{}", "interval", 60, 60)
    c("pause", 35, "q")
    wanted = {
        "name": "q",
        "waiting": 3,  # one of them has just become due
        "running": 1,
        "stalled": 1,
        "scheduled": 1,
        "depends": 1,
        "recurring": 1,
        "paused": True,
    }
    assert c.json("queues", 70, "q") == wanted
    assert c.json("queues", 70) == [wanted]


def test_a_lock_that_expires_now_is_stalled(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(10)
    counts = c.json("queues", 70, "q")
    assert job_fields(counts, "running", "stalled") == (0, 1)
    assert c("jobs", 70, "running", "q") == ["a"]
    assert c("jobs", 70, "stalled", "q") == ["a"]


def test_length_excludes_jobs_with_dependencies(c: QlessClient) -> None:
    assert c("length", 1, "unknown") == 0
    assert c.refused("length", 1) == "Queue(): no queue name provided"
    c.put(1, "a")
    c.put(1, "b")
    c.put(1, "c", delay=10)
    c.put(1, "d", "depends", '["a"]')
    c.pop(2)
    assert c("length", 3, "q") == 3


# workers


def test_workers_by_their_last_activity(c: QlessClient) -> None:
    assert c("workers", 1) == "{}"
    c.put(1, "a")
    c.put(2, "b")
    c.pop(10, worker="w1")
    c.pop(20, worker="w2")
    c("heartbeat", 30, "a", "w1")
    assert c.json("workers", 81) == [
        {"name": "w1", "jobs": 1, "stalled": 0},
        {"name": "w2", "jobs": 0, "stalled": 1},
    ]
    assert c.json("workers", 81, "w1") == {"jobs": ["a"], "stalled": {}}
    assert c.json("workers", 81, "w2") == {"jobs": {}, "stalled": ["b"]}
    assert c.json("workers", 80, "w2") == {"jobs": ["b"], "stalled": ["b"]}
    assert c.json("workers", 81, "unknown") == {"jobs": {}, "stalled": {}}


def test_workers_are_forgotten_after_a_day(c: QlessClient) -> None:
    c.pop(10, worker="w1")
    c.pop(20, worker="w2")
    assert len(c.json("workers", 86409)) == 2
    assert [worker["name"] for worker in c.json("workers", 86410)] == ["w2"]
    c("config.set", 86411, "max-worker-age", 10)
    assert c("workers", 86411) == "{}"


def test_deregistered_workers_are_not_listed(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2, worker="w1")
    c.pop(2, worker="w2")
    assert c("worker.deregister", 3, "w1", "w2") is None
    assert c("workers", 4) == "{}"
    assert c.json("workers", 4, "w1")["jobs"] == ["a"]
    assert c.refused("worker.deregister", 5).startswith("Wrong number of args")


# failed


def test_failed_by_group(c: QlessClient) -> None:
    assert c("failed", 1) == "{}"
    for number, jid in enumerate("abcd"):
        c.put(number, jid)
        c.pop(number)
        c("fail", 10 + number, jid, "w1", "g2" if jid == "d" else "g1", "message")
    assert c.json("failed", 20) == {"g1": 3, "g2": 1}
    assert c.json("failed", 20, "g1") == {"total": 3, "jobs": ["c", "b", "a"]}
    assert c.json("failed", 20, "g1", 1, 1) == {"total": 3, "jobs": ["b"]}
    assert c.json("failed", 20, "g1", 2, 5) == {"total": 3, "jobs": ["a"]}
    assert c.json("failed", 20, "unknown") == {"total": 0, "jobs": {}}
    assert c.refused("failed", 20, "g1", "x") == 'Failed(): Arg "start" is not a number: x'
    assert c.refused("failed", 20, "g1", 0, "x") == 'Failed(): Arg "limit" is not a number: x'


@pytest.mark.parametrize("command", ["failed", "jobs", "tag"])
@pytest.mark.parametrize(
    ("start", "limit", "jids"),
    [
        (0, 1 << 62, ["b", "a"]),
        (0, "1e300", ["b", "a"]),
        (1, 1 << 63, ["a"]),
        (1 << 62, 1, []),
        ("1e300", "1e300", []),
        ("-1e300", 1, []),
        (0, "-1e300", []),
    ],
)
def test_a_range_beyond_the_end_of_a_list(
    c: QlessClient, command: str, start: object, limit: object, jids: list[str]
) -> None:
    for number, jid in enumerate("ab"):
        c.put(number, jid)
        c.pop(number)
        ends: tuple[object, ...] = ("fail", 9 + number, jid, "w1", "g", "message")
        if command == "jobs":
            ends = ("complete", 9 + number, jid, "w1", "q", "{}")
        c(*ends)
        c("tag", 12 - number, "add", jid, "t")
    if command == "jobs":
        assert c("jobs", 20, "complete", start, limit) == jids
    else:
        more = ("get", "t") if command == "tag" else ("g",)
        assert c.json(command, 20, *more, start, limit) == {"total": 2, "jobs": jids or {}}


def test_failures_of_other_protocols(c: QlessClient, talk: Qless) -> None:
    """The list includes a dead Faktory job."""
    talk.pushes_faktory("job-1")
    talk.acts(lambda world: world.engine.kill(world.engine.find("job-1"), world.now))
    assert c.state("job-1") == "failed"


# tag get, tag top


def test_tags_by_the_time_of_their_addition(c: QlessClient) -> None:
    c.put(3, "foo", "tags", '["t","u"]')
    c.put(3, "bar", "tags", '["t"]')
    c.put(1, "early", "tags", '["t"]')
    assert c.json("tag", 4, "get", "t") == {"total": 3, "jobs": ["early", "bar", "foo"]}
    assert c.json("tag", 4, "get", "t", 1, 1) == {"total": 3, "jobs": ["bar"]}
    assert c.json("tag", 4, "get", "none") == {"total": 0, "jobs": {}}
    assert c.refused("tag", 4, "get") == 'Tag(): Arg "tag" missing'
    assert c.refused("tag", 4, "get", "t", "x") == 'Tag(): Arg "offset" not a number: x'
    assert c.refused("tag", 4, "get", "t", 0, "x") == 'Tag(): Arg "count" not a number: x'


def test_top_tags_have_two_jobs_or_more(c: QlessClient) -> None:
    assert c("tag", 1, "top") == "{}"
    for number in range(3):
        c.put(number, f"j{number}", "tags", '["three", 7]' if number else '["three","one"]')
    assert c.json("tag", 4, "top") == ["three", "7"]
    assert c.json("tag", 4, "top", 1, 5) == ["7"]
    c("cancel", 5, "j0")
    c("tag", 5, "remove", "j1", "three", "absent")
    c("tag", 5, "add", "j1", "7")  # the tag exists already
    assert c.json("tag", 6, "top") == ["7"]
    assert c.refused("tag", 6, "top", "x") == 'Tag(): Arg "offset" not a number: x'


# config.get


def test_config_all(c: QlessClient) -> None:
    defaults = {
        "application": "qless",
        "heartbeat": 60,
        "grace-period": 10,
        "stats-history": 30,
        "histogram-history": 7,
        "jobs-history-count": 50000,
        "jobs-history": 604800,
    }
    assert c.json("config.get", 1) == defaults
    c("config.set", 2, "heartbeat", 120)
    c("config.set", 2, "anything", "goes")
    assert c.json("config.get", 3) == {**defaults, "heartbeat": "120", "anything": "goes"}


def test_config_of_one_option(c: QlessClient) -> None:
    assert c("config.get", 1, "heartbeat") == 60
    assert c("config.get", 1, "application") == "qless"
    assert c("config.get", 1, "unknown") is None
    c("config.set", 2, "heartbeat", 120)
    assert c("config.get", 3, "heartbeat") == "120"
    assert c("config.unset", 4, "heartbeat") is None
    assert c("config.get", 5, "heartbeat") == 60


# All commands


def test_generic_errors(c: QlessClient) -> None:
    sha = "29689e4db6e13a280dc45e24f18d2ef48420eb0e"
    c.asks("EVALSHA", sha, 0).hears_resp_error("ERR user_script:1: Must provide a command")
    assert c.refused("foo", 1) == "Unknown command foo"
    assert c.refused("get") == "bad argument #1 to 'tonumber' (value expected)"
    assert c.refused("get", "soon", "a") == 'Arg "now" missing or not a number: nil'
    c.asks("EVALSHA", sha, 1, "key", "get", 1, "a").hears_resp_error(
        "ERR user_script:1: No Keys should be provided"
    )


@pytest.mark.parametrize("count", ["2", "2.0", " 2 ", "0x2", "2e0", "20e-1"])
def test_numbers_are_parsed_as_in_lua(c: QlessClient, count: str) -> None:
    for jid in "abc":
        c.put(1, jid)
    assert len(c.json("pop", 2, "q", "w", count)) == 2


def test_a_pop_removes_a_few_outdated_workers_at_a_time(talk: Qless, c: QlessClient) -> None:
    c("config.set", 0, "max-worker-age", 10)
    for number in range(300):
        c("pop", 1, "q", f"old-{number}", 1)
    known = talk.world.api.qless.workers.last_seen
    for number in range(3):
        before = len(known)
        c("pop", 1000, "q", f"new-{number}", 1)
        assert 0 < before + 1 - len(known) <= 100
    assert list(known) == ["new-0", "new-1", "new-2"]
