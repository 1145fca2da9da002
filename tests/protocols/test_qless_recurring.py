"""Recurring jobs, in dialect C."""

from collections.abc import Generator, Iterator
from random import Random
from typing import Any

import pytest
from qless_conversation import Qless, QlessClient, job_fields

from millrace.engine.engine import Engine
from millrace.engine.job import SECOND
from millrace.engine.recurring import MAX_SPAWNED, RecurringJobs
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.resp import BulkStringParts
from millrace.protocols.slices import run_all_slices
from millrace.protocols.spec import protocol_rules


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


@pytest.fixture
def c(talk: Qless) -> QlessClient:
    return talk.speaks("C")


def recur(c: QlessClient, now: float, interval: float, offset: float = 0, *options: object) -> None:
    jid = c("recur", now, "q", "r", "klass", '{"n":1}', "interval", interval, offset, *options)
    assert jid == "r"


def when_put(c: QlessClient, now: float, count: int = 100) -> list[int]:
    """Pop jobs, and return the times of their intended puts."""
    return [job["history"][0]["when"] for job in c.json("pop", now, "q", "w", count)]


# recur


def test_recur_shows_a_recurring_job(c: QlessClient) -> None:
    recur(c, 1, 60, 5, "priority", 2.5, "tags", '["t"]', "retries", 3, "backlog", 4)
    assert c.json("recur.get", 2, "r") == {
        "jid": "r",
        "klass": "klass",
        "data": '{"n":1}',
        "queue": "q",
        "state": "recur",
        "count": 0,
        "interval": 60,
        "backlog": 4,
        "priority": 2.5,
        "retries": 3,
        "tags": ["t"],
    }
    recur(c, 2, 10)
    shown = c.json("recur.get", 3, "r")
    assert job_fields(shown, "tags", "retries", "backlog", "priority") == ({}, 0, 0, 0)
    assert c("get", 4, "r") is None
    assert c("jobs", 4, "recurring", "q") == ["r"]


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((), "Queue(): no queue name provided"),
        (("q",), 'RecurringJob On(): Arg "jid" missing'),
        (("q", "r"), 'RecurringJob On(): Arg "klass" missing'),
        (("q", "r", "k"), 'RecurringJob On(): Arg "spec" missing'),
        (("q", "r", "k", "{}"), 'RecurringJob On(): Arg "spec" missing'),
        (("q", "r", "k", "{}", "cron"), 'Recur(): schedule type "cron" unknown'),
        (("q", "r", "k", "{}", "interval"), 'Recur(): Arg "interval" not a number: nil'),
        (("q", "r", "k", "{}", "interval", 5), 'Recur(): Arg "offset" not a number: nil'),
        (
            ("q", "r", "k", "{}", "interval", 0, 0),
            'Recur(): Arg "interval" must be greater than 0',
        ),
        (
            ("q", "r", "k", "{}", "interval", 5, 0, "tags"),
            "Odd number of additional args: table: 0x0",
        ),
        (
            ("q", "r", "k", "{}", "interval", 5, 0, "priority", "x"),
            'Recur(): Arg "priority" not a number: x',
        ),
        (
            ("q", "r", "k", "{}", "interval", 5, 0, "retries", "x"),
            'Recur(): Arg "retries" not a number: x',
        ),
        (
            ("q", "r", "k", "{}", "interval", 5, 0, "backlog", "x"),
            'Recur(): Arg "backlog" not a number: x',
        ),
        (
            ("q", "r", "k", "nope", "interval", 5, 0),
            "Expected value but found invalid token at character 1",
        ),
    ],
)
def test_recur_refuses_invalid_requests(
    c: QlessClient, args: tuple[object, ...], error: str
) -> None:
    assert c.refused("recur", 1, *args) == error
    assert c("recur.get", 2, "r") is None
    assert c("queues", 3) == "{}"


def test_recur_registers_its_queue(c: QlessClient) -> None:
    recur(c, 1, 60)
    assert job_fields(c.json("queues", 2)[0], "name", "recurring") == ("q", 1)


# Children


