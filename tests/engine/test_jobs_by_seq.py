"""The table of jobs by seq behaves like a dictionary and takes little memory."""

import tracemalloc
from collections.abc import Callable
from random import Random

import pytest

from millrace.engine import consistency
from millrace.engine.job import Job
from millrace.engine.jobs_by_seq import GROUP_SIZE, MAX_RECENT_JOBS, MIN_GROUP_JOBS, JobsBySeq
from millrace.engine.states import READY
from scene import Scene


def job_of(seq: int) -> Job:
    return Job(seq, f"job-{seq}", "work", b"", 1, 0, 0, 0, b"", "default", READY, 0, 0, 0)


def faults(table: JobsBySeq) -> list[str]:
    return [fault for fault in table.faults() if fault is not None]


def assert_same(table: JobsBySeq, expected: dict[int, Job]) -> None:
    seqs = sorted(expected)
    assert faults(table) == []
    assert len(table) == len(expected)
    assert bool(table) == bool(expected)
    assert list(table) == seqs
    assert [job.seq for job in table.values()] == seqs
    assert dict(table.items()) == expected
    assert table == expected
    assert table == JobsBySeq(expected.values())
    for seq in [*seqs, 0, -1, 1 << 70]:
        assert table.get(seq) is expected.get(seq)
        assert (seq in table) == (seq in expected)


