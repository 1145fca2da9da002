"""The consequences of a failure, by the policy of the pushing protocol."""

from random import Random

import pytest

from millrace.engine.job import BEFORE_ARRIVALS, DAY, SECOND, Job
from millrace.engine.policies import RetryDecision
from millrace.engine.states import DEAD, GONE, LEASED, READY, SCHEDULED
from millrace.protocols.faktory.spec import FaktoryPolicy
from millrace.protocols.goqueue.spec import GoqueuePolicy
from millrace.protocols.http.spec import HttpPolicy
from millrace.protocols.masenko.spec import MasenkoPolicy
from millrace.protocols.registry import FAKTORY, GOQUEUE, HTTP, MASENKO, WORKQ
from millrace.protocols.spec import protocol_rules
from millrace.store import MemoryStore
from scene import START, MasenkoScene, Scene, ready_jids, restarted
from support.plain import values


def failed_job(failures: int, retries: int = 25) -> Job:
    scene = Scene()
    job = scene.pushed_and_leased(retries=retries)
    job.history.failures = failures
    return job


def verdict(failures: int, retries: int = 25, random: Random | None = None) -> RetryDecision:
    """The verdict of the policy for a job after this number of failures."""
    return FaktoryPolicy().after_failure(failed_job(failures, retries), START, random or Random(1))


# Faktory


