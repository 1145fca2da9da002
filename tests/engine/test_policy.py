"""What follows a failure, by the rules of the protocol that pushed the job."""

from random import Random

import pytest

from millrace.engine.job import EARLIER, FAKTORY, GOQUEUE, HTTP, MASENKO, WORKQ, Job
from millrace.engine.policy import (
    BOUND,
    DAY,
    POLICIES,
    SECOND,
    FaktoryPolicy,
    GoqueuePolicy,
    HttpPolicy,
    MasenkoPolicy,
    Verdict,
)
from millrace.engine.states import DEAD, GONE, LEASED, READY, SCHEDULED
from millrace.store import MemoryStore
from scene import START, MasenkoScene, Scene, ready_jids, restarted


def failed_job(failures: int, retries: int = 25) -> Job:
    scene = Scene()
    job = scene.pushed_and_leased(retries=retries)
    job.failures = failures
    return job


def verdict(failures: int, retries: int = 25, random: Random | None = None) -> Verdict:
    """What the policy says of a job that has just failed for so many times."""
    return FaktoryPolicy().after_failure(failed_job(failures, retries), START, random or Random(1))


# Faktory


class Dice(Random):
    """Shows the side that it is told to."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def randrange(self, stop: int) -> int:
        assert stop == 30
        return self.side


def delays(count: int) -> set[int]:
    """Every delay in seconds that the policy can give after `count` earlier failures."""
    answers = [verdict(count + 1, random=Dice(side)) for side in range(30)]
    assert {answer.state for answer in answers} == {SCHEDULED}
    return {(answer.due - START) / SECOND for answer in answers}


def test_faktory_s_rules_are_those_of_jobs_pushed_by_faktory():
    assert isinstance(POLICIES[FAKTORY], FaktoryPolicy)
    assert isinstance(POLICIES[MASENKO], MasenkoPolicy)
    assert isinstance(POLICIES[GOQUEUE], GoqueuePolicy)


def test_the_leases_of_masenko_only_are_bound_and_its_jobs_only_die_with_their_blockers():
    assert frozenset({MASENKO}) == BOUND
    assert [origin for origin in POLICIES if POLICIES[origin].dies_with_blocker] == [MASENKO]


@pytest.mark.parametrize("count", [0, 1, 2, 10, 24])
def test_the_delay_is_count_to_the_fourth_plus_15_plus_up_to_29_times_count_plus_1(count):
    assert delays(count) == {count**4 + 15 + side * (count + 1) for side in range(30)}


def test_the_first_delay_is_between_15_and_44_seconds():
    assert min(delays(0)) == 15
    assert max(delays(0)) == 44


def test_the_last_of_25_delays_is_about_four_days():
    assert min(delays(24)) == 331_791
    assert max(delays(24)) == 332_516


def test_the_delay_uses_the_whole_range_of_the_dice():
    random = Random(5)
    seen = {verdict(1, random=random).due - START for _ in range(2000)}
    assert seen == {(15 + side) * SECOND for side in range(30)}


def test_the_same_seed_gives_the_same_delays():
    first = [verdict(n, random=Random(9)) for n in range(1, 20)]
    assert first == [verdict(n, random=Random(9)) for n in range(1, 20)]


@pytest.mark.parametrize("failures", [1, 2, 100])
def test_retry_0_discards(failures):
    assert verdict(failures, retries=0).state == GONE


@pytest.mark.parametrize("retries", [-1, -2, -(10**9)])
def test_a_negative_retry_goes_to_the_dead_set_at_once(retries):
    assert verdict(1, retries).state == DEAD


@pytest.mark.parametrize("retries", [1, 2, 25])
def test_retry_n_tries_n_times_more(retries):
    answers = [verdict(n, retries).state for n in range(1, retries + 2)]
    assert answers == [SCHEDULED] * retries + [DEAD]


def test_a_job_with_25_retries_is_executed_26_times():
    scene = Scene()
    job = scene.push(retries=25)
    executions = 0
    while (leased := scene.lease()) is not None:
        assert leased is job
        assert job.state == LEASED
        executions += 1
        assert job.attempt == executions
        scene.fail(job)
        if job.state == SCHEDULED:
            scene.advance_to(job.due)
    assert executions == 26
    assert job.state == DEAD
    assert job.failures == 26


def test_the_dead_are_kept_for_180_days():
    scene = Scene()
    job = scene.pushed_and_leased(retries=-1)
    scene.fail(job)
    assert job.due == START + 180 * DAY
    scene.advance(180 * 86_400 - 1)
    assert scene.engine.find("job-1") is job
    scene.advance(1)
    assert scene.engine.find("job-1") is None


def test_an_expired_reservation_is_a_failure_with_the_original_s_words():
    scene = Scene()
    job = scene.pushed_and_leased()
    scene.advance(1800)
    assert job.failure is not None
    assert job.failure.group == "ReservationExpired"
    assert job.failure.message == "Faktory job reservation expired"


# Masenko


@pytest.mark.parametrize("failures", [1, 2, 3, 4, 5, 6, 20])
@pytest.mark.parametrize("fraction", [0, 1, 400_000, 999_999])
def test_masenko_s_delay_is_failures_to_the_fourth_cut_to_a_whole_second(failures, fraction):
    job = failed_job(failures, retries=20)
    now = START + fraction
    answer = MasenkoPolicy().after_failure(job, now, Random(1))
    assert answer.state == SCHEDULED
    assert answer.due == START + failures**4 * SECOND
    assert answer.due > now
    assert answer.place == EARLIER + answer.due
    assert MasenkoPolicy().after_expiry(job, now, Random(2)) == answer


@pytest.mark.parametrize("retries", [0, 1, 2, 20])
def test_masenko_s_retry_n_tries_n_times_more(retries):
    scene = MasenkoScene()
    job = scene.push(retries=retries)
    failures = []
    while scene.lease() is job:
        failures.append(job.failures)
        scene.fail(job)
        if job.state == SCHEDULED:
            scene.advance_to(job.due)
    assert failures == list(range(retries + 1))
    assert (job.state, job.failures) == (DEAD, retries + 1)
    assert job.due == scene.now + 180 * DAY


def test_the_last_of_255_delays_can_be_waited_for():
    job = failed_job(255, retries=255)
    answer = MasenkoPolicy().after_failure(job, START, Random(1))
    assert answer.due == START + 255**4 * SECOND
    assert EARLIER < answer.place < 0


# Go Job Queue


class GoScene(Scene):
    def push(self, jid: str = "job-1", queue: str = "default", **fields) -> Job:
        fields.setdefault("lease_for", 10 * SECOND)
        return super().push(jid, queue, origin=GOQUEUE, retries=0, **fields)

    def lease(self, *queues: str, holder: str = "") -> Job | None:
        return self.engine.lease(queues or ("default",), holder, GOQUEUE, self.now)


@pytest.fixture
def go() -> GoScene:
    """Three jobs, a second apart, of which the first is leased."""
    scene = GoScene()
    for jid in ("a", "b", "c"):
        scene.push(jid)
        scene.advance(1)
    scene.lease()
    return scene


def test_when_the_time_to_process_is_over_the_job_is_ready_at_its_old_place(go):
    job = go.engine.find("a")
    go.advance(9.999999)
    assert job.state == LEASED
    go.advance(0.000001)
    assert (job.state, job.attempt, job.failures) == (READY, 1, 1)
    assert ready_jids(go.engine) == ["a", "b", "c"]
    assert go.events()[-1].group == "LeaseExpired"
    assert go.events()[-1].message == "the time to process is over"


def test_it_comes_back_for_ever(go):
    for attempt in range(1, 300):
        assert go.engine.find("a").attempt == attempt
        go.advance(10)
        assert go.lease().jid == "a"


def test_the_order_of_ranks_holds_after_an_expiry():
    scene = GoScene()
    for number, priority in enumerate((2, 1, 4, 1, 2, 3), start=1):
        scene.push(str(number), rank=-priority)
    first = scene.lease()
    scene.advance(10)
    assert first.jid == "2"
    assert ready_jids(scene.engine) == ["2", "4", "1", "5", "6", "3"]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_after_so_many_leases_an_expiry_is_the_end(most):
    scene = GoScene()
    job = scene.push(most_attempts=most)
    for _ in range(most):
        assert scene.lease() is job
        scene.advance(10)
    assert (job.state, job.attempt) == (DEAD, most)
    assert scene.lease() is None
    assert job.due == scene.now + 180 * DAY


def test_after_so_many_leases_a_failure_is_the_end_as_well():
    scene = GoScene()
    job = scene.pushed_and_leased(most_attempts=1)
    scene.fail(job)
    assert job.state == DEAD


def test_a_lease_given_back_is_none_of_them():
    scene = GoScene()
    job = scene.pushed_and_leased(most_attempts=1)
    scene.engine.release(job, scene.now)
    scene.lease()
    assert job.attempt == 1
    scene.complete(job)


def test_a_failure_said_by_others_comes_back_when_the_time_to_process_is_over(go):
    job = go.engine.find("a")
    over = job.deadline
    go.advance(4)
    go.fail(job)
    assert (job.state, job.due, job.failures) == (SCHEDULED, over, 1)
    go.advance_to(over - 1)
    assert job.state == SCHEDULED
    go.advance_to(over)
    assert job.state == READY


def test_and_then_it_is_at_its_old_place_as_after_an_expiry(go):
    go.fail(go.engine.find("a"))
    again = restarted(go, MemoryStore())
    for scene in (go, again):
        scene.advance(10)
        assert ready_jids(scene.engine) == ["a", "b", "c"]


def test_its_first_moment_is_an_arrival_nevertheless():
    scene = GoScene()
    scene.push("scheduled", due=scene.now + 5 * SECOND)
    scene.advance(1)
    scene.push("other")
    scene.advance(4)
    assert ready_jids(scene.engine) == ["other", "scheduled"]


def test_a_failure_said_when_the_time_is_over_anyhow_changes_nothing(go):
    job = go.engine.find("a")
    go.now += 10 * SECOND  # and the timer has not come yet
    go.fail(job)
    assert (job.state, job.failures) == (READY, 1)
    assert ready_jids(go.engine) == ["a", "b", "c"]


def test_a_failure_said_of_a_job_that_nobody_ever_held_changes_nothing():
    scene = GoScene()
    for jid in ("a", "b"):
        scene.push(jid)
        scene.advance(1)
    job = scene.engine.find("a")
    scene.engine.fail(job, scene.now, WORKQ, "Oops", "", [], unleased=True)
    assert job.state == READY
    assert ready_jids(scene.engine) == ["a", "b"]


def test_a_failure_said_of_a_job_that_waits_for_its_moment_leaves_it_waiting():
    scene = GoScene()
    job = scene.push(due=scene.now + 60 * SECOND)
    scene.engine.fail(job, scene.now, WORKQ, "Oops", "", [], unleased=True)
    assert (job.state, job.due, scene.engine.retrying) == (SCHEDULED, scene.now + 60 * SECOND, 1)
    scene.advance(60)
    assert (job.state, scene.engine.retrying) == (READY, 0)


# HTTP


@pytest.mark.parametrize("failures", [1, 2, 7])
def test_http_waits_as_faktory_does(failures):
    job = failed_job(failures)
    theirs = FaktoryPolicy().after_failure(job, START, Random(3))
    assert HttpPolicy().after_failure(job, START, Random(3)) == theirs
    assert HttpPolicy().after_expiry(job, START, Random(3)) == theirs


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_http_s_last_failure_is_death_also_without_retries(retries):
    scene = Scene()
    job = scene.push(origin=HTTP, retries=retries)
    for _ in range(retries + 1):
        assert scene.lease() is job
        scene.fail(job)
        scene.advance_to(job.due if job.state == SCHEDULED else 0)
    assert (job.state, job.due) == (DEAD, scene.now + 180 * DAY)
    scene.advance_to(job.due)
    assert not scene.engine.jobs