def test_children(c: QlessClient) -> None:
    recur(c, 1, 60, 10, "priority", 3, "tags", '["t"]', "retries", 2)
    assert when_put(c, 10) == []
    [job] = c.json("pop", 15.5, "q", "w", 5)
    assert job == {
        "jid": "r-1",
        "klass": "klass",
        "data": '{"n":1}',
        "queue": "q",
        "state": "running",
        "worker": "w",
        "expires": 75.5,
        "retries": 2,
        "remaining": 2,
        "priority": 3,
        "tags": ["t"],
        "tracked": False,
        "failure": {},
        "dependents": {},
        "dependencies": {},
        "spawned_from_jid": "r",
        "history": [
            {"what": "put", "when": 11, "q": "q"},
            {"what": "popped", "when": 15, "worker": "w"},
        ],
    }
    assert c.json("tag", 16, "get", "t")["jobs"] == ["r-1"]
    assert c.json("recur.get", 16, "r")["count"] == 1
    assert c.json("stats", 16, "q", 16)["wait"]["mean"] == 4.5


def test_children_are_created_on_request_up_to_the_requested_count(c: QlessClient) -> None:
    recur(c, 0, 10)
    assert c("length", 95, "q") == 0
    assert len(c.json("peek", 95, "q", 3)) == 3
    assert c("length", 95, "q") == 3
    assert when_put(c, 95, 4) == [0, 10, 20, 30]
    assert when_put(c, 95) == [40, 50, 60, 70, 80, 90]
    assert c.json("recur.get", 96, "r")["count"] == 10


def test_backlog(c: QlessClient) -> None:
    recur(c, 0, 60, 0, "backlog", 1)
    assert when_put(c, 600) == [540, 600]
    assert when_put(c, 659) == []
    assert when_put(c, 660) == [660]


def test_backlog_that_is_not_reached(c: QlessClient) -> None:
    recur(c, 0, 60, 0, "backlog", 5)
    assert when_put(c, 130) == [0, 60, 120]


def test_requests_for_other_queues_create_no_children(c: QlessClient) -> None:
    recur(c, 0, 10)
    assert c.pop(100, queue="other") == []
    assert c.json("recur.get", 101, "r")["count"] == 0


def test_recur_again_keeps_the_count(c: QlessClient) -> None:
    recur(c, 0, 10)
    when_put(c, 10)
    assert c("recur", 20, "q2", "r", "other", "[]", "interval", 30, 5) == "r"
    shown = c.json("recur.get", 21, "r")
    assert job_fields(shown, "queue", "klass", "count", "interval") == ("q2", "other", 2, 30)
    assert when_put(c, 100) == []
    assert [job["jid"] for job in c.json("pop", 25, "q2", "w", 9)] == ["r-3"]


def test_children_never_replace_other_jobs(c: QlessClient) -> None:
    recur(c, 0, 10)
    when_put(c, 10)
    c("unrecur", 11, "r")
    recur(c, 20, 10)
    assert [job["jid"] for job in c.json("pop", 20, "q", "w", 9)] == ["r-3"]
    assert [c.get(jid)["history"][0]["when"] for jid in ("r-1", "r-2", "r-3")] == [0, 10, 20]


def test_a_job_and_a_recurring_job_with_one_name(c: QlessClient) -> None:
    recur(c, 1, 60)
    c.put(2, "r", queue="other")
    c("cancel", 3, "r")
    assert c.json("recur.get", 4, "r")["queue"] == "q"
    c.put(5, "r", queue="other")
    c("unrecur", 6, "r")
    assert c.state("r") == "waiting"


# unrecur


def test_unrecur(c: QlessClient) -> None:
    recur(c, 0, 10)
    assert c("unrecur", 1, "r") == 1
    assert c("unrecur", 1, "r") == 1
    assert c("recur.get", 2, "r") is None
    assert when_put(c, 100) == []
    assert c.refused("unrecur", 3) == "Recurring(): no jid provided"
    assert c.refused("recur.get", 3) == "Recurring(): no jid provided"


# recur.update


