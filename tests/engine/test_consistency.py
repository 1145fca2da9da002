"""The consistency check finds and repairs every inconsistency of the engine, and random commands
cause none.
"""

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant
from test_machine import MemoryStoreMachine, effort

from millrace.engine import consistency
from millrace.engine.job import BEFORE_ARRIVALS, FOREVER, SECOND, Job
from millrace.engine.job_timers import TTL_KEY_OFFSET
from millrace.engine.states import DEAD, DONE, GONE, LEASED, READY, SCHEDULED
from millrace.engine.waiters import Waiter
from millrace.protocols.registry import FAKTORY, GOQUEUE, MASENKO, QLESS, WORKQ
from scene import Scene, durable_state, ready_jids


class SampleEngine(Scene):
    """An engine with jobs of every protocol in every state."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.push("first")
        self.second = self.push("second")
        self.ranked = self.push("ranked", rank=5)
        self.early = self.push("early", origin=MASENKO, position=BEFORE_ARRIVALS + self.now)
        self.twin = self.push("first", "other")
        self.scheduled = self.push("scheduled", due_at=self.now + 60 * SECOND)
        self.blocked = self.push("blocked", origin=QLESS, blockers=[self.second.seq])
        self.lively = self.push("lively", origin=WORKQ, expires_at=self.now + 3600 * SECOND)
        self.leased = self.pushed_and_leased("leased", "leases")
        self.bound = self.push("bound", "bound", origin=MASENKO)
        self.engine.leases.holders.add("connection")
        self.engine.lease(("bound",), "connection", MASENKO, self.now)
        self.done = self.pushed_and_leased("done", "done", origin=QLESS)
        self.complete(self.done)
        self.dead = self.pushed_and_leased("dead", "dead", retries=-1)
        self.fail(self.dead)
        self.dying = self.pushed_and_leased("dying", "dying", origin=QLESS, retries=0)
        self.fail(self.dying)
        self.retried = self.pushed_and_leased("retried", "retried")
        self.fail(self.retried)
        self.result = self.pushed_and_leased("result", "result")
        self.complete(self.result, keep_until=self.now + SECOND)
        self.waiter = self.wait("empty", seconds=5)
        self.engine.set_alarm(("somebody", "something"), self.now + 9 * SECOND)

    def problems(self) -> list[tuple[str, str, str]]:
        report = consistency.check_engine(self.engine)
        assert report.total == len(report.problems)
        assert report.checked == len(self.engine.jobs)
        return [(problem.what, problem.jid, problem.queue) for problem in report.problems]


def test_the_sample_engine_is_consistent() -> None:
    sample = SampleEngine()
    assert sample.problems() == []
    states = {job.state for job in sample.engine.jobs.values()}
    assert states == {SCHEDULED, 1, READY, LEASED, DONE, DEAD}


# Inconsistencies, created by hand


def wrong_seq(t: SampleEngine) -> None:
    t.engine.jobs[99] = t.engine.jobs.pop(t.second.seq)


def no_state(t: SampleEngine) -> None:
    t.second.state = GONE


def used_number(t: SampleEngine) -> None:
    t.engine.next_seq = 3


def unknown_jid(t: SampleEngine) -> None:
    del t.engine.by_jid["second"]


def newer_twin_first(t: SampleEngine) -> None:
    t.engine.by_jid["first"], t.engine.table._duplicates["first"] = t.twin, [t.first]


def lost_twin(t: SampleEngine) -> None:
    del t.engine.table._duplicates["first"]


def jid_of_a_missing_job(t: SampleEngine) -> None:
    t.engine.by_jid["nobody"] = t.first


def unlisted(place: str, who: str) -> Callable[[SampleEngine], None]:
    def plant(t: SampleEngine) -> None:
        del getattr(t.engine, place)[getattr(t, who).seq]

    plant.__name__ = f"unlisted_{place}"
    return plant


def listed_wrongly(place: str) -> Callable[[SampleEngine], None]:
    def plant(t: SampleEngine) -> None:
        getattr(t.engine, place)[t.first.seq] = t.first

    plant.__name__ = f"listed_wrongly_as_{place}"
    return plant


def listed_though_removed(t: SampleEngine) -> None:
    removed = t.pushed_and_leased("gone", "gone")
    t.complete(removed)
    t.engine.leased[removed.seq] = removed


def state_changed_behind_the_indexes(t: SampleEngine) -> None:
    t.leased.state = READY


def not_in_line(t: SampleEngine) -> None:
    t.engine.queues["default"].ready.remove(t.second)


def twice_in_line(t: SampleEngine) -> None:
    t.engine.queues["default"].ready._fifo.append(t.first)


def in_line_elsewhere(t: SampleEngine) -> None:
    t.engine.queues["other"].ready.add(t.second)


def in_line_though_leased(t: SampleEngine) -> None:
    t.engine.queues["leases"].ready.add(t.leased)


def wrong_order(t: SampleEngine) -> None:
    t.engine.queues["default"].ready._fifo.rotate(1)


def rank_changed_behind_the_order(t: SampleEngine) -> None:
    t.ranked.rank = -5


def wrong_heap(t: SampleEngine) -> None:
    t.engine.queues["default"].ready._heap.reverse()


def lost_entry(t: SampleEngine) -> None:
    t.engine.queues["default"].ready._heap.pop()


def missing_tombstone(t: SampleEngine) -> None:
    t.engine.queues["default"].ready._tombstones.add(12345)


def wrong_count(t: SampleEngine) -> None:
    t.engine.queues["default"].counts[READY] += 1


def wrong_retrying(t: SampleEngine) -> None:
    t.engine.states.retrying = 0


def wrong_early(t: SampleEngine) -> None:
    t.engine.queues["default"].ready.front_count += 1


def lost_queue(t: SampleEngine) -> None:
    del t.engine.queues["done"]


def misnamed_queue(t: SampleEngine) -> None:
    t.engine.queues["name"] = t.engine.queues.pop("done")


def lost_lease(t: SampleEngine) -> None:
    t.engine.leases.remove(t.bound)


def unowned_lease(t: SampleEngine) -> None:
    t.engine.leases.by_holder["connection"].clear()


def lost_timer(who: str, *, life: bool = False) -> Callable[[SampleEngine], None]:
    def plant(t: SampleEngine) -> None:
        t.engine.timers.cancel(getattr(t, who).seq + (TTL_KEY_OFFSET if life else 0))

    plant.__name__ = f"lost_timer_of_{who}"
    return plant


def timer_of_a_removed_job(t: SampleEngine) -> None:
    t.engine.timers.set(4242, FOREVER)


def timer_of_a_ready_job(t: SampleEngine) -> None:
    t.engine.timers.set(t.first.seq, t.now + SECOND)


def expiry_timer_of_a_job_without_expiry(t: SampleEngine) -> None:
    t.engine.timers.set(t.first.seq + TTL_KEY_OFFSET, t.now + SECOND)


def timer_without_heap_entry(t: SampleEngine) -> None:
    t.engine.timers.heap.clear()


def wrong_order_of_timers(t: SampleEngine) -> None:
    t.engine.timers.heap.reverse()


def timer_of_a_removed_waiter(t: SampleEngine) -> None:
    t.engine.timers.set(-4242, t.now + SECOND)


def waits_for_a_removed_job(t: SampleEngine) -> None:
    assert t.blocked.extra is not None
    t.blocked.extra.blockers.append(4242)


def waits_for_a_done_job(t: SampleEngine) -> None:
    assert t.blocked.extra is not None
    t.blocked.extra.blockers.append(t.done.seq)
    t.engine.dependencies.by_blocker[t.done.seq] = [t.blocked.seq]


def waits_twice(t: SampleEngine) -> None:
    assert t.blocked.extra is not None
    t.blocked.extra.blockers *= 2


def blocked_without_blocker(t: SampleEngine) -> None:
    assert t.blocked.extra is not None
    t.blocked.extra.blockers.clear()


def not_listed_with_its_blocker(t: SampleEngine) -> None:
    t.engine.dependencies.by_blocker.clear()


def listed_twice_with_its_blocker(t: SampleEngine) -> None:
    t.engine.dependencies.by_blocker[t.second.seq] *= 2


def listed_with_a_wrong_blocker(t: SampleEngine) -> None:
    t.engine.dependencies.by_blocker[t.first.seq] = [t.second.seq]


def removed_job_listed_with_a_blocker(t: SampleEngine) -> None:
    t.engine.dependencies.by_blocker[t.first.seq] = [4242]


def stale_waiter(t: SampleEngine) -> None:
    waiter = Waiter(("empty",), "w", FAKTORY, None)
    waiter.key = -4242
    t.engine.queues["empty"].waiters[-4242] = waiter


PLANTED: list[tuple[Callable[[SampleEngine], None], tuple[str, str, str]]] = [
    (lost_lease, ("lease", "bound", "bound")),
    (unowned_lease, ("lease", "", "")),
    (wrong_seq, ("record", "second", "default")),
    (no_state, ("record", "second", "default")),
    (used_number, ("record", "", "")),
    (unknown_jid, ("id", "second", "default")),
    (newer_twin_first, ("id", "first", "default")),
    (lost_twin, ("id", "first", "default")),
    (jid_of_a_missing_job, ("id", "", "")),
    (unlisted("scheduled", "scheduled"), ("state", "scheduled", "default")),
    (unlisted("blocked", "blocked"), ("state", "blocked", "default")),
    (unlisted("leased", "leased"), ("state", "leased", "leases")),
    (unlisted("done", "result"), ("state", "result", "result")),
    (unlisted("dead", "dead"), ("state", "dead", "dead")),
    (unlisted("dead_untrimmed", "dying"), ("state", "dying", "dying")),
    (unlisted("done_untrimmed", "done"), ("state", "done", "done")),
    *[
        (listed_wrongly(place), ("state", "first", "default"))
        for place in (
            "scheduled",
            "blocked",
            "leased",
            "done",
            "dead",
            "dead_untrimmed",
            "done_untrimmed",
        )
    ],
    (listed_though_removed, ("state", "gone", "gone")),
    (state_changed_behind_the_indexes, ("state", "leased", "leases")),
    (not_in_line, ("ready", "second", "default")),
    (twice_in_line, ("ready", "first", "default")),
    (in_line_elsewhere, ("ready", "second", "default")),
    (in_line_though_leased, ("ready", "leased", "leases")),
    (wrong_order, ("ready", "", "default")),
    (rank_changed_behind_the_order, ("ready", "", "default")),
    (wrong_heap, ("ready", "", "default")),
    (lost_entry, ("ready", "", "default")),
    (missing_tombstone, ("ready", "", "default")),
    (wrong_count, ("count", "", "default")),
    (wrong_retrying, ("count", "", "")),
    (wrong_early, ("count", "", "default")),
    (lost_queue, ("queue", "done", "done")),
    (misnamed_queue, ("queue", "", "done")),
    (lost_timer("scheduled"), ("timer", "scheduled", "default")),
    (lost_timer("retried"), ("timer", "retried", "retried")),
    (lost_timer("leased"), ("timer", "leased", "leases")),
    (lost_timer("dead"), ("timer", "dead", "dead")),
    (lost_timer("lively", life=True), ("timer", "lively", "default")),
    (timer_of_a_removed_job, ("timer", "", "")),
    (timer_of_a_ready_job, ("timer", "first", "default")),
    (expiry_timer_of_a_job_without_expiry, ("timer", "first", "default")),
    (timer_without_heap_entry, ("timer", "", "")),
    (wrong_order_of_timers, ("timer", "", "")),
    (timer_of_a_removed_waiter, ("timer", "", "")),
    (waits_for_a_removed_job, ("dependency", "blocked", "default")),
    (waits_for_a_done_job, ("dependency", "blocked", "default")),
    (waits_twice, ("dependency", "blocked", "default")),
    (blocked_without_blocker, ("dependency", "blocked", "default")),
    (not_listed_with_its_blocker, ("dependency", "blocked", "default")),
    (listed_twice_with_its_blocker, ("dependency", "blocked", "default")),
    (listed_with_a_wrong_blocker, ("dependency", "second", "default")),
    (removed_job_listed_with_a_blocker, ("dependency", "", "")),
    (stale_waiter, ("waiter", "", "empty")),
]


@pytest.mark.parametrize(
    ("plant", "problem"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED]
)
def test_an_inconsistency_is_found_and_repaired(
    plant: Callable[[SampleEngine], None], problem: tuple[str, str, str]
) -> None:
    sample = SampleEngine()
    plant(sample)
    assert problem in sample.problems()
    assert problem in sample.problems(), "the check changes nothing"
    consistency.repair(sample.engine, sample.now)
    assert sample.problems() == []


@pytest.mark.parametrize(
    "plant",
    [plant for plant, (what, *_) in PLANTED if what in {"id", "ready", "count", "timer", "waiter"}],
    ids=lambda plant: plant.__name__,
)
def test_the_repair_of_an_index_keeps_jobs_and_their_order(
    plant: Callable[[SampleEngine], None],
) -> None:
    sample, untouched = SampleEngine(), SampleEngine()
    plant(sample)
    if plant is rank_changed_behind_the_order:
        untouched.engine.set_rank(untouched.ranked, -5, untouched.ranked.position)
    if plant is missing_tombstone:
        assert sample.engine.queues["default"].ready.pop() is sample.ranked, (
            "the tombstone has no effect yet"
        )
        sample.engine.queues["default"].ready.add(sample.ranked)
    consistency.repair(sample.engine, sample.now)
    assert durable_state(sample.engine) == durable_state(untouched.engine)
    assert ready_jids(sample.engine) == ready_jids(untouched.engine)
    for delay in (1, 61, 4000):
        for each in (sample, untouched):
            each.advance(delay)
    assert durable_state(sample.engine)["jobs"] == durable_state(untouched.engine)["jobs"]


def test_a_repair_unblocks_a_job_without_blockers_and_writes_its_record() -> None:
    sample = SampleEngine()
    sample.engine.take_changes()
    waits_for_a_removed_job(sample)
    consistency.repair(sample.engine, sample.now)
    assert sample.blocked.extra is not None
    assert sample.blocked.extra.blockers == [sample.second.seq]
    assert sample.blocked.seq in sample.engine.change_set.changed
    blocked_without_blocker(sample)
    consistency.repair(sample.engine, sample.now)
    assert sample.blocked.state == READY
    assert sample.causes()[-1] == "unblocked"


def test_a_repair_delivers_a_found_job_to_its_waiter() -> None:
    sample = SampleEngine()
    job = sample.push("late", "empty2")
    sample.engine.queues["empty2"].ready.remove(job)
    waiter = Waiter(("empty2",), "w", FAKTORY, None)
    sample.engine.add_waiter(waiter, sample.now + SECOND)
    consistency.repair(sample.engine, sample.now)
    assert sample.delivered() == [(waiter, job)]
    assert sample.problems() == []


def test_a_lease_of_a_lost_connection_ends_after_a_repair() -> None:
    sample = SampleEngine()
    sample.engine.leases.holders.clear()
    sample.engine.unavailable_reason = "disk full"
    sample.engine.leases.end_after_disconnect(sample.bound, sample.now, "gone")
    assert sample.problems() == []
    consistency.repair(sample.engine, sample.now)
    sample.engine.unavailable_reason = ""
    sample.tick()
    assert (sample.bound.state, sample.bound.failures) == (SCHEDULED, 1)


def test_a_report_lists_at_most_a_thousand_problems() -> None:
    scene = Scene()
    for number in range(1500):
        scene.push(f"job-{number}")
    scene.engine.by_jid.clear()
    report = consistency.check_engine(scene.engine)
    assert (report.total, len(report.problems), report.checked) == (1500, 1000, 1500)


@pytest.mark.parametrize("slices", range(0, 45, 4))
def test_a_flush_during_a_check_is_not_reported_as_a_problem(slices: int) -> None:
    scene = Scene()
    for number in range(300):
        scene.push(f"ready-{number}", rank=number % 7)
        scene.push(f"later-{number}", "others", due_at=scene.now + SECOND)
    scene.engine.pause("default", paused=True, now=scene.now)
    scene.wait("default", "others", seconds=1000)  # a queue with waiters survives a flush
    scene.pushed_and_leased("retried", "retries")
    scene.fail(scene.engine.by_jid["retried"])
    reports = []

    def check() -> Iterator[None]:
        reports.append((yield from consistency.check_in_slices(scene.engine)))

    work = check()
    for _ in range(slices):
        next(work)
    scene.engine.flush(scene.now)
    for _ in work:
        pass
    assert [report.problems for report in reports] == [[]]


# Nothing disagrees by itself


class ConsistentMachine(MemoryStoreMachine):
    """The machine of test_machine.py, which also makes commits fail and restarts the engine."""

    @invariant()
    def check_finds_no_problem(self) -> None:
        assert consistency.check_engine(self.engine).problems == []


TestNothingDisagrees = pytest.mark.slow(ConsistentMachine.TestCase)
TestNothingDisagrees.settings = settings(effort, max_examples=40)

ORIGINS = [WORKQ, MASENKO, FAKTORY, QLESS, GOQUEUE]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_history_of_all_protocols_has_no_problems(data: st.DataObject) -> None:
    scene = Scene()
    engine = scene.engine
    for _ in range(data.draw(st.integers(1, 40))):
        jobs = list(engine.jobs.values())
        job = data.draw(st.sampled_from(jobs)) if jobs else None
        choices = [act for act, may in ACTS.items() if job is None or may(job)] or [push]
        act = data.draw(st.sampled_from(choices)) if job is not None else push
        act(scene, job, data)
        engine.waiters.deliveries.clear()
        assert consistency.check_engine(engine).problems == []


def push(scene: Scene, job: Job | None, data: st.DataObject) -> None:
    origin = data.draw(st.sampled_from(ORIGINS))
    scene.push(
        data.draw(st.sampled_from(["a", "b", "c", "d"])),
        data.draw(st.sampled_from(["p", "q"])),
        origin=origin,
        retries=data.draw(st.integers(0, 2)),
        rank=data.draw(st.sampled_from([0, 0, 1, -1])),
        due_at=data.draw(st.sampled_from([0, 0, scene.now + 30 * SECOND])),
        blockers=[job.seq] if job and data.draw(st.booleans()) else [],
        dead_queue=data.draw(st.sampled_from(["", "p"])) if origin == MASENKO else "",
        expires_at=scene.now + 50 * SECOND if origin == WORKQ else 0,
    )


def lease(scene: Scene, job: Job, data: st.DataObject) -> None:
    actor = data.draw(st.sampled_from(ORIGINS))
    until = scene.now + 60 * SECOND if actor == QLESS else None
    scene.engine.lease(("p", "q"), "w", actor, scene.now, until)


def move(scene: Scene, job: Job, data: st.DataObject) -> None:
    due = data.draw(st.sampled_from([0, scene.now + 10 * SECOND]))
    scene.engine.move(job, data.draw(st.sampled_from(["p", "q"])), scene.now, QLESS, due=due)


def advance(scene: Scene, job: Job, data: st.DataObject) -> None:
    scene.advance(data.draw(st.sampled_from([1, 20, 60, 2000])))


def cancel(scene: Scene, job: Job, data: st.DataObject) -> None:
    scene.engine.cancel(job, scene.now)


def fail(scene: Scene, job: Job, data: st.DataObject) -> None:
    scene.fail(job)


def complete(scene: Scene, job: Job, data: st.DataObject) -> None:
    scene.complete(job)


def rerank(scene: Scene, job: Job, data: st.DataObject) -> None:
    scene.engine.set_rank(job, data.draw(st.integers(-1, 1)), job.position)


def requeue(scene: Scene, job: Job, data: st.DataObject) -> None:
    scene.engine.retry_now(job, scene.now)


def wait(scene: Scene, job: Job, data: st.DataObject) -> None:
    scene.wait(data.draw(st.sampled_from(["p", "q", "r"])))


def any_job(_job: Any) -> bool:
    return True


ACTS: dict[Callable[[Scene, Any, st.DataObject], None], Callable[[Job], bool]] = {
    push: any_job,
    lease: any_job,
    move: any_job,
    advance: any_job,
    cancel: any_job,
    wait: any_job,
    fail: lambda job: job.state == LEASED,
    complete: lambda job: job.state == LEASED,
    rerank: lambda job: job.state == READY,
    requeue: lambda job: job.state in {SCHEDULED, DEAD},
}


def test_a_check_needs_little_memory_per_job() -> None:
    scene, count = Scene(), 20_000
    for number in range(count):
        scene.push(f"job-{number}")
    scene.engine.take_changes()
    tracemalloc.start()
    try:
        assert not consistency.check_engine(scene.engine).problems
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * count
