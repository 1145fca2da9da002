"""Whatever disagrees in the engine is found and mended, and nothing ever disagrees by itself."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant
from test_machine import OverMemory, effort

from millrace.engine import consistency
from millrace.engine.job import EARLIER, FAKTORY, FOREVER, GOQUEUE, MASENKO, QLESS, WORKQ, Job
from millrace.engine.policy import SECOND
from millrace.engine.states import DEAD, DONE, GONE, LEASED, READY, SCHEDULED
from millrace.engine.transitions import LIFE
from millrace.engine.waiters import Waiter
from scene import Scene, durable_state, ready_jids


class Town(Scene):
    """Jobs of every protocol, in every state."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.push("first")
        self.second = self.push("second")
        self.ranked = self.push("ranked", rank=5)
        self.early = self.push("early", origin=MASENKO, place=EARLIER + self.now)
        self.twin = self.push("first", "other")
        self.scheduled = self.push("scheduled", due=self.now + 60 * SECOND)
        self.blocked = self.push("blocked", origin=QLESS, blockers=[self.second.seq])
        self.lively = self.push("lively", origin=WORKQ, expires=self.now + 3600 * SECOND)
        self.leased = self.pushed_and_leased("leased", "leases")
        self.bound = self.push("bound", "bound", origin=MASENKO)
        self.engine.holders.add("connection")
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
        self.engine.alarm(("somebody", "something"), self.now + 9 * SECOND)

    def problems(self) -> list[tuple[str, str, str]]:
        report = consistency.check(self.engine)
        assert report.total == len(report.problems)
        assert report.checked == len(self.engine.jobs)
        return [(problem.what, problem.jid, problem.queue) for problem in report.problems]


def test_a_town_is_as_it_should_be() -> None:
    town = Town()
    assert town.problems() == []
    states = {job.state for job in town.engine.jobs.values()}
    assert states == {SCHEDULED, 1, READY, LEASED, DONE, DEAD}


# Each thing that can be wrong, done by hand


def wrong_seq(t: Town) -> None:
    t.engine.jobs[99] = t.engine.jobs.pop(t.second.seq)


def no_state(t: Town) -> None:
    t.second.state = GONE


def used_number(t: Town) -> None:
    t.engine.next_seq = 3


def unknown_jid(t: Town) -> None:
    del t.engine.by_jid["second"]


def newer_twin_first(t: Town) -> None:
    t.engine.by_jid["first"], t.engine.table._duplicates["first"] = t.twin, [t.first]


def lost_twin(t: Town) -> None:
    del t.engine.table._duplicates["first"]


def jid_of_nobody(t: Town) -> None:
    t.engine.by_jid["nobody"] = t.first


def unlisted(place: str, who: str) -> Callable[[Town], None]:
    def plant(t: Town) -> None:
        del getattr(t.engine, place)[getattr(t, who).seq]

    plant.__name__ = f"unlisted_{place}"
    return plant


def listed_wrongly(place: str) -> Callable[[Town], None]:
    def plant(t: Town) -> None:
        getattr(t.engine, place)[t.first.seq] = t.first

    plant.__name__ = f"listed_wrongly_as_{place}"
    return plant


def listed_though_gone(t: Town) -> None:
    gone = t.pushed_and_leased("gone", "gone")
    t.complete(gone)
    t.engine.leased[gone.seq] = gone


def state_changed_behind_the_indexes(t: Town) -> None:
    t.leased.state = READY


def not_in_line(t: Town) -> None:
    t.engine.queues["default"].ready.remove(t.second)


def twice_in_line(t: Town) -> None:
    t.engine.queues["default"].ready._fifo.append(t.first)


def in_line_elsewhere(t: Town) -> None:
    t.engine.queues["other"].ready.add(t.second)


def in_line_though_leased(t: Town) -> None:
    t.engine.queues["leases"].ready.add(t.leased)


def wrong_order(t: Town) -> None:
    t.engine.queues["default"].ready._fifo.rotate(1)


def rank_changed_behind_the_order(t: Town) -> None:
    t.ranked.rank = -5


