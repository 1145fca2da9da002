"""QLESS.CONSISTENCYCHECK of the spec, which the original does not implement."""

import contextlib
import json
from collections.abc import Callable, Generator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_qless_redis_view import QlessKeys, put

from failing_stores import FailingMemoryStore
from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.states import READY
from millrace.protocols.qless import consistency
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.errors import ChangeRefused, ScriptError
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.spec import protocol_rules
from millrace.store import MemoryStore
from scene import commit, commit_or_revert, recover

T = 1352375209
SECOND = 1_000_000


class SampleQless:
    """Qless with data of every kind."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or Engine(Random(1), protocol_rules())
        self.hub = QlessHub(self.engine, started_at=T * SECOND)
        self.api = QlessApi(self.hub)
        self.qless = self.api.qless

    def do(self, command: str, *args: object, now: float = T) -> Any:
        arguments = [str(word).encode() for word in (now, *args)]
        if command == "fail whatever it does":
            return self.api.call("spec", "fail", [], [*arguments[1:], arguments[0]], T * SECOND)
        dialect = "D" if command.startswith(("throttle.", "queue.p")) else "C"
        return self.api.call(dialect, command, [], arguments, T * SECOND)

    def stock(self) -> "SampleQless":
        self.do("put", "", "q", "waiting", "K", "{}", 0, "tags", '["x","y"]')
        self.do("put", "", "q", "scheduled", "K", "{}", 60)
        self.do("put", "", "q", "later", "K", "{}", 90)
        self.do("put", "", "q", "depends", "K", "{}", 0, "depends", '["waiting"]')
        for jid in ("running", "stalled", "failed", "complete"):
            self.do("put", "", jid, jid, "K", "{}", 0, "tags", '["x"]')
            self.do("pop", jid, "w", 1)
        self.do("fail", "failed", "w", "group", "message")
        self.do("complete", "complete", "w", "complete", "{}")
        self.do("track", "track", "waiting")
        self.do("recur", "q", "again", "K", "{}", "interval", 60, 600)
        self.do("config.set", "heartbeat", 30)
        self.do("throttle.set", "mail", 1)
        for jid in ("mailed", "throttled"):
            self.do("queue.put", "w", "m", jid, "K", "{}", 0, "throttles", '["mail"]')
        self.do("queue.pop", "m", "w", 2)
        return self

    def job(self, jid: str) -> Job:
        job = self.engine.find(jid)
        assert job is not None
        return job

    def check(self, *resolve: bytes) -> Any:
        reply = self.api.call("spec", "consistencycheck", [], list(resolve), T * SECOND)
        assert isinstance(reply, Generator)
        return json.loads(finished(reply))


def finished(work: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return ended.value


NOTHING_WRONG = {"consistent": True, "total": 0, "problems": [], "repaired": 0, "skipped": 0}


def test_the_sample_is_consistent() -> None:
    shop = SampleQless().stock()
    assert shop.check() == {**NOTHING_WRONG, "checked": 10}
    assert shop.check(b"resolve") == {**NOTHING_WRONG, "checked": 10}


# Inconsistencies, created by hand


def lost_lock(s: SampleQless) -> None:
    del s.engine.deadlines.leases["running"]


def lost_due_time(s: SampleQless) -> None:
    s.engine.deadlines.due["q"].pop()


def wrong_heap(s: SampleQless) -> None:
    s.engine.deadlines.due["q"].reverse()


def lost_tag(s: SampleQless) -> None:
    del s.qless.tags["y"]


def tag_at_another_time(s: SampleQless) -> None:
    s.qless.tags["y"][s.job("waiting").seq] += 1


def tag_that_the_job_does_not_have(s: SampleQless) -> None:
    s.qless.tags["y"][s.job("scheduled").seq] = 0


def tag_of_a_removed_job(s: SampleQless) -> None:
    s.qless.tags["y"][4242] = 0


def tag_not_in_events(s: SampleQless) -> None:
    extra = s.job("waiting").extra
    assert extra is not None
    extra.tags = []


def lost_option(s: SampleQless) -> None:
    s.qless.options.config.clear()


def unknown_option(s: SampleQless) -> None:
    s.qless.options.config["stats-history"] = "1"


def other_option(s: SampleQless) -> None:
    s.qless.options.config["heartbeat"] = "31"


def lost_tracking(s: SampleQless) -> None:
    s.qless.tracked.clear()


def lost_recurring(s: SampleQless) -> None:
    s.qless.recurring.clear()


def recurring_counted_elsewhere(s: SampleQless) -> None:
    s.qless.recurring["again"].count += 1


def lost_limit(s: SampleQless) -> None:
    s.qless.throttles.limits.clear()


def lost_throttled(s: SampleQless) -> None:
    s.engine.limits.parked.by_key["mail"].clear()


def wrong_count(s: SampleQless) -> None:
    s.engine.queues["q"].counts[READY] = 7


def not_completed(s: SampleQless) -> None:
    s.engine.done_untrimmed.clear()


def not_failed(s: SampleQless) -> None:
    s.engine.dead_untrimmed.clear()


def blocked_without_dependency(s: SampleQless) -> None:
    extra = s.job("depends").extra
    assert extra is not None
    extra.blockers = [4242]


PLANTED: list[tuple[Callable[[SampleQless], None], tuple[str, str, str]]] = [
    (lost_lock, ("lease", "running", "running")),
    (lost_due_time, ("due time", "later", "q")),
    (wrong_heap, ("due time", "", "q")),
    (lost_tag, ("tag", "waiting", "q")),
    (tag_at_another_time, ("tag", "waiting", "q")),
    (tag_that_the_job_does_not_have, ("tag", "scheduled", "q")),
    (tag_of_a_removed_job, ("tag", "", "")),
    (tag_not_in_events, ("tag", "waiting", "q")),
    (lost_option, ("config", "", "")),
    (unknown_option, ("config", "", "")),
    (other_option, ("config", "", "")),
    (lost_tracking, ("tracking", "", "")),
    (lost_recurring, ("recurring", "", "")),
    (recurring_counted_elsewhere, ("recurring", "", "")),
    (lost_limit, ("throttle", "", "")),
    (lost_throttled, ("limit", "throttled", "m")),
    (wrong_count, ("count", "", "q")),
    (not_completed, ("state", "complete", "complete")),
    (not_failed, ("state", "failed", "failed")),
    (blocked_without_dependency, ("dependency", "depends", "q")),
]


@pytest.mark.parametrize(
    ("plant", "problem"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED]
)
def test_an_inconsistency_is_found_and_repaired(
    plant: Callable[[SampleQless], None], problem: tuple[str, str, str]
) -> None:
    shop = SampleQless().stock()
    plant(shop)
    found = shop.check()
    assert (found["consistent"], found["repaired"]) == (False, 0)
    assert problem in [(each["what"], each["jid"], each["queue"]) for each in found["problems"]]
    assert found["total"] == len(found["problems"])
    assert all(each["detail"] for each in found["problems"])
    assert shop.check(b"0") == found, "without `resolve` the check changes no data"
    mended = shop.check(b"1")
    assert mended == {**found, "repaired": found["total"]}
    assert shop.check() == {**NOTHING_WRONG, "checked": 10}


def test_work_continues_after_a_repair() -> None:
    shop = SampleQless().stock()
    for plant in (lost_lock, lost_due_time, lost_tag, lost_recurring, wrong_count):
        plant(shop)
    shop.check(b"1")
    popped = json.loads(shop.do("pop", "q", "w", 9, now=T + 601))
    assert [job["jid"] for job in popped] == ["waiting", "scheduled", "later", "again-1"]
    assert json.loads(shop.do("tag", "get", "y"))["jobs"] == ["waiting"]
    assert json.loads(shop.do("pop", "running", "w2", 1, now=T + 100)) == {}, (
        "the job is in its grace period"
    )
    (job,) = json.loads(shop.do("pop", "running", "w2", 1, now=T + 200))
    assert job["jid"] == "running"
    assert shop.check()["consistent"]


def test_a_repair_unblocks_a_job_without_dependencies() -> None:
    shop = SampleQless().stock()
    blocked_without_dependency(shop)
    shop.check(b"1")
    assert shop.job("depends").state == READY


def test_the_check_runs_while_the_store_fails_and_the_repair_does_not() -> None:
    shop = SampleQless().stock()
    shop.engine.unavailable_reason = "disk full"
    assert shop.check()["consistent"]
    assert shop.check(b"0")["consistent"]
    with pytest.raises(ChangeRefused):
        shop.check(b"1")


def test_a_report_lists_at_most_a_thousand_problems() -> None:
    shop = SampleQless()
    for number in range(1200):
        shop.do("put", "", "q", f"job-{number}", "K", "{}", 0, "tags", '["x"]')
    shop.qless.tags.clear()
    found = shop.check(b"1")
    assert (len(found["problems"]), found["total"], found["repaired"]) == (1000, 1200, 1200)


def test_a_repair_survives_a_restart() -> None:
    store = MemoryStore()
    shop = SampleQless().stock()
    commit(shop.engine, store)
    blocked_without_dependency(shop)
    shop.check(b"1")
    commit(shop.engine, store)
    again = SampleQless(recover(store))
    assert again.check() == {**NOTHING_WRONG, "checked": 10}
    assert again.job("depends").state == READY


def test_over_the_wire() -> None:
    with QlessKeys() as talk:
        client = talk.connect()
        put(client, "a", "tags", '["x"]')
        client.asks("QLESS.CONSISTENCYCHECK", 0)
        assert client.hears_json() == {**NOTHING_WRONG, "checked": 1}
        client.asks("qless.consistencycheck", 0, "resolve")
        assert client.hears_json() == {**NOTHING_WRONG, "checked": 1}


def test_a_repair_of_a_large_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would delay all other clients."""
    monkeypatch.setattr(consistency, "MAX_REPAIRED_JOBS", 9)
    shop = SampleQless().stock()
    assert len(shop.engine.jobs) > 9
    assert shop.check(b"1") == {**NOTHING_WRONG, "checked": 10}
    lost_tag(shop)
    assert shop.check()["total"] == 1
    with pytest.raises(ScriptError, match="A running server with more than 9 jobs cannot"):
        shop.check(b"1")