def test_update(c: QlessClient) -> None:
    recur(c, 0, 60, 100)
    changes = ("priority", 2.5, "retries", 7, "data", "[]", "klass", "other", "backlog", 3)
    assert c("recur.update", 1, "r", *changes) == 1
    shown = c.json("recur.get", 2, "r")
    assert job_fields(shown, "priority", "retries", "data", "klass", "backlog") == (
        2.5,
        7,
        "[]",
        "other",
        3,
    )
    assert c("recur.update", 3, "r", "queue", "q2") == 1
    assert c("jobs", 4, "recurring", "q") == []
    assert c("jobs", 4, "recurring", "q2") == ["r"]
    assert [queue["name"] for queue in c.json("queues", 4)] == ["q", "q2"]


def test_another_interval_moves_the_next_run(c: QlessClient) -> None:
    recur(c, 0, 60)
    assert when_put(c, 0) == [0]
    c("recur.update", 1, "r", "interval", 10)
    assert when_put(c, 25) == [10, 20]


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((), "Recurring(): no jid provided"),
        (("zz", "priority", 1), "Recur(): No recurring job zz"),
        (("r", "priority"), "No value provided for priority"),
        (("r", "priority", "x"), 'Recur(): Arg "priority" must be a number: x'),
        (("r", "foo", "bar"), 'Recur(): Unrecognized option "foo"'),
        (("r", "backlog", "x"), 'Recur(): Arg "backlog" not a number: x'),
        (("r", "interval", 0), 'Recur(): Arg "interval" must be greater than 0'),
        (("r", "klass", "new", "foo", "bar"), 'Recur(): Unrecognized option "foo"'),
        (("r", "queue", "new", "foo", "bar"), 'Recur(): Unrecognized option "foo"'),
    ],
)
def test_a_refused_update_changes_nothing(
    c: QlessClient, args: tuple[object, ...], error: str
) -> None:
    recur(c, 0, 60)
    before = c("recur.get", 1, "r")
    assert c.refused("recur.update", 1, *args) == error
    assert c("recur.get", 1, "r") == before
    assert len(c.json("queues", 2)) == 1


# recur.tag, recur.untag


def test_tags_of_recurring_jobs(c: QlessClient) -> None:
    recur(c, 0, 60)
    assert c.json("recur.tag", 1, "r", "a", "b", "a") == ["a", "b"]
    assert c.json("recur.untag", 2, "r", "a", "zz") == ["b"]
    assert c("recur.untag", 3, "r", "b") == "{}"
    assert c.refused("recur.tag", 4, "zz", "a") == "Tag(): Job zz does not exist"
    assert c.refused("recur.untag", 4, "zz", "a") == "Untag(): Job zz does not exist"


# Requests for a large number of jobs

HUGE = 10**11


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of jobs that each step has pushed."""
    found: list[int] = []
    spawn, push = RecurringJobs.spawn, RecurringJobs._push

    def counted_spawn(*args: Any) -> Any:
        found.append(0)
        return spawn(*args)

    def counted_push(*args: Any) -> None:
        found[-1] += 1
        push(*args)

    monkeypatch.setattr(RecurringJobs, "spawn", counted_spawn)
    monkeypatch.setattr(RecurringJobs, "_push", counted_push)
    return found


@pytest.mark.sources_only("it replaces RecurringJobs.spawn")
@pytest.mark.parametrize("command", ["pop", "peek", "reqless peek"])
def test_one_command_pushes_a_limited_number_of_jobs_in_slices(
    spawned: list[int], command: str
) -> None:
    api = QlessApi(QlessHub(Engine(Random(1), protocol_rules()), started_at=0))

    def call(dialect: str, name: str, now: int, *args: object) -> bytes:
        words = [str(word).encode() for word in (now, *args)]
        reply = api.call(dialect, name, [], words, now * SECOND)
        found = run_all_slices(reply) if isinstance(reply, Generator) else reply
        return b"".join(found.parts) if isinstance(found, BulkStringParts) else found

    call("C", "recur", 0, "q", "r", "klass", "{}", "interval", 1, 0)
    if command == "pop":
        reply = call("C", "pop", MAX_SPAWNED * 2, "q", "w", HUGE)
    elif command == "peek":
        reply = call("C", "peek", MAX_SPAWNED * 2, "q", HUGE)
    else:
        reply = call("D", "queue.peek", MAX_SPAWNED * 2, "q", 0, HUGE)
    assert reply.count(b'"klass":"klass"') == MAX_SPAWNED
    assert sum(spawned) == MAX_SPAWNED
    assert max(spawned) <= 20