def wrong_heap(t: Town) -> None:
    t.engine.queues["default"].ready._heap.reverse()


def lost_entry(t: Town) -> None:
    t.engine.queues["default"].ready._heap.pop()


def forgotten_ghost(t: Town) -> None:
    t.engine.queues["default"].ready._tombstones.add(12345)


def wrong_count(t: Town) -> None:
    t.engine.queues["default"].counts[READY] += 1


def wrong_retrying(t: Town) -> None:
    t.engine.retrying = 0


def wrong_early(t: Town) -> None:
    t.engine.queues["default"].ready.early += 1


def lost_queue(t: Town) -> None:
    del t.engine.queues["done"]


def misnamed_queue(t: Town) -> None:
    t.engine.queues["name"] = t.engine.queues.pop("done")


def lost_timer(who: str, *, life: bool = False) -> Callable[[Town], None]:
    def plant(t: Town) -> None:
        t.engine.timers.cancel(getattr(t, who).seq + (LIFE if life else 0))

    plant.__name__ = f"lost_timer_of_{who}"
    return plant


def timer_of_a_job_that_is_gone(t: Town) -> None:
    t.engine.timers.set(4242, FOREVER)


def timer_of_a_ready_job(t: Town) -> None:
    t.engine.timers.set(t.first.seq, t.now + SECOND)


def life_of_a_job_without_end(t: Town) -> None:
    t.engine.timers.set(t.first.seq + LIFE, t.now + SECOND)


def timer_that_never_comes(t: Town) -> None:
    t.engine.timers.heap.clear()


def wrong_order_of_timers(t: Town) -> None:
    t.engine.timers.heap.reverse()


def timer_of_a_waiter_that_is_gone(t: Town) -> None:
    t.engine.timers.set(-4242, t.now + SECOND)


def waits_for_one_that_is_gone(t: Town) -> None:
    assert t.blocked.extra is not None
    t.blocked.extra.blockers.append(4242)


def waits_for_one_that_is_done(t: Town) -> None:
    assert t.blocked.extra is not None
    t.blocked.extra.blockers.append(t.done.seq)
    t.engine.dependencies.by_blocker[t.done.seq] = [t.blocked.seq]


def waits_twice(t: Town) -> None:
    assert t.blocked.extra is not None
    t.blocked.extra.blockers *= 2


def blocked_by_nobody(t: Town) -> None:
    assert t.blocked.extra is not None
    t.blocked.extra.blockers.clear()


def blocker_does_not_know(t: Town) -> None:
    t.engine.dependencies.by_blocker.clear()


def blocker_knows_twice(t: Town) -> None:
    t.engine.dependencies.by_blocker[t.second.seq] *= 2


def blocker_thinks_so(t: Town) -> None:
    t.engine.dependencies.by_blocker[t.first.seq] = [t.second.seq]


def blocker_knows_one_that_is_gone(t: Town) -> None:
    t.engine.dependencies.by_blocker[t.first.seq] = [4242]


def stale_waiter(t: Town) -> None:
    waiter = Waiter(("empty",), "w", FAKTORY, None)
    waiter.key = -4242
    t.engine.queues["empty"].waiters[-4242] = waiter


