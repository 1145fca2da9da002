"""QLESS.CONSISTENCYCHECK, which the spec names and the original never had."""

import contextlib
import json
from collections.abc import Callable
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
from millrace.protocols.qless import QlessApi, QlessHub
from millrace.protocols.qless.contract import Refused, ScriptError
from millrace.store import MemoryStore
from scene import commit, commit_or_revert, recover

T = 1352375209
SECOND = 1_000_000


class Shop:
    """Something of everything that Qless keeps."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or Engine(Random(1))
        self.hub = QlessHub(self.engine, started_at=T * SECOND)
        self.api = QlessApi(self.hub)
        self.qless = self.api.qless

    def do(self, command: str, *args: object, now: float = T) -> Any:
        words = [str(word).encode() for word in (now, *args)]
        if command == "fail whatever it does":
            return self.api.call("spec", "fail", [], [*words[1:], words[0]], T * SECOND)
        dialect = "D" if command.startswith(("throttle.", "queue.p")) else "C"
        return self.api.call(dialect, command, [], words, T * SECOND)

    def stock(self) -> "Shop":
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
        assert isinstance(reply, bytes)
        return json.loads(reply)


NOTHING_WRONG = {"consistent": True, "total": 0, "problems": [], "repaired": 0}


def test_a_shop_in_order() -> None:
    shop = Shop().stock()
    assert shop.check() == {**NOTHING_WRONG, "checked": 10}
    assert shop.check(b"resolve") == {**NOTHING_WRONG, "checked": 10}


# Each thing that can be wrong, done by hand


def lost_lock(s: Shop) -> None:
    del s.qless.locks["running"]


def lost_due_time(s: Shop) -> None:
    s.qless.schedule["q"].pop()


def wrong_heap(s: Shop) -> None:
    s.qless.schedule["q"].reverse()


def lost_tag(s: Shop) -> None:
    del s.qless.tags["y"]


def tag_at_another_time(s: Shop) -> None:
    s.qless.tags["y"][s.job("waiting").seq] += 1


def tag_that_the_job_does_not_have(s: Shop) -> None:
    s.qless.tags["y"][s.job("scheduled").seq] = 0


def tag_of_a_job_that_is_gone(s: Shop) -> None:
    s.qless.tags["y"][4242] = 0


def tag_not_in_events(s: Shop) -> None:
    extra = s.job("waiting").extra
    assert extra is not None
    extra.tags = []


def lost_option(s: Shop) -> None:
    s.qless.config.clear()


def option_not_kept(s: Shop) -> None:
    s.qless.config["stats-history"] = "1"


def other_option(s: Shop) -> None:
    s.qless.config["heartbeat"] = "31"


def lost_tracking(s: Shop) -> None:
    s.qless.tracked.clear()


def lost_recurring(s: Shop) -> None:
    s.qless.recurring.clear()


def recurring_counted_elsewhere(s: Shop) -> None:
    s.qless.recurring["again"].count += 1


def lost_limit(s: Shop) -> None:
    s.qless.throttles.limits.clear()


def lost_throttled(s: Shop) -> None:
    s.qless.throttles.pending["mail"].clear()


def wrong_count(s: Shop) -> None:
    s.engine.queues["q"].counts[READY] = 7


def not_completed(s: Shop) -> None:
    s.engine.kept.clear()


def not_failed(s: Shop) -> None:
    s.engine.dying.clear()


def depends_on_nothing(s: Shop) -> None:
    extra = s.job("depends").extra
    assert extra is not None
    extra.blockers = [4242]


PLANTED: list[tuple[Callable[[Shop], None], tuple[str, str, str]]] = [
    (lost_lock, ("lock", "running", "running")),
    (lost_due_time, ("schedule", "later", "q")),
    (wrong_heap, ("schedule", "", "q")),
    (lost_tag, ("tag", "waiting", "q")),
    (tag_at_another_time, ("tag", "waiting", "q")),
    (tag_that_the_job_does_not_have, ("tag", "scheduled", "q")),
    (tag_of_a_job_that_is_gone, ("tag", "", "")),
    (tag_not_in_events, ("tag", "waiting", "q")),
    (lost_option, ("config", "", "")),
    (option_not_kept, ("config", "", "")),
    (other_option, ("config", "", "")),
    (lost_tracking, ("tracking", "", "")),
    (lost_recurring, ("recurring", "", "")),
    (recurring_counted_elsewhere, ("recurring", "", "")),
    (lost_limit, ("throttle", "", "")),
    (lost_throttled, ("throttle", "throttled", "m")),
    (wrong_count, ("count", "", "q")),
    (not_completed, ("state", "complete", "complete")),
    (not_failed, ("state", "failed", "failed")),
    (depends_on_nothing, ("dependency", "depends", "q")),
]


@pytest.mark.parametrize(
    ("plant", "problem"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED]
)
def test_what_is_wrong_is_found_and_mended(
    plant: Callable[[Shop], None], problem: tuple[str, str, str]
) -> None:
    shop = Shop().stock()
    plant(shop)
    found = shop.check()
    assert (found["consistent"], found["repaired"]) == (False, 0)
    assert problem in [(each["what"], each["jid"], each["queue"]) for each in found["problems"]]
    assert found["total"] == len(found["problems"])
    assert all(each["detail"] for each in found["problems"])
    assert shop.check(b"0") == found, "without `resolve` nothing changes"
    mended = shop.check(b"1")
    assert mended == {**found, "repaired": found["total"]}
    assert shop.check() == {**NOTHING_WRONG, "checked": 10}


def test_the_mended_shop_works_on() -> None:
    shop = Shop().stock()
    for plant in (lost_lock, lost_due_time, lost_tag, lost_recurring, wrong_count):
        plant(shop)
    shop.check(b"1")
    popped = json.loads(shop.do("pop", "q", "w", 9, now=T + 601))
    assert [job["jid"] for job in popped] == ["waiting", "scheduled", "later", "again-1"]
    assert json.loads(shop.do("tag", "get", "y"))["jobs"] == ["waiting"]
    assert json.loads(shop.do("pop", "running", "w2", 1, now=T + 100)) == {}, "its time of grace"
    (job,) = json.loads(shop.do("pop", "running", "w2", 1, now=T + 200))
    assert job["jid"] == "running"
    assert shop.check()["consistent"]


def test_a_job_that_depends_on_nothing_is_let_go() -> None:
    shop = Shop().stock()
    depends_on_nothing(shop)
    shop.check(b"1")
    assert shop.job("depends").state == READY


def test_looking_goes_on_while_nothing_can_be_kept_but_mending_does_not() -> None:
    shop = Shop().stock()
    shop.engine.halted = "disk full"
    assert shop.check()["consistent"]
    assert shop.check(b"0")["consistent"]
    with pytest.raises(Refused):
        shop.check(b"1")


def test_no_more_than_a_thousand_problems_are_told_one_by_one() -> None:
    shop = Shop()
    for number in range(1200):
        shop.do("put", "", "q", f"job-{number}", "K", "{}", 0, "tags", '["x"]')
    shop.qless.tags.clear()
    found = shop.check(b"1")
    assert (len(found["problems"]), found["total"], found["repaired"]) == (1000, 1200, 1200)


def test_what_was_mended_survives_a_restart() -> None:
    store = MemoryStore()
    shop = Shop().stock()
    commit(shop.engine, store)
    depends_on_nothing(shop)
    shop.check(b"1")
    commit(shop.engine, store)
    again = Shop(recover(store))
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


# Nothing disagrees by itself

JIDS = st.sampled_from(["a", "b", "c", "d", "e"])
QUEUES = st.sampled_from(["p", "q"])
WORKERS = st.sampled_from(["w1", "w2"])
DEPENDS = st.lists(JIDS, max_size=2).map(json.dumps)
TAGS = st.lists(st.sampled_from(["x", "y", 1]), max_size=2, unique=True).map(json.dumps)
THROTTLES = st.sampled_from(["t", "ql:q:p"])
DELAY = st.sampled_from([0, 0, 5, 50])


def words(*parts: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    made = [part if isinstance(part, st.SearchStrategy) else st.just(part) for part in parts]
    return st.tuples(*made)


COMMANDS = st.one_of(
    words("put", "w", QUEUES, JIDS, "K", "{}", DELAY, "depends", DEPENDS, "tags", TAGS),
    words("put", "w", QUEUES, JIDS, "K", "{}", 0, "retries", st.integers(0, 2)),
    words("put", "w", QUEUES, JIDS, "K", "{}", 0, "priority", st.integers(-1, 1)),
    words("pop", QUEUES, WORKERS, st.integers(0, 3)),
    words("peek", QUEUES, 2),
    words("complete", JIDS, WORKERS, QUEUES, "{}"),
    words("complete", JIDS, WORKERS, QUEUES, "{}", "next", QUEUES, "delay", DELAY),
    words("complete", JIDS, WORKERS, QUEUES, "{}", "next", QUEUES, "depends", DEPENDS),
    words("fail", JIDS, WORKERS, "group", "message"),
    words("fail whatever it does", JIDS, "w", "group", "message"),
    words("retry", JIDS, QUEUES, WORKERS, DELAY),
    words("heartbeat", JIDS, WORKERS),
    words("timeout", JIDS),
    words("cancel", JIDS, JIDS, JIDS),
    words("cancel", JIDS),
    words("depends", JIDS, "on", JIDS),
    words("depends", JIDS, "off", JIDS),
    words("depends", JIDS, "off", "all"),
    words("priority", JIDS, st.integers(-1, 1)),
    words("tag", "add", JIDS, st.sampled_from(["x", "1"])),
    words("tag", "remove", JIDS, st.sampled_from(["x", "1"])),
    words("track", st.sampled_from(["track", "untrack"]), JIDS),
    words("unfail", QUEUES, "group", 2),
    words("pause", QUEUES),
    words("unpause", QUEUES),
    words("queue.forget", QUEUES),
    words("queues"),
    words("workers"),
    words("recur", QUEUES, JIDS, "K", "{}", "interval", 7, DELAY, "tags", TAGS),
    words("unrecur", JIDS),
    words("recur.update", JIDS, "queue", QUEUES),
    words("config.set", "jobs-history-count", st.integers(0, 2)),
    words("config.set", "heartbeat", st.sampled_from([-10, 5, 60])),
    words("config.set", "grace-period", st.sampled_from([0, 10])),
    words("config.unset", "jobs-history-count"),
    words("log", JIDS, "message"),
    words("throttle.set", THROTTLES, st.integers(0, 2)),
    words("throttle.delete", THROTTLES),
    words("throttle.release", THROTTLES, JIDS),
    words("queue.put", "w", QUEUES, JIDS, "K", "{}", 0, "throttles", '["t"]'),
    words("queue.pop", QUEUES, WORKERS, 2),
)
STEPS = st.lists(st.tuples(st.integers(-3, 40), COMMANDS), min_size=1, max_size=40)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_a_history_of_commands_has_no_disagreements(steps: list[tuple[int, Any]]) -> None:
    shop, now = Shop(), T
    for seconds, (command, *args) in steps:
        now += seconds
        try:
            shop.do(command, *args, now=now)
        except ScriptError:
            continue
        assert shop.check()["problems"] == []


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sets(st.integers(0, 39)))
def test_nor_has_one_whose_commits_fail(steps: list[tuple[int, Any]], failing: set[int]) -> None:
    store = FailingMemoryStore()
    shop, now = Shop(), T
    for number, (seconds, (command, *args)) in enumerate(steps):
        now += seconds
        with contextlib.suppress(ScriptError):
            shop.do(command, *args, now=now)
        store.fail = "commit" if number in failing else ""
        commit_or_revert(shop.engine, store)
        shop.engine.resume(now * SECOND)
        assert shop.check()["problems"] == []