def test_the_check_of_a_large_server_tolerates_changes_between_its_slices() -> None:
    shop = SampleQless().stock()
    for number in range(1000):
        shop.do("put", "", f"q{number % 7}", f"job-{number}", "K", "{}", 0, "tags", '["x"]')
    shop.do("pop", "q1", "w", 50)
    for number in range(100):
        shop.do("put", "", "q2", f"soon-{number}", "K", "{}", 100 + number)
    work = shop.api.call("spec", "consistencycheck", [], [], T * SECOND)
    assert isinstance(work, Generator)
    slices = 0
    while True:
        try:
            next(work)
        except StopIteration as ended:
            found = json.loads(ended.value)
            break
        slices += 1
        turn = slices % 5
        if turn == 0:
            shop.do("pop", "q3", "w", 3)
        elif turn == 1:
            shop.do("put", "", "q3", f"new-{slices}", "K", "{}", 0, "tags", '["y", "x"]')
        elif turn == 2:
            shop.do("cancel", f"job-{(7 * slices + 6) % 700}")
        elif turn == 3:
            shop.do("put", "", "q2", f"later-{slices}", "K", "{}", 500)
        else:
            shop.do("tag", "add", f"job-{(7 * slices + 4) % 700}", "z")
    assert slices > 50
    assert found["problems"] == []
    assert 0 < found["skipped"] <= 4