PLANTED: list[tuple[Callable[[Town], None], tuple[str, str, str]]] = [
    (wrong_seq, ("record", "second", "default")),
    (no_state, ("record", "second", "default")),
    (used_number, ("record", "", "")),
    (unknown_jid, ("id", "second", "default")),
    (newer_twin_first, ("id", "first", "default")),
    (lost_twin, ("id", "first", "default")),
    (jid_of_nobody, ("id", "", "")),
    (unlisted("scheduled", "scheduled"), ("state", "scheduled", "default")),
    (unlisted("blocked", "blocked"), ("state", "blocked", "default")),
    (unlisted("leased", "leased"), ("state", "leased", "leases")),
    (unlisted("done", "result"), ("state", "result", "result")),
    (unlisted("dead", "dead"), ("state", "dead", "dead")),
    (unlisted("dying", "dying"), ("state", "dying", "dying")),
    (unlisted("kept", "done"), ("state", "done", "done")),
    *[
        (listed_wrongly(place), ("state", "first", "default"))
        for place in ("scheduled", "blocked", "leased", "done", "dead", "dying", "kept")
    ],
    (listed_though_gone, ("state", "gone", "gone")),
    (state_changed_behind_the_indexes, ("state", "leased", "leases")),
    (not_in_line, ("ready", "second", "default")),
    (twice_in_line, ("ready", "first", "default")),
    (in_line_elsewhere, ("ready", "second", "default")),
    (in_line_though_leased, ("ready", "leased", "leases")),
    (wrong_order, ("ready", "", "default")),
    (rank_changed_behind_the_order, ("ready", "", "default")),
    (wrong_heap, ("ready", "", "default")),
    (lost_entry, ("ready", "", "default")),
    (forgotten_ghost, ("ready", "", "default")),
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
    (timer_of_a_job_that_is_gone, ("timer", "", "")),
    (timer_of_a_ready_job, ("timer", "first", "default")),
    (life_of_a_job_without_end, ("timer", "first", "default")),
    (timer_that_never_comes, ("timer", "", "")),
    (wrong_order_of_timers, ("timer", "", "")),
    (timer_of_a_waiter_that_is_gone, ("timer", "", "")),
    (waits_for_one_that_is_gone, ("dependency", "blocked", "default")),
    (waits_for_one_that_is_done, ("dependency", "blocked", "default")),
    (waits_twice, ("dependency", "blocked", "default")),
    (blocked_by_nobody, ("dependency", "blocked", "default")),
    (blocker_does_not_know, ("dependency", "blocked", "default")),
    (blocker_knows_twice, ("dependency", "blocked", "default")),
    (blocker_thinks_so, ("dependency", "second", "default")),
    (blocker_knows_one_that_is_gone, ("dependency", "", "")),
    (stale_waiter, ("waiter", "", "empty")),
]


@pytest.mark.parametrize(
    ("plant", "problem"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED]
)
def test_what_is_wrong_is_found_and_mended(
    plant: Callable[[Town], None], problem: tuple[str, str, str]
) -> None:
    town = Town()
    plant(town)
    assert problem in town.problems()
    assert problem in town.problems(), "looking changes nothing"
    consistency.repair(town.engine, town.now)
    assert town.problems() == []


@pytest.mark.parametrize(
    "plant",
    [plant for plant, (what, *_) in PLANTED if what in {"id", "ready", "count", "timer", "waiter"}],
    ids=lambda plant: plant.__name__,
)
def test_mending_an_index_leaves_jobs_and_their_order_alone(plant: Callable[[Town], None]) -> None:
    town, untouched = Town(), Town()
    plant(town)
    if plant is rank_changed_behind_the_order:
        untouched.engine.rerank(untouched.ranked, -5, untouched.ranked.place)
    if plant is forgotten_ghost:
        assert town.engine.queues["default"].ready.pop() is town.ranked, (
            "a tombstone harms nobody yet"
        )
        town.engine.queues["default"].ready.add(town.ranked)
    consistency.repair(town.engine, town.now)
    assert durable_state(town.engine) == durable_state(untouched.engine)
    assert ready_jids(town.engine) == ready_jids(untouched.engine)
    for moment in (1, 61, 4000):
        for each in (town, untouched):
            each.advance(moment)
    assert durable_state(town.engine)["jobs"] == durable_state(untouched.engine)["jobs"]


def test_a_job_that_waited_for_nobody_is_let_go_and_its_record_written() -> None:
    town = Town()
    town.engine.take_batch()
    waits_for_one_that_is_gone(town)
    consistency.repair(town.engine, town.now)
    assert town.blocked.extra is not None
    assert town.blocked.extra.blockers == [town.second.seq]
    assert town.blocked.seq in town.engine.batch.changed
    blocked_by_nobody(town)
    consistency.repair(town.engine, town.now)
    assert town.blocked.state == READY
    assert town.causes()[-1] == "unblocked"