@pytest.mark.parametrize("span", [GROUP_SIZE // 2, 5 * GROUP_SIZE, 400 * GROUP_SIZE, 1 << 45])
def test_the_table_supports_the_operations_of_a_dictionary(span: int) -> None:
    rng, table, expected = Random(span), JobsBySeq(), dict[int, Job]()
    newest = 1
    for step in range(8000):
        action = rng.random()
        if action < 0.55:  # a new job; sometimes, seqs are skipped
            newest += rng.choice((1, 1, 1, rng.randrange(1, 2 + span // 200)))
            table[newest] = expected[newest] = job_of(newest)
        elif action < 0.6:  # an older job, as after a refused commit
            seq = rng.randrange(1, newest + 1)
            table[seq] = expected[seq] = job_of(seq)
        elif action < 0.8:
            seq = rng.choice(list(expected)) if expected and rng.random() < 0.9 else newest + 1
            assert table.pop(seq) is expected.pop(seq, None)
        elif expected:
            seq = rng.choice((min(expected), max(expected)))
            del table[seq], expected[seq]
        if step % 1000 == 0:
            assert_same(table, expected)
    assert_same(table, expected)
    for seq in list(expected):
        del table[seq], expected[seq]
    assert_same(table, expected)
    with pytest.raises(KeyError):
        table[newest]
    with pytest.raises(KeyError):
        del table[newest]
    with pytest.raises(KeyError):
        del table[1]
    table.clear()
    assert_same(table, expected)


@pytest.mark.parametrize("distance", [1, 3, 9, 100, 3 * GROUP_SIZE])
@pytest.mark.parametrize("start", [1, GROUP_SIZE - 1, GROUP_SIZE])
def test_many_jobs_are_added_as_one_by_one(start: int, distance: int) -> None:
    rng, table, expected = Random(distance), JobsBySeq(), dict[int, Job]()
    seq = start
    for count in (1, 5, MAX_RECENT_JOBS, 0, 7 * GROUP_SIZE + 3, 2):
        jobs = []
        for _ in range(count):
            seq += rng.randrange(1, 2 * distance)
            jobs.append(job_of(seq))
        table.extend(jobs)
        expected.update((job.seq, job) for job in jobs)
        assert_same(table, expected)
    table[seq + 1] = expected[seq + 1] = job_of(seq + 1)
    assert_same(table, expected)


def test_jobs_in_any_order_are_added_and_replace_others() -> None:
    rng, table, expected = Random(1), JobsBySeq(), dict[int, Job]()
    for _ in range(10):
        jobs = [job_of(rng.randrange(1, 6 * GROUP_SIZE)) for _ in range(700)]
        table.extend(jobs)
        expected.update((job.seq, job) for job in jobs)
        assert_same(table, expected)
    older = [job_of(seq) for seq in (5, 7)]
    table.extend(older)
    assert table[5] is older[0]


def memory_of(make: Callable[[], object]) -> int:
    tracemalloc.start()
    made = make()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del made
    return size


def test_a_dense_table_takes_one_slot_per_job() -> None:
    jobs = [job_of(seq) for seq in range(1, 400 * GROUP_SIZE)]
    assert memory_of(lambda: JobsBySeq(jobs)) / len(jobs) < 10


@pytest.mark.parametrize("distance", [9, 100, 100 * GROUP_SIZE])
def test_jobs_that_stay_for_months_take_little_memory(distance: int) -> None:
    seqs = range(1, 3000 * distance, distance)
    staying = [job_of(seq) for seq in seqs]
    passing = job_of(1)

    def fill() -> JobsBySeq:
        """Each seq gets a job, or at least a few seqs between two of the jobs that stay."""
        table = JobsBySeq()
        for job in staying:
            table[job.seq] = job
            for seq in range(job.seq + 1, job.seq + min(distance, 200)):
                table[seq] = passing
        for job in staying:
            for seq in range(job.seq + 1, job.seq + min(distance, 200)):
                del table[seq]
        return table

    table = fill()
    assert list(table) == list(seqs)
    assert faults(table) == []
    dictionary = memory_of(lambda: {int(str(seq)): passing for seq in seqs})
    assert memory_of(fill) < 2 * dictionary + 400 * GROUP_SIZE


def test_no_job_keeps_its_memory_after_its_end() -> None:
    def fill_and_drain() -> JobsBySeq:
        table = JobsBySeq(job_of(seq) for seq in range(1, 200 * GROUP_SIZE))
        for seq in range(1, 200 * GROUP_SIZE):
            del table[seq]
        return table

    assert memory_of(fill_and_drain) < 200 * GROUP_SIZE


def test_the_seqs_are_those_of_the_jobs_at_the_time_of_the_call() -> None:
    """Later changes have no effect: groups are dissolved and opened during the iteration."""
    count = 40 * GROUP_SIZE
    table = JobsBySeq(job_of(seq) for seq in range(1, count))
    for seq in range(10 * GROUP_SIZE, 20 * GROUP_SIZE):
        if seq % 100:
            del table[seq]
    present, found, newest = set(table), table.seqs(), table.seqs(newest_first=True)
    seen = [next(found)]
    for seq in present:
        del table[seq]
    table[2 * count] = job_of(2 * count)
    seen += found
    assert seen == sorted(set(seen))
    assert present <= set(seen)
    assert len(seen) <= len(present) + GROUP_SIZE
    assert list(newest) == seen[::-1]


def test_an_iteration_has_every_job_that_stays() -> None:
    """Groups are dissolved and opened during the iteration."""
    count = 6 * GROUP_SIZE
    table = JobsBySeq(job_of(seq) for seq in range(1, count))
    staying = set(range(1, count, 100))
    seen = []
    for seq in table:
        if len(seen) == 10:
            for other in range(1, count):
                if other not in staying:
                    del table[other]
            for other in range(count, 2 * count):
                table[other] = job_of(other)
        seen.append(seq)
    assert seen == sorted(seen)
    assert staying <= set(seen)
    assert len(set(seen)) == len(seen)


def wrong_count(table: JobsBySeq) -> None:
    table._groups[0].count -= 1


def wrong_total(table: JobsBySeq) -> None:
    table._grouped_count += 1


def nearly_empty_group(table: JobsBySeq) -> None:
    group = table._groups[1]
    for place in range(GROUP_SIZE - MIN_GROUP_JOBS + 1):
        group.jobs[place] = None
        group.count -= 1
        table._grouped_count -= 1


def group_of_recent_jobs(table: JobsBySeq) -> None:
    table.last_grouped_seq = GROUP_SIZE - 1


def old_as_recent(table: JobsBySeq) -> None:
    job = table[5]
    table.remove(5)
    table.recent[5] = job


def outside_its_group(table: JobsBySeq) -> None:
    job = table[5]
    table.remove(5)
    table._scattered[5] = job


@pytest.mark.parametrize(
    "damage",
    [
        wrong_count,
        wrong_total,
        nearly_empty_group,
        group_of_recent_jobs,
        old_as_recent,
        outside_its_group,
    ],
)
def test_a_check_finds_a_damaged_table(damage: Callable[[JobsBySeq], None]) -> None:
    scene = Scene()
    for number in range(2 * MAX_RECENT_JOBS):
        scene.push(f"job-{number}")
    assert consistency.check_engine(scene.engine).total == 0
    damage(scene.engine.jobs)
    found = consistency.check_engine(scene.engine)
    assert "record" in {problem.what for problem in found.problems}
    consistency.repair(scene.engine, scene.now)
    assert consistency.check_engine(scene.engine).total == 0


def test_a_repair_does_not_scatter_the_jobs() -> None:
    """A repair restores the jobs in the order of their positions."""
    scene = Scene()
    for number in range(3 * MAX_RECENT_JOBS):
        scene.push(f"job-{number}")
    for job in scene.engine.jobs.values()[:-GROUP_SIZE]:
        if job.seq % 16:  # behind the other jobs
            scene.engine.move(job, "default", scene.now, 1)
    consistency.repair(scene.engine, scene.now)
    assert consistency.check_engine(scene.engine).total == 0
    assert not scene.engine.jobs._scattered
