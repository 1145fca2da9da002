"""The ready jobs of a queue: ordered by rank, position and seq, with removals anywhere."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.job import Job, ensure_history
from millrace.engine.queues import Queue
from millrace.engine.ready import ReadyQueue
from millrace.engine.states import READY
from millrace.protocols.registry import FAKTORY


def job(seq: int, place: int = 0, rank: int = 0) -> Job:
    return Job(
        seq=seq,
        jid=f"job-{seq}",
        kind="SomeJob",
        inline_payload=b"[]",
        origin=FAKTORY,
        created=0,
        lease_duration=0,
        retries=25,
        wire_fields=b"",
        queue="default",
        state=READY,
        rank=rank,
        position=place,
        due_at=0,
    )


def ready_with(*jobs: Job) -> ReadyQueue:
    ready = ReadyQueue()
    for each in jobs:
        ready.add(each)
    return ready


def popped(ready: ReadyQueue) -> list[int]:
    """The seqs in the order in which the jobs are popped."""
    seqs = []
    while (each := ready.pop()) is not None:
        seqs.append(each.seq)
    return seqs


def test_an_empty_queue_returns_none():
    ready = ReadyQueue()
    assert ready.pop() is None
    assert ready.peek() is None
    assert len(ready) == 0
    assert list(ready) == []


def test_jobs_added_in_order_are_popped_in_order():
    assert popped(ready_with(job(1, 10), job(2, 10), job(3, 20))) == [1, 2, 3]


def test_the_lower_position_is_popped_first():
    assert popped(ready_with(job(1, 30), job(2, 10), job(3, 20))) == [2, 3, 1]


def test_for_equal_positions_the_lower_seq_is_popped_first():
    assert popped(ready_with(job(3, 10), job(1, 10), job(2, 10))) == [1, 2, 3]


def test_the_highest_rank_is_popped_first():
    jobs = (job(1, 10), job(2, 10, rank=-5), job(3, 99, rank=5), job(4, 50, rank=1), job(5, 20))
    assert popped(ready_with(*jobs)) == [3, 4, 1, 5, 2]


def test_within_a_rank_the_lower_position_is_popped_first():
    assert popped(ready_with(job(1, 30, 7), job(2, 10, 7), job(3, 20, 7))) == [2, 3, 1]


def test_peek_removes_nothing():
    ready = ready_with(job(2, 20), job(1, 10))
    assert ready.peek() is not None
    assert ready.peek().seq == 1
    assert len(ready) == 2


def test_a_job_put_back_at_its_old_position_is_first_again():
    first = job(1, 10)
    ready = ready_with(first, job(2, 20), job(3, 30))
    assert ready.pop() is first
    ready.add(first)
    assert popped(ready) == [1, 2, 3]


@pytest.mark.parametrize("removed", [1, 2, 3])
def test_a_job_can_be_removed_anywhere(removed):
    jobs = [job(1, 10), job(2, 20), job(3, 30)]
    ready = ready_with(*jobs)
    ready.remove(jobs[removed - 1])
    remaining = [seq for seq in (1, 2, 3) if seq != removed]
    assert len(ready) == 2
    assert [each.seq for each in ready.first(5)] == remaining
    assert sorted(each.seq for each in ready) == remaining
    assert ready.peek().seq == remaining[0]
    assert popped(ready) == remaining


@pytest.mark.parametrize("removed", [1, 2, 3])
def test_a_ranked_job_can_be_removed_anywhere(removed):
    jobs = [job(1, 10, 3), job(2, 20, 2), job(3, 30, 1)]
    ready = ready_with(*jobs)
    ready.remove(jobs[removed - 1])
    remaining = [seq for seq in (1, 2, 3) if seq != removed]
    assert len(ready) == 2
    assert popped(ready) == remaining


@pytest.mark.parametrize("rank", [0, 4])
def test_a_job_removed_and_added_again_is_popped_once(rank):
    jobs = [job(1, 10, rank), job(2, 20, rank), job(3, 30, rank)]
    ready = ready_with(*jobs)
    ready.remove(jobs[1])
    jobs[1].position = 40
    ready.add(jobs[1])
    assert len(ready) == 3
    assert [each.seq for each in ready.first(5)] == [1, 3, 2]
    assert popped(ready) == [1, 3, 2]


@pytest.mark.parametrize("rank", [0, 4])
def test_a_job_removed_and_immediately_added_keeps_its_position(rank):
    jobs = [job(1, 10, rank), job(2, 20, rank), job(3, 30, rank)]
    ready = ready_with(*jobs)
    ready.remove(jobs[1])
    ready.add(jobs[1])
    assert popped(ready) == [1, 2, 3]


def test_a_job_removed_twice_and_added_twice_is_popped_once():
    jobs = [job(1, 10), job(2, 20)]
    ready = ready_with(*jobs)
    for _ in range(2):
        ready.remove(jobs[0])
        assert len(ready) == 1
        ready.add(jobs[0])
        assert len(ready) == 2
    assert popped(ready) == [1, 2]


@pytest.mark.parametrize("rank", [0, 4])
def test_another_record_of_a_removed_job_can_replace_it(rank):
    """After a failed commit the store returns the same job as another object."""
    old = job(1, 10, rank)
    ready = ready_with(old, job(2, 20, rank))
    ready.pop()
    ready.add(old)
    ready.remove(old)
    new = job(1, 10, rank)
    ensure_history(new).holder = "not the holder of the old record"
    ready.add(new)
    assert ready.pop() is new
    assert popped(ready) == [2]


@pytest.mark.parametrize("count", [0, 1, 3, 5, 9])
def test_first_returns_the_jobs_that_are_popped_next(count):
    random = Random(3)
    ready = ready_with(*(job(n, random.randrange(5), random.choice((0, 0, 1))) for n in range(9)))
    first = [each.seq for each in ready.first(count)]
    assert len(first) == count
    assert first == popped(ready)[:count]


def test_tombstones_do_not_accumulate():
    ready = ReadyQueue()
    jobs = [job(n, n) for n in range(10_000)]
    for each in jobs:
        ready.add(each)
    for each in jobs[1:]:
        ready.remove(each)
    assert len(ready) == 1
    assert len(ready._fifo) + len(ready._tombstones) < 500
    assert popped(ready) == [0]


def test_tombstones_in_the_middle_are_collected_in_steps():
    """The order of the jobs stays correct throughout."""
    random, ready = Random(5), ReadyQueue()
    jobs = [job(n, n) for n in range(2000)]
    for each in jobs:
        ready.add(each)
    left = list(range(2000))
    next_seq = 2000
    while len(left) > 200:
        removed = left.pop(random.randrange(len(left)))
        ready.remove(jobs[removed])
        if random.random() < 0.1:
            jobs.append(job(next_seq, next_seq))
            ready.add(jobs[-1])
            left.append(next_seq)
            next_seq += 1
        if random.random() < 0.1:
            assert ready.pop().seq == left.pop(0)
        if random.random() < 0.1:
            assert [each.seq for each in ready.first(5)] == left[:5]
            assert ready.peek().seq == ready.oldest().seq == left[0]
        assert len(ready) == len(left)
        assert ready.tombstones <= 64 + len(left) // 2
    assert sorted(each.seq for each in ready) == left
    assert popped(ready) == left


def test_removals_at_the_end_leave_no_tombstones():
    ready = ReadyQueue()
    jobs = [job(n, n) for n in range(100)]
    for each in jobs:
        ready.add(each)
    for each in reversed(jobs[1:]):
        ready.remove(each)
        assert ready.tombstones == 0
    ready.add(job(100, 100))
    assert popped(ready) == [0, 100]


def test_stale_heap_entries_do_not_accumulate():
    ready = ready_with(job(0, 0, rank=1))
    for n in range(1, 10_000):
        passing = job(n, n, rank=1)
        ready.add(passing)
        ready.remove(passing)
    assert len(ready) == 1
    assert len(ready._heap) < 500
    assert popped(ready) == [0]


def test_thousands_of_random_changes_agree_with_a_sorted_list():
    random, ready, model, outside = Random(11), ReadyQueue(), [], []
    place, seq = 0, 0
    for _ in range(20_000):
        action = random.randrange(10)
        if action < 4:
            seq, place = seq + 1, place + random.randrange(3)
            new = job(seq, place, random.choice((0, 0, 0, 0, 0, -1, 2)))
            model.append(new)
            ready.add(new)
        elif action < 6 and model:
            taken = model.pop(random.randrange(len(model)))
            outside.append(taken)
            ready.remove(taken)
        elif action < 7 and outside:
            back = outside.pop(random.randrange(len(outside)))
            if random.random() < 0.5:
                back.position = place
            model.append(back)
            ready.add(back)
        else:
            model.sort(key=lambda each: (-each.rank, each.position, each.seq))
            expected = model.pop(0) if model else None
            assert ready.pop() is expected
            if expected is not None:
                outside.append(expected)
        assert len(ready) == len(model)
    model.sort(key=lambda each: (-each.rank, each.position, each.seq))
    assert list(ready.first(len(model) + 1)) == model


def test_a_new_queue_is_unregistered_running_and_empty():
    queue = Queue("default")
    assert not queue.registered
    assert not queue.paused
    assert len(queue.ready) == 0
    assert not queue.waiters
    assert queue.counts == [0, 0, 0, 0, 0, 0]


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "add", "remove", "pop"]),
            st.integers(-2, 6),  # position
            st.sampled_from([0, 0, 0, 1, -3]),  # rank
            st.integers(0, 999),  # index of the job to remove
        ),
        max_size=150,
    ),
    count=st.integers(0, 12),
)
def test_first_returns_the_next_jobs_after_any_history(steps, count):
    ready, present = ReadyQueue(), {}
    for seq, (action, place, rank, which) in enumerate(steps, 1):
        if action == "add":
            each = present[seq] = job(seq, place, rank)
            each.ready_at = seq
            ready.add(each)
        elif action == "pop" and present:
            popped_job = ready.pop()
            assert popped_job is ordered(present)[0]
            del present[popped_job.seq]
        elif action == "remove" and present:
            ready.remove(present.pop(sorted(present)[which % len(present)]))
    right = ordered(present)
    assert list(ready.first(count)) == right[:count]
    assert ready.peek() is (right[0] if right else None)
    assert list(ready.first(1000)) == right
    assert len(ready) == len(right)
    oldest = ready.oldest()
    assert oldest is (min(right, key=lambda each: each.ready_at) if right else None)
    assert popped(ready) == [each.seq for each in right]


def ordered(jobs: dict[int, Job]) -> list[Job]:
    return sorted(jobs.values(), key=lambda each: (-each.rank, each.position, each.seq))


@pytest.mark.parametrize("stale", [False, True])
def test_the_first_of_2000_ranked_jobs(stale):
    random = Random(5)
    jobs = {n: job(n, random.randrange(50), random.randrange(1, 9)) for n in range(2000)}
    ready = ready_with(*jobs.values())
    if stale:
        for each in ordered(jobs)[1:200:2]:
            ready.remove(jobs.pop(each.seq))
    for count in (1, 10, 100, 240, 600):
        assert list(ready.first(count)) == ordered(jobs)[:count]
    assert popped(ready) == [each.seq for each in ordered(jobs)]


def test_tombstones_behind_the_head_are_skipped_once():
    jobs = [job(n, n) for n in range(1000)]
    ready = ready_with(*jobs)
    for each in jobs[1:400]:
        ready.remove(each)
    assert [each.seq for each in ready.first(3)] == [0, 400, 401]
    assert ready.tombstones == 0
    assert popped(ready) == [0, *range(400, 1000)]


def is_in_order(ready: ReadyQueue) -> bool:
    steps = ready.is_in_order()
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return bool(ended.value)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-1, 1))), st.booleans())
def test_extend_equals_repeated_add(keys: list[tuple[int, int]], filled: bool):
    """The jobs are in the order of their positions, as they are read at startup."""
    jobs = [job(seq, place, rank) for seq, (place, rank) in enumerate(sorted(keys), 10)]
    ready = ready_with(*([job(1, 0), job(2, 1)] if filled else []))
    one_by_one = ready_with(*([job(1, 0), job(2, 1)] if filled else []), *jobs)
    ready.extend(jobs)
    assert is_in_order(ready)
    assert ready.front_count == one_by_one.front_count
    assert popped(ready) == popped(one_by_one)