def test_a_problem_is_found_between_changes() -> None:
    shop = SampleQless().stock()
    for number in range(1000):
        shop.do("put", "", f"q{number % 7}", f"job-{number}", "K", "{}", 0)
    shop.engine.queues["q5"].counts[READY] += 1
    work = shop.api.call("spec", "consistencycheck", [], [], T * SECOND)
    assert isinstance(work, Generator)
    number = 0
    while True:
        try:
            next(work)
        except StopIteration as ended:
            found = json.loads(ended.value)
            break
        number += 1
        shop.do("put", "", "q3", f"new-{number}", "K", "{}", 0)
    assert [(each["what"], each["queue"]) for each in found["problems"]] == [("count", "q5")]
    assert found["skipped"] == 1


# Random commands cause no inconsistency

JIDS = st.sampled_from(["a", "b", "c", "d", "e"])
QUEUES = st.sampled_from(["p", "q"])
WORKERS = st.sampled_from(["w1", "w2"])
DEPENDS = st.lists(JIDS, max_size=2).map(json.dumps)
TAGS = st.lists(st.sampled_from(["x", "y", 1]), max_size=2, unique=True).map(json.dumps)
THROTTLES = st.sampled_from(["t", "ql:q:p"])
DELAY = st.sampled_from([0, 0, 5, 50])


