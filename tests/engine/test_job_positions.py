"""Positions of ready jobs: before arrivals, in order of arrival, or after arrivals."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import consistent
from test_queues import job as ready_job

from millrace.engine.job import AFTER_ARRIVALS, BEFORE_ARRIVALS, SECOND, Job
from millrace.engine.ready import ReadyQueue
from millrace.engine.states import READY, SCHEDULED
from millrace.protocols.registry import FAKTORY, GOQUEUE, MASENKO, QLESS, WORKQ
from millrace.store import MemoryStore
from scene import START, MasenkoScene, Scene, ready_jids, restarted


@pytest.fixture
def scene() -> Scene:
    return Scene()


def leased_jids(scene: Scene, count: int) -> list[str]:
    return [scene.lease().jid for _ in range(count)]


# Fixed positions


def test_early_jobs_are_before_arrivals_and_late_jobs_after(scene):
    scene.push("late", position=AFTER_ARRIVALS)
    scene.push("arrival-1")
    scene.push("early", position=BEFORE_ARRIVALS + START)
    scene.advance(10)
    scene.push("arrival-2")
    assert ready_jids(scene.engine) == ["early", "arrival-1", "arrival-2", "late"]
    assert leased_jids(scene, 4) == ["early", "arrival-1", "arrival-2", "late"]


def test_early_jobs_are_ordered_by_position_then_seq(scene):
    for jid, place in (("c", 30), ("a", 10), ("d", 30), ("b", 20), ("first", -(1 << 50))):
        scene.push(jid, position=BEFORE_ARRIVALS + place)
    assert leased_jids(scene, 5) == ["first", "a", "b", "c", "d"]


def test_the_rank_precedes_the_position(scene):
    scene.push("low", rank=-1, position=BEFORE_ARRIVALS)
    scene.push("arrival")
    scene.push("high", rank=1, position=AFTER_ARRIVALS)
    scene.push("early", position=BEFORE_ARRIVALS + 9)
    scene.push("high and early", rank=1, position=BEFORE_ARRIVALS + 9)
    assert leased_jids(scene, 5) == ["high and early", "high", "early", "arrival", "low"]


@pytest.mark.parametrize(
    "place", [BEFORE_ARRIVALS + 7, AFTER_ARRIVALS + 7, BEFORE_ARRIVALS, AFTER_ARRIVALS]
)
def test_a_fixed_position_stays_through_every_transition_to_ready(scene, place):
    engine = scene.engine
    blocker = scene.push("blocker", "other")
    due = scene.now + SECOND
    job = scene.push("job", due_at=due, position=place, blockers=[blocker.seq], retries=9)
    engine.cancel(blocker, scene.now)
    assert (job.state, job.position) == (SCHEDULED, place)
    scene.advance(1)
    engine.kill(job, scene.now)
    engine.retry_now(job, scene.now)
    engine.release(scene.lease(), scene.now)
    scene.fail(scene.lease())
    scene.advance_to(job.due_at)
    assert (job.state, job.position) == (READY, place)
    again = restarted(scene, MemoryStore())
    assert again.engine.find("job").position == place
    consistent(again.engine)


def test_due_masenko_tasks_precede_undelayed_ones_earliest_first():
    scene = MasenkoScene()
    scene.push("plain")
    for jid, delay in (("second", 2), ("first", 1), ("past", -60)):
        due = scene.now + delay * SECOND
        scene.push(jid, due_at=due, position=BEFORE_ARRIVALS + due)
    assert ready_jids(scene.engine) == ["past", "plain"]
    scene.advance(5)
    scene.push("plain too")
    assert ready_jids(scene.engine) == ["past", "first", "second", "plain", "plain too"]
    assert scene.engine.queues["default"].ready.front_count == 3


def test_a_masenko_retry_precedes_undelayed_tasks():
    scene = MasenkoScene()
    job = scene.pushed_and_leased("failed", retries=2)
    scene.push("plain")
    scene.fail(job)
    scene.advance_to(job.due_at)
    assert job.position == BEFORE_ARRIVALS + job.due_at
    assert ready_jids(scene.engine) == ["failed", "plain"]


def test_a_fixed_position_does_not_advance_the_counter(scene):
    scene.push("early", position=BEFORE_ARRIVALS + START + 10**12)
    scene.push("late", position=AFTER_ARRIVALS + 5)
    again = restarted(scene, MemoryStore())
    assert again.engine.positions.last == 1


def test_the_order_is_the_same_after_a_restart(scene):
    for number, place in enumerate(
        [BEFORE_ARRIVALS + 3, 0, AFTER_ARRIVALS, 0, BEFORE_ARRIVALS + 1, BEFORE_ARRIVALS - 5, 0]
    ):
        scene.push(f"job-{number}", position=place, rank=number % 2)
        scene.advance(1)
    before = ready_jids(scene.engine)
    again = restarted(scene, MemoryStore())
    assert ready_jids(again.engine) == before
    assert leased_jids(again, 7) == before == leased_jids(scene, 7)


# A position that changes while its job is not ready


@pytest.mark.parametrize("later_count", [0, 1])
def test_a_job_moved_ahead_later_keeps_the_order_of_other_jobs(scene, later_count):
    """The job arrived last. A client reports its failure without a lease."""
    back = scene.pushed_and_leased("back", origin=GOQUEUE)
    scene.advance(1)
    scene.push("other")
    scene.advance(1)
    job = scene.push("job", origin=MASENKO)
    for number in range(later_count):
        scene.advance(1)
        scene.push(f"rest-{number}")
    scene.engine.fail(job, scene.now, WORKQ, "Oops", "", [], allow_unleased=True)
    scene.engine.release(back, scene.now)
    assert leased_jids(scene, 2) == ["back", "other"]


def test_the_newest_job_can_be_moved_ahead_after_its_removal():
    first, second, newest = (ready_job(seq, seq * 10) for seq in (1, 2, 3))
    ready = ReadyQueue()
    for each in (first, second, newest):
        ready.add(each)
    assert ready.pop() is first
    ready.remove(newest)
    newest.position = BEFORE_ARRIVALS
    ready.add(first)
    assert [each.seq for each in ready.first(9)] == [1, 2]
    assert [ready.pop(), ready.pop(), ready.pop()] == [first, second, None]


@pytest.mark.parametrize(
    "put_away",
    [
        lambda engine, job, now: engine.set_rank(job, -1, 0),
        lambda engine, job, now: engine.move(job, "elsewhere", now, QLESS, due=now + SECOND),
    ],
    ids=["reranked", "moved"],
)
def test_a_job_with_a_lower_position_keeps_the_order_of_other_jobs(scene, put_away):
    back = scene.pushed_and_leased("back", origin=GOQUEUE)
    scene.advance(1)
    scene.push("other")
    scene.advance(1)
    put_away(scene.engine, scene.push("job"), scene.now)
    scene.engine.release(back, scene.now)
    assert leased_jids(scene, 2) == ["back", "other"]


# Number of jobs ahead


@dataclass
class Mirror:
    """The same jobs in a plain list, and the jobs that were popped or removed."""

    ready: ReadyQueue = field(default_factory=ReadyQueue)
    jobs: list[Job] = field(default_factory=list)
    away: list[Job] = field(default_factory=list)

    def add(self, job: Job) -> None:
        self.ready.add(job)
        self.jobs.append(job)

    def change(self, number: int, rank: int, place: int) -> None:
        """Change a job that is not in the queue."""
        if self.away:
            job = self.away[number % len(self.away)]
            job.rank, job.position = rank, place

    def put_back(self, number: int, *, another_record: bool) -> None:
        """Add the same job, or another record of it, as after a failed commit."""
        if self.away:
            job = self.away.pop(number % len(self.away))
            self.add(ready_job(job.seq, job.position, job.rank) if another_record else job)

    def pop(self) -> None:
        self.jobs.sort(key=lambda job: (-job.rank, job.position, job.seq))
        expected = self.jobs.pop(0) if self.jobs else None
        assert self.ready.pop() is expected
        self.away += [expected] if expected else []

    def remove(self, number: int) -> None:
        if self.jobs:
            job = self.jobs.pop(number % len(self.jobs))
            self.ready.remove(job)
            self.away.append(job)


places = st.sampled_from([1, 1, 2, 3, 4, 5, BEFORE_ARRIVALS, BEFORE_ARRIVALS + 1, AFTER_ARRIVALS])
ranks = st.sampled_from([0, 0, 0, 0, 1, -1])
which = st.integers(0, 3)
changes = st.lists(
    st.tuples(st.just("add"), ranks, places)
    | st.tuples(st.just("remove"), which)
    | st.tuples(st.just("change"), which, ranks, places)
    | st.tuples(st.just("put back"), which, st.booleans())
    | st.tuples(st.just("pop")),
    min_size=20,
    max_size=60,
)


@given(changes)
@settings(max_examples=300, deadline=None)
def test_the_early_count_equals_a_recount(changes):
    mirror = Mirror()
    for seq, (action, *args) in enumerate(changes, start=1):
        if action == "add":
            rank, place = args
            mirror.add(ready_job(seq, place, rank))
        elif action == "remove":
            mirror.remove(*args)
        elif action == "change":
            mirror.change(*args)
        elif action == "put back":
            number, another_record = args
            mirror.put_back(number, another_record=another_record)
        else:
            mirror.pop()
        assert mirror.ready.front_count == sum(job.position < 0 for job in mirror.jobs)
        assert len(mirror.ready) == len(mirror.jobs)
    while mirror.jobs:
        mirror.pop()
    assert mirror.ready.front_count == 0


def test_the_early_count_is_right_after_the_heap_was_rebuilt():
    ready = ReadyQueue()
    jobs = [ready_job(seq, BEFORE_ARRIVALS + seq) for seq in range(1, 1001)]
    for each in jobs:
        ready.add(each)
    for each in jobs[:900]:
        ready.remove(each)
    assert (ready.front_count, len(ready)) == (100, 100)
    assert len(ready._heap) < 500


def test_a_flush_resets_the_early_count(scene):
    scene.wait("other")
    scene.push("early", position=BEFORE_ARRIVALS, origin=FAKTORY)
    scene.engine.pause("default", paused=True, now=scene.now)
    scene.engine.flush(scene.now)
    scene.push("arrival")
    assert scene.engine.queues["default"].ready.front_count == 0
    consistent(scene.engine)
