"""Retry policies, one per protocol: they decide what follows a failed or expired attempt.

The engine carries out the decision. It also provides the randomness, so a seed repeats a run.
"""

from random import Random
from typing import Final, NamedTuple, Protocol

from .job import EARLIER, FAKTORY, FOREVER, GOQUEUE, HTTP, MASENKO, QLESS, WORKQ, Job
from .states import DEAD, GONE, READY, SCHEDULED

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND


class Verdict(NamedTuple):
    """The next state of a job, the time of its retry, and its place if that is fixed."""

    state: int
    due: int = 0
    place: int = 0


class Policy(Protocol):
    #: Retention of a dead job in microseconds. With FOREVER it stays until a client removes it, and
    #: the bound of the dead set does not apply.
    dead_for: int
    #: Group and message of the error of an expired lease.
    expired: tuple[str, str]

    #: Whether an expired lease counts as a failure of the job.
    expiry_fails: bool
    #: Whether a job fails with its blocker; otherwise it continues to wait for the dead blocker.
    dies_with_blocker: bool
    #: Whether a failed job returns to its old place; otherwise it is behind the ready jobs.
    keeps_place: bool

    def after_failure(self, job: Job, now: int, random: Random) -> Verdict:
        """Decide for a job whose `failures` already counts this one."""
        ...

    def after_expiry(self, job: Job, now: int, random: Random) -> Verdict:
        """Decide for a job with an expired lease."""
        ...


class FaktoryPolicy:
    """count^4 + 15 + rand(0..29) * (count + 1) seconds, `retries` times; then the dead set.

    `retries` 0 discards at the first failure, a negative one goes to the dead set at once.
    """

    dead_for = 180 * DAY
    expired = ("ReservationExpired", "Faktory job reservation expired")
    expiry_fails = True
    keeps_place = False
    dies_with_blocker = False

    def after_failure(self, job: Job, now: int, random: Random) -> Verdict:
        if job.retries == 0:
            return Verdict(GONE)
        return _later_and_later(job, now, random)

    def after_expiry(self, job: Job, now: int, random: Random) -> Verdict:
        return self.after_failure(job, now, random)


def _later_and_later(job: Job, now: int, random: Random) -> Verdict:
    count = job.failures - 1
    if count >= job.retries:
        return Verdict(DEAD)
    seconds = count**4 + 15 + random.randrange(30) * (count + 1)
    return Verdict(SCHEDULED, now + seconds * SECOND)


class WorkqPolicy:
    """Ready again immediately, at its old place. Failure number `retries` is the last one (0 and 1
    both mean the first); after `most_attempts` leases, a failure or an expiry is final.

    A transient job has one attempt.
    """

    dead_for = 0
    expired = ("LeaseExpired", "the time to run is over")
    expiry_fails = False
    keeps_place = False
    dies_with_blocker = False

    def after_failure(self, job: Job, now: int, random: Random) -> Verdict:
        if job.failures >= job.retries:
            return self._end(job)
        return self.after_expiry(job, now, random)

    def after_expiry(self, job: Job, now: int, random: Random) -> Verdict:
        fleeting = job.extra is not None and job.extra.fleeting
        if fleeting or 0 < job.most_attempts <= job.attempt:
            return self._end(job)
        return Verdict(READY)

    def _end(self, job: Job) -> Verdict:
        fleeting = job.extra is not None and job.extra.fleeting
        return Verdict(GONE if fleeting else DEAD)


class MasenkoPolicy:
    """failures^4 seconds, rounded down, `retries` times; then the failure is final, also for jobs
    that wait for this one.

    Due tasks precede tasks without a delay, the earliest first.
    """

    dead_for = 180 * DAY
    expired = ("LeaseExpired", "the time to run is over")
    expiry_fails = True
    keeps_place = False
    dies_with_blocker = True

    def after_failure(self, job: Job, now: int, random: Random) -> Verdict:
        if job.failures > job.retries:
            return Verdict(DEAD)
        due = (now // SECOND + job.failures**4) * SECOND
        return Verdict(SCHEDULED, due, EARLIER + due)

    def after_expiry(self, job: Job, now: int, random: Random) -> Verdict:
        return self.after_failure(job, now, random)


class GoqueuePolicy:
    """Ready again at its old place when the time to process has ended, also after a failure that
    another protocol reports. After `most_attempts` leases it is dead.
    """

    dead_for = 180 * DAY
    expired = ("LeaseExpired", "the time to process is over")
    expiry_fails = True
    keeps_place = True
    dies_with_blocker = False

    def after_failure(self, job: Job, now: int, random: Random) -> Verdict:
        if 0 < job.most_attempts <= job.attempt:
            return Verdict(DEAD)
        due = job.leased_at + job.lease_for
        return Verdict(SCHEDULED, due) if due > now else Verdict(READY)

    def after_expiry(self, job: Job, now: int, random: Random) -> Verdict:
        return Verdict(DEAD) if 0 < job.most_attempts <= job.attempt else Verdict(READY)


class QlessPolicy:
    """Ready again immediately, `retries` times; then failed until a client decides."""

    dead_for = FOREVER
    expired = ("LeaseExpired", "the time to run is over")
    expiry_fails = True
    keeps_place = False
    dies_with_blocker = False

    def after_failure(self, job: Job, now: int, random: Random) -> Verdict:
        return Verdict(DEAD if job.failures > job.retries else READY)

    def after_expiry(self, job: Job, now: int, random: Random) -> Verdict:
        return self.after_failure(job, now, random)


class HttpPolicy:
    """Faktory's delays, `retries` times, then the dead set."""

    dead_for = 180 * DAY
    expired = ("LeaseExpired", "the time to run is over")
    expiry_fails = True
    keeps_place = False
    dies_with_blocker = False

    def after_failure(self, job: Job, now: int, random: Random) -> Verdict:
        return _later_and_later(job, now, random)

    def after_expiry(self, job: Job, now: int, random: Random) -> Verdict:
        return self.after_failure(job, now, random)


POLICIES: Final[dict[int, Policy]] = {
    WORKQ: WorkqPolicy(),
    MASENKO: MasenkoPolicy(),
    FAKTORY: FaktoryPolicy(),
    QLESS: QlessPolicy(),
    GOQUEUE: GoqueuePolicy(),
    HTTP: HttpPolicy(),
}

#: Protocols whose leases end with the holder's connection, without a deadline.
BOUND: Final = frozenset({MASENKO})
#: Protocols whose leases have no timer. Qless leases expire by the clock of the next client.
UNTIMED: Final = BOUND | {QLESS}
#: Protocols whose leases only the holder can end; other leases end by the job's id.
EXCLUSIVE: Final = frozenset({MASENKO, QLESS, HTTP})
#: Protocols whose jobs return to their place after a failure.
RETURNING: Final = frozenset(code for code, policy in POLICIES.items() if policy.keeps_place)
#: Protocols whose done and dead jobs stay until a client removes them.
KEPT: Final = frozenset(code for code, policy in POLICIES.items() if policy.dead_for == FOREVER)