def arguments(*parts: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    made = [part if isinstance(part, st.SearchStrategy) else st.just(part) for part in parts]
    return st.tuples(*made)


COMMANDS = st.one_of(
    arguments("put", "w", QUEUES, JIDS, "K", "{}", DELAY, "depends", DEPENDS, "tags", TAGS),
    arguments("put", "w", QUEUES, JIDS, "K", "{}", 0, "retries", st.integers(0, 2)),
    arguments("put", "w", QUEUES, JIDS, "K", "{}", 0, "priority", st.integers(-1, 1)),
    arguments("pop", QUEUES, WORKERS, st.integers(0, 3)),
    arguments("peek", QUEUES, 2),
    arguments("complete", JIDS, WORKERS, QUEUES, "{}"),
    arguments("complete", JIDS, WORKERS, QUEUES, "{}", "next", QUEUES, "delay", DELAY),
    arguments("complete", JIDS, WORKERS, QUEUES, "{}", "next", QUEUES, "depends", DEPENDS),
    arguments("fail", JIDS, WORKERS, "group", "message"),
    arguments("fail whatever it does", JIDS, "w", "group", "message"),
    arguments("retry", JIDS, QUEUES, WORKERS, DELAY),
    arguments("heartbeat", JIDS, WORKERS),
    arguments("timeout", JIDS),
    arguments("cancel", JIDS, JIDS, JIDS),
    arguments("cancel", JIDS),
    arguments("depends", JIDS, "on", JIDS),
    arguments("depends", JIDS, "off", JIDS),
    arguments("depends", JIDS, "off", "all"),
    arguments("priority", JIDS, st.integers(-1, 1)),
    arguments("tag", "add", JIDS, st.sampled_from(["x", "1"])),
    arguments("tag", "remove", JIDS, st.sampled_from(["x", "1"])),
    arguments("track", st.sampled_from(["track", "untrack"]), JIDS),
    arguments("unfail", QUEUES, "group", 2),
    arguments("pause", QUEUES),
    arguments("unpause", QUEUES),
    arguments("queue.forget", QUEUES),
    arguments("queues"),
    arguments("workers"),
    arguments("recur", QUEUES, JIDS, "K", "{}", "interval", 7, DELAY, "tags", TAGS),
    arguments("unrecur", JIDS),
    arguments("recur.update", JIDS, "queue", QUEUES),
    arguments("config.set", "jobs-history-count", st.integers(0, 2)),
    arguments("config.set", "heartbeat", st.sampled_from([-10, 5, 60])),
    arguments("config.set", "grace-period", st.sampled_from([0, 10])),
    arguments("config.unset", "jobs-history-count"),
    arguments("log", JIDS, "message"),
    arguments("throttle.set", THROTTLES, st.integers(0, 2)),
    arguments("throttle.delete", THROTTLES),
    arguments("throttle.release", THROTTLES, JIDS),
    arguments("queue.put", "w", QUEUES, JIDS, "K", "{}", 0, "throttles", '["t"]'),
    arguments("queue.pop", QUEUES, WORKERS, 2),
)
STEPS = st.lists(st.tuples(st.integers(-3, 40), COMMANDS), min_size=1, max_size=40)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_a_history_of_commands_has_no_problems(steps: list[tuple[int, Any]]) -> None:
    shop, now = SampleQless(), T
    for seconds, (command, *args) in steps:
        now += seconds
        try:
            shop.do(command, *args, now=now)
        except ScriptError:
            continue
        assert shop.check()["problems"] == []


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sets(st.integers(0, 39)))
def test_a_history_with_failed_commits_has_no_problems(
    steps: list[tuple[int, Any]], failing: set[int]
) -> None:
    store = FailingMemoryStore()
    shop, now = SampleQless(), T
    for number, (seconds, (command, *args)) in enumerate(steps):
        now += seconds
        with contextlib.suppress(ScriptError):
            shop.do(command, *args, now=now)
        store.fail = "commit" if number in failing else ""
        commit_or_revert(shop.engine, store)
        shop.engine.resume(now * SECOND)
        assert shop.check()["problems"] == []
