"""Where a job stands among those that are ready: ahead of arrivals, among them, or behind."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import consistent
from test_queues import job as ready_job

from millrace.engine.job import EARLIER, FAKTORY, GOQUEUE, LATER, MASENKO, QLESS, WORKQ, Job
from millrace.engine.policy import SECOND
from millrace.engine.ready import ReadyQueue
from millrace.engine.states import READY, SCHEDULED
from millrace.store import MemoryStore
from scene import START, MasenkoScene, Scene, ready_jids, restarted


@pytest.fixture
def scene() -> Scene:
    return Scene()


def leased_jids(scene: Scene, count: int) -> list[str]:
    return [scene.lease().jid for _ in range(count)]


# Fixed places


def test_early_ones_are_ahead_of_all_that_arrive_and_late_ones_behind(scene):
    scene.push("late", place=LATER)
    scene.push("arrival-1")
    scene.push("early", place=EARLIER + START)
    scene.advance(10)
    scene.push("arrival-2")
    assert ready_jids(scene.engine) == ["early", "arrival-1", "arrival-2", "late"]
    assert leased_jids(scene, 4) == ["early", "arrival-1", "arrival-2", "late"]


def test_early_ones_go_in_the_order_of_their_places_then_of_their_seqs(scene):
    for jid, place in (("c", 30), ("a", 10), ("d", 30), ("b", 20), ("first", -(1 << 50))):
        scene.push(jid, place=EARLIER + place)
    assert leased_jids(scene, 5) == ["first", "a", "b", "c", "d"]


def test_the_rank_comes_before_the_place(scene):
    scene.push("low", rank=-1, place=EARLIER)
    scene.push("arrival")
    scene.push("high", rank=1, place=LATER)
    scene.push("early", place=EARLIER + 9)
    scene.push("high and early", rank=1, place=EARLIER + 9)
    assert leased_jids(scene, 5) == ["high and early", "high", "early", "arrival", "low"]


@pytest.mark.parametrize("place", [EARLIER + 7, LATER + 7, EARLIER, LATER])
def test_a_fixed_place_stays_whatever_makes_the_job_ready(scene, place):
    engine = scene.engine
    blocker = scene.push("blocker", "other")
    due = scene.now + SECOND
    job = scene.push("job", due=due, place=place, blockers=[blocker.seq], retries=9)
    engine.cancel(blocker, scene.now)
    assert (job.state, job.place) == (SCHEDULED, place)
    scene.advance(1)
    engine.kill(job, scene.now)
    engine.requeue(job, scene.now)
    engine.release(scene.lease(), scene.now)
    scene.fail(scene.lease())
    scene.advance_to(job.due)
    assert (job.state, job.place) == (READY, place)
    again = restarted(scene, MemoryStore())
    assert again.engine.find("job").place == place
    consistent(again.engine)


def test_due_tasks_of_masenko_go_before_those_never_delayed_the_earliest_first():
    scene = MasenkoScene()
    scene.push("plain")
    for jid, delay in (("second", 2), ("first", 1), ("past", -60)):
        due = scene.now + delay * SECOND
        scene.push(jid, due=due, place=EARLIER + due)
    assert ready_jids(scene.engine) == ["past", "plain"]
    scene.advance(5)
    scene.push("plain too")
    assert ready_jids(scene.engine) == ["past", "first", "second", "plain", "plain too"]
    assert scene.engine.queues["default"].ready.early == 3


def test_a_retry_of_masenko_goes_before_those_never_delayed():
    scene = MasenkoScene()
    job = scene.pushed_and_leased("failed", retries=2)
    scene.push("plain")
    scene.fail(job)
    scene.advance_to(job.due)
    assert job.place == EARLIER + job.due
    assert ready_jids(scene.engine) == ["failed", "plain"]


def test_a_fixed_place_moves_no_position(scene):
    scene.push("early", place=EARLIER + START + 10**12)
    scene.push("late", place=LATER + 5)
    again = restarted(scene, MemoryStore())
    assert again.engine.position == 1


def test_the_order_is_the_same_after_a_restart(scene):
    for number, place in enumerate([EARLIER + 3, 0, LATER, 0, EARLIER + 1, EARLIER - 5, 0]):
        scene.push(f"job-{number}", place=place, rank=number % 2)
        scene.advance(1)
    before = ready_jids(scene.engine)
    again = restarted(scene, MemoryStore())
    assert ready_jids(again.engine) == before
    assert leased_jids(again, 7) == before == leased_jids(scene, 7)


# A place that changes while its job is away


@pytest.mark.parametrize("rest", [0, 1])
def test_a_job_that_goes_ahead_later_leaves_the_others_in_their_order(scene, rest):
    """It was the last that arrived, and is told to have failed while nobody holds it."""
    back = scene.pushed_and_leased("back", origin=GOQUEUE)
    scene.advance(1)
    scene.push("other")
    scene.advance(1)
    job = scene.push("job", origin=MASENKO)
    for number in range(rest):
        scene.advance(1)
        scene.push(f"rest-{number}")
    scene.engine.fail(job, scene.now, WORKQ, "Oops", "", [], unleased=True)
    scene.engine.release(back, scene.now)
    assert leased_jids(scene, 2) == ["back", "other"]


def test_the_newest_may_be_put_ahead_after_it_was_taken_out():
    first, second, newest = (ready_job(seq, seq * 10) for seq in (1, 2, 3))
    ready = ReadyQueue()
    for each in (first, second, newest):
        ready.add(each)
    assert ready.pop() is first
    ready.remove(newest)
    newest.place = EARLIER
    ready.add(first)
    assert [each.seq for each in ready.first(9)] == [1, 2]
    assert [ready.pop(), ready.pop(), ready.pop()] == [first, second, None]


@pytest.mark.parametrize(
    "put_away",
    [
        lambda engine, job, now: engine.rerank(job, -1, 0),
        lambda engine, job, now: engine.move(job, "elsewhere", now, QLESS, due=now + SECOND),
    ],
    ids=["reranked", "moved"],
)
def test_a_job_that_gets_a_lower_place_leaves_the_others_in_their_order(scene, put_away):
    back = scene.pushed_and_leased("back", origin=GOQUEUE)
    scene.advance(1)
    scene.push("other")
    scene.advance(1)
    put_away(scene.engine, scene.push("job"), scene.now)
    scene.engine.release(back, scene.now)
    assert leased_jids(scene, 2) == ["back", "other"]


# How many are ahead


@dataclass
class Mirror:
    """The same jobs in a plain list; and those that were taken, or taken out."""

    ready: ReadyQueue = field(default_factory=ReadyQueue)
    jobs: list[Job] = field(default_factory=list)
    away: list[Job] = field(default_factory=list)

    def add(self, job: Job) -> None:
        self.ready.add(job)
        self.jobs.append(job)

    def change(self, number: int, rank: int, place: int) -> None:
        """Something happens to a job that is away."""
        if self.away:
            job = self.away[number % len(self.away)]
            job.rank, job.place = rank, place

    def put_back(self, number: int, *, anew: bool) -> None:
        """The same job, or another record of it, as after a failed commit."""
        if self.away:
            job = self.away.pop(number % len(self.away))
            self.add(ready_job(job.seq, job.place, job.rank) if anew else job)

    def pop(self) -> None:
        self.jobs.sort(key=lambda job: (-job.rank, job.place, job.seq))
        expected = self.jobs.pop(0) if self.jobs else None
        assert self.ready.pop() is expected
        self.away += [expected] if expected else []

    def remove(self, number: int) -> None:
        if self.jobs:
            job = self.jobs.pop(number % len(self.jobs))
            self.ready.remove(job)
            self.away.append(job)


places = st.sampled_from([1, 1, 2, 3, 4, 5, EARLIER, EARLIER + 1, LATER])
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
def test_the_count_of_those_ahead_equals_a_recount(changes):
    mirror = Mirror()
    for seq, (what, *args) in enumerate(changes, start=1):
        if what == "add":
            rank, place = args
            mirror.add(ready_job(seq, place, rank))
        elif what == "remove":
            mirror.remove(*args)
        elif what == "change":
            mirror.change(*args)
        elif what == "put back":
            number, anew = args
            mirror.put_back(number, anew=anew)
        else:
            mirror.pop()
        assert mirror.ready.early == sum(job.place < 0 for job in mirror.jobs)
        assert len(mirror.ready) == len(mirror.jobs)
    while mirror.jobs:
        mirror.pop()
    assert mirror.ready.early == 0


def test_those_ahead_are_counted_though_the_heap_is_built_anew():
    ready = ReadyQueue()
    jobs = [ready_job(seq, EARLIER + seq) for seq in range(1, 1001)]
    for each in jobs:
        ready.add(each)
    for each in jobs[:900]:
        ready.remove(each)
    assert (ready.early, len(ready)) == (100, 100)
    assert len(ready._heap) < 500


def test_a_flush_leaves_nobody_ahead(scene):
    scene.wait("other")
    scene.push("early", place=EARLIER, origin=FAKTORY)
    scene.engine.pause("default", paused=True, now=scene.now)
    scene.engine.flush(scene.now)
    scene.push("arrival")
    assert scene.engine.queues["default"].ready.early == 0
    consistent(scene.engine)