def test_a_waiter_gets_the_job_that_turns_up() -> None:
    town = Town()
    job = town.push("late", "empty2")
    town.engine.queues["empty2"].ready.remove(job)
    waiter = Waiter(("empty2",), "w", FAKTORY, None)
    town.engine.wait(waiter, town.now + SECOND)
    consistency.repair(town.engine, town.now)
    assert town.delivered() == [(waiter, job)]
    assert town.problems() == []


def test_a_lease_whose_connection_is_gone_still_ends() -> None:
    town = Town()
    town.engine.holders.clear()
    town.engine.halted = "disk full"
    town.engine.forsake(town.bound, town.now, "gone")
    assert town.problems() == []
    consistency.repair(town.engine, town.now)
    town.engine.halted = ""
    town.tick()
    assert (town.bound.state, town.bound.failures) == (SCHEDULED, 1)


def test_no_more_than_a_thousand_problems_are_told_one_by_one() -> None:
    scene = Scene()
    for number in range(1500):
        scene.push(f"job-{number}")
    scene.engine.by_jid.clear()
    report = consistency.check(scene.engine)
    assert (report.total, len(report.problems), report.checked) == (1500, 1000, 1500)


# Nothing disagrees by itself


class NothingDisagrees(OverMemory):
    """The machine of test_machine.py, which fails commits and restarts as well."""

    @invariant()
    def check_finds_nothing(self) -> None:
        assert consistency.check(self.engine).problems == []


TestNothingDisagrees = pytest.mark.slow(NothingDisagrees.TestCase)
TestNothingDisagrees.settings = settings(effort, max_examples=40)

ORIGINS = [WORKQ, MASENKO, FAKTORY, QLESS, GOQUEUE]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_history_of_all_protocols_has_no_disagreements(data: st.DataObject) -> None:
    scene = Scene()
    engine = scene.engine
    for _ in range(data.draw(st.integers(1, 40))):
        jobs = list(engine.jobs.values())
        job = data.draw(st.sampled_from(jobs)) if jobs else None
        choices = [act for act, may in ACTS.items() if job is None or may(job)] or [push]
        act = data.draw(st.sampled_from(choices)) if job is not None else push
        act(scene, job, data)
        engine.deliveries.clear()
        assert consistency.check(engine).problems == []


def push(scene: Scene, job: Job | None, data: st.DataObject) -> None:
    origin = data.draw(st.sampled_from(ORIGINS))
    scene.push(
        data.draw(st.sampled_from(["a", "b", "c", "d"])),
        data.draw(st.sampled_from(["p", "q"])),
        origin=origin,
        retries=data.draw(st.integers(0, 2)),
        rank=data.draw(st.sampled_from([0, 0, 1, -1])),
        due=data.draw(st.sampled_from([0, 0, scene.now + 30 * SECOND])),
        blockers=[job.seq] if job and data.draw(st.booleans()) else [],
        dead_queue=data.draw(st.sampled_from(["", "p"])) if origin == MASENKO else "",
        expires=scene.now + 50 * SECOND if origin == WORKQ else 0,
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
    scene.engine.rerank(job, data.draw(st.integers(-1, 1)), job.place)


def requeue(scene: Scene, job: Job, data: st.DataObject) -> None:
    scene.engine.requeue(job, scene.now)


def wait(scene: Scene, job: Job, data: st.DataObject) -> None:
    scene.wait(data.draw(st.sampled_from(["p", "q", "r"])))


def anything(_job: Any) -> bool:
    return True


ACTS: dict[Callable[[Scene, Any, st.DataObject], None], Callable[[Job], bool]] = {
    push: anything,
    lease: anything,
    move: anything,
    advance: anything,
    cancel: anything,
    wait: anything,
    fail: lambda job: job.state == LEASED,
    complete: lambda job: job.state == LEASED,
    rerank: lambda job: job.state == READY,
    requeue: lambda job: job.state in {SCHEDULED, DEAD},
}
