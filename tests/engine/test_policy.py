"""What follows a failure, by the rules of the protocol that pushed the job."""

from random import Random

import pytest

from millrace.engine.job import FAKTORY, Job
from millrace.engine.policy import DAY, POLICIES, SECOND, FaktoryPolicy, Verdict
from millrace.engine.states import DEAD, GONE, LEASED, SCHEDULED
from scene import START, Scene


def failed_job(failures: int, retries: int = 25) -> Job:
    scene = Scene()
    job = scene.pushed_and_leased(retries=retries)
    job.failures = failures
    return job


def verdict(failures: int, retries: int = 25, random: Random | None = None) -> Verdict:
    """What the policy says of a job that has just failed for so many times."""
    return FaktoryPolicy().after_failure(failed_job(failures, retries), START, random or Random(1))


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