class FixedRandom(Random):
    """Always returns the given number."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def randrange(self, stop: int) -> int:
        assert stop == 30
        return self.side


def delays(count: int) -> set[int]:
    """Every delay in seconds that the policy can return after `count` earlier failures."""
    answers = [verdict(count + 1, random=FixedRandom(side)) for side in range(30)]
    assert {answer.state for answer in answers} == {SCHEDULED}
    return {(answer.due_at - START) / SECOND for answer in answers}


def test_each_protocol_has_its_policy():
    assert isinstance(protocol_rules().policies[FAKTORY], FaktoryPolicy)
    assert isinstance(protocol_rules().policies[MASENKO], MasenkoPolicy)
    assert isinstance(protocol_rules().policies[GOQUEUE], GoqueuePolicy)


def test_only_masenko_leases_are_bound_and_only_masenko_jobs_fail_with_their_blockers():
    rules = protocol_rules()
    assert rules.bound_protocols == {MASENKO}
    policies = rules.policies
    assert [origin for origin in policies if policies[origin].fails_with_blocker] == [MASENKO]


@pytest.mark.parametrize("count", [0, 1, 2, 10, 24])
def test_the_delay_is_count_to_the_fourth_plus_15_plus_up_to_29_times_count_plus_1(count):
    assert delays(count) == {count**4 + 15 + side * (count + 1) for side in range(30)}


def test_the_first_delay_is_between_15_and_44_seconds():
    assert min(delays(0)) == 15
    assert max(delays(0)) == 44


def test_the_last_of_25_delays_is_about_four_days():
    assert min(delays(24)) == 331_791
    assert max(delays(24)) == 332_516


def test_the_delay_uses_the_whole_range_of_the_random_term():
    random = Random(5)
    seen = {verdict(1, random=random).due_at - START for _ in range(2000)}
    assert seen == {(15 + side) * SECOND for side in range(30)}


def test_the_same_seed_returns_the_same_delays():
    first = [verdict(n, random=Random(9)).due_at for n in range(1, 20)]
    assert first == [verdict(n, random=Random(9)).due_at for n in range(1, 20)]


@pytest.mark.parametrize("failures", [1, 2, 100])
def test_retry_0_discards(failures):
    assert verdict(failures, retries=0).state == GONE


@pytest.mark.parametrize("retries", [-1, -2, -(10**9)])
def test_a_negative_retry_is_dead_immediately(retries):
    assert verdict(1, retries).state == DEAD


@pytest.mark.parametrize("retries", [1, 2, 25])
def test_retry_n_adds_n_attempts(retries):
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
            scene.advance_to(job.due_at)
    assert executions == 26
    assert job.state == DEAD
    assert job.failures == 26


def test_dead_jobs_are_retained_for_180_days():
    scene = Scene()
    job = scene.pushed_and_leased(retries=-1)
    scene.fail(job)
    assert job.due_at == START + 180 * DAY
    scene.advance(180 * 86_400 - 1)
    assert scene.engine.find("job-1") is job
    scene.advance(1)
    assert scene.engine.find("job-1") is None


def test_an_expired_reservation_has_the_message_of_the_original():
    scene = Scene()
    job = scene.pushed_and_leased()
    scene.advance(1800)
    assert job.failure is not None
    assert job.failure.group == "ReservationExpired"
    assert job.failure.message == "Faktory job reservation expired"


# Masenko


@pytest.mark.parametrize("failures", [1, 2, 3, 4, 5, 6, 20])
@pytest.mark.parametrize("fraction", [0, 1, 400_000, 999_999])
def test_the_masenko_delay_is_failures_to_the_fourth_and_ends_at_a_whole_second(failures, fraction):
    job = failed_job(failures, retries=20)
    now = START + fraction
    answer = MasenkoPolicy().after_failure(job, now, Random(1))
    assert answer.state == SCHEDULED
    assert answer.due_at == START + failures**4 * SECOND
    assert answer.due_at > now
    assert answer.position == BEFORE_ARRIVALS + answer.due_at
    assert values(MasenkoPolicy().after_expiry(job, now, Random(2))) == values(answer)


@pytest.mark.parametrize("retries", [0, 1, 2, 20])
def test_masenko_retry_n_adds_n_attempts(retries):
    scene = MasenkoScene()
    job = scene.push(retries=retries)
    failures = []
    while scene.lease() is job:
        failures.append(job.failures)
        scene.fail(job)
        if job.state == SCHEDULED:
            scene.advance_to(job.due_at)
    assert failures == list(range(retries + 1))
    assert (job.state, job.failures) == (DEAD, retries + 1)
    assert job.due_at == scene.now + 180 * DAY


def test_the_last_of_255_delays_is_in_range():
    job = failed_job(255, retries=255)
    answer = MasenkoPolicy().after_failure(job, START, Random(1))
    assert answer.due_at == START + 255**4 * SECOND
    assert BEFORE_ARRIVALS < answer.position < 0


# Go Job Queue


class GoScene(Scene):
    def push(self, jid: str = "job-1", queue: str = "default", **fields) -> Job:
        fields.setdefault("lease_duration", 10 * SECOND)
        return super().push(jid, queue, origin=GOQUEUE, retries=0, **fields)

    def lease(self, *queues: str, holder: str = "") -> Job | None:
        return self.engine.lease(queues or ("default",), holder, GOQUEUE, self.now)


@pytest.fixture
def goqueue_scene() -> GoScene:
    """Three jobs, a second apart; the first one is leased."""
    scene = GoScene()
    for jid in ("a", "b", "c"):
        scene.push(jid)
        scene.advance(1)
    scene.lease()
    return scene


def test_at_the_end_of_the_ttp_the_job_is_ready_at_its_old_position(goqueue_scene):
    job = goqueue_scene.engine.find("a")
    goqueue_scene.advance(9.999999)
    assert job.state == LEASED
    goqueue_scene.advance(0.000001)
    assert (job.state, job.attempt, job.failures) == (READY, 1, 1)
    assert ready_jids(goqueue_scene.engine) == ["a", "b", "c"]
    assert goqueue_scene.events()[-1].group == "LeaseExpired"
    assert goqueue_scene.events()[-1].message == "the time to process has expired"


def test_the_job_always_returns(goqueue_scene):
    for attempt in range(1, 300):
        assert goqueue_scene.engine.find("a").attempt == attempt
        goqueue_scene.advance(10)
        assert goqueue_scene.lease().jid == "a"


def test_the_order_of_ranks_holds_after_an_expiry():
    scene = GoScene()
    for number, priority in enumerate((2, 1, 4, 1, 2, 3), start=1):
        scene.push(str(number), rank=-priority)
    first = scene.lease()
    scene.advance(10)
    assert first.jid == "2"
    assert ready_jids(scene.engine) == ["2", "4", "1", "5", "6", "3"]


@pytest.mark.parametrize("maximum", [1, 2, 5])
def test_after_the_last_attempt_an_expiry_is_final(maximum):
    scene = GoScene()
    job = scene.push(max_attempts=maximum)
    for _ in range(maximum):
        assert scene.lease() is job
        scene.advance(10)
    assert (job.state, job.attempt) == (DEAD, maximum)
    assert scene.lease() is None
    assert job.due_at == scene.now + 180 * DAY


def test_after_the_last_attempt_a_failure_is_final():
    scene = GoScene()
    job = scene.pushed_and_leased(max_attempts=1)
    scene.fail(job)
    assert job.state == DEAD


def test_a_released_lease_does_not_count_as_an_attempt():
    scene = GoScene()
    job = scene.pushed_and_leased(max_attempts=1)
    scene.engine.release(job, scene.now)
    scene.lease()
    assert job.attempt == 1
    scene.complete(job)


def test_a_job_failed_by_another_protocol_returns_at_the_end_of_the_ttp(goqueue_scene):
    job = goqueue_scene.engine.find("a")
    over = job.deadline
    goqueue_scene.advance(4)
    goqueue_scene.fail(job)
    assert (job.state, job.due_at, job.failures) == (SCHEDULED, over, 1)
    goqueue_scene.advance_to(over - 1)
    assert job.state == SCHEDULED
    goqueue_scene.advance_to(over)
    assert job.state == READY


def test_a_job_failed_by_another_protocol_returns_to_its_old_position(goqueue_scene):
    goqueue_scene.fail(goqueue_scene.engine.find("a"))
    again = restarted(goqueue_scene, MemoryStore())
    for scene in (goqueue_scene, again):
        scene.advance(10)
        assert ready_jids(scene.engine) == ["a", "b", "c"]


def test_the_first_due_time_is_an_arrival():
    scene = GoScene()
    scene.push("scheduled", due_at=scene.now + 5 * SECOND)
    scene.advance(1)
    scene.push("other")
    scene.advance(4)
    assert ready_jids(scene.engine) == ["other", "scheduled"]


def test_a_failure_after_the_ttp_has_no_effect(goqueue_scene):
    job = goqueue_scene.engine.find("a")
    goqueue_scene.now += 10 * SECOND  # before the timer fires
    goqueue_scene.fail(job)
    assert (job.state, job.failures) == (READY, 1)
    assert ready_jids(goqueue_scene.engine) == ["a", "b", "c"]


def test_a_failure_of_a_job_that_was_never_leased_has_no_effect():
    scene = GoScene()
    for jid in ("a", "b"):
        scene.push(jid)
        scene.advance(1)
    job = scene.engine.find("a")
    scene.engine.fail(job, scene.now, WORKQ, "Oops", "", [], allow_unleased=True)
    assert job.state == READY
    assert ready_jids(scene.engine) == ["a", "b"]


def test_a_failure_of_a_scheduled_job_keeps_it_scheduled():
    scene = GoScene()
    job = scene.push(due_at=scene.now + 60 * SECOND)
    scene.engine.fail(job, scene.now, WORKQ, "Oops", "", [], allow_unleased=True)
    assert (job.state, job.due_at, scene.engine.retrying) == (SCHEDULED, scene.now + 60 * SECOND, 1)
    scene.advance(60)
    assert (job.state, scene.engine.retrying) == (READY, 0)


# HTTP


@pytest.mark.parametrize("failures", [1, 2, 7])
def test_http_delays_equal_those_of_faktory(failures):
    job = failed_job(failures)
    theirs = FaktoryPolicy().after_failure(job, START, Random(3))
    assert values(HttpPolicy().after_failure(job, START, Random(3))) == values(theirs)
    assert values(HttpPolicy().after_expiry(job, START, Random(3))) == values(theirs)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_the_last_failure_makes_an_http_job_dead_even_without_retries(retries):
    scene = Scene()
    job = scene.push(origin=HTTP, retries=retries)
    for _ in range(retries + 1):
        assert scene.lease() is job
        scene.fail(job)
        scene.advance_to(job.due_at if job.state == SCHEDULED else 0)
    assert (job.state, job.due_at) == (DEAD, scene.now + 180 * DAY)
    scene.advance_to(job.due_at)
    assert not scene.engine.jobs
