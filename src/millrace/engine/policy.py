"""What happens after an attempt that did not succeed: one policy per protocol of origin.

A policy only decides; the engine carries it out. Randomness is the engine's, so a seed replays it.
"""

from random import Random
from typing import Final, NamedTuple, Protocol

from .job import EARLIER, FAKTORY, FOREVER, GOQUEUE, HTTP, MASENKO, QLESS, WORKQ, Job
from .states import DEAD, GONE, READY, SCHEDULED

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND


class Verdict(NamedTuple):
    """Where a job goes after a failed attempt, and when if it is to be tried again; the place it
    then has, if not that of its arrival.
    """

    state: int
    due: int = 0
    place: int = 0


class Policy(Protocol):
    #: How long a dead job is kept, in microseconds. FOREVER: until somebody takes it away, and it
    #: is not one of those of which only so many are kept.
    dead_for: int
    #: Group and message of the failure that an expired lease is.
    expired: tuple[str, str]

    #: Whether an expired lease is one of the job's failures.
    expiry_fails: bool
    #: Whether a job fails with one that it waits for; else it goes on waiting for a dead one.
    dies_with_blocker: bool
    #: Whether a job that failed comes back to its old place; else it is behind the others.
    keeps_place: bool

    def after_failure(self, job: Job, now: int, random: Random) -> Verdict:
        """Decide for a job whose `failures` already counts this one."""
        ...

    def after_expiry(self, job: Job, now: int, random: Random) -> Verdict:
        """Decide for a job whose holder said nothing in time."""
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
    """Ready again, at its old place, at once. The failure number `retries` is the last one (0 and 1
    both mean the first); after `most_attempts` leases neither failure nor expiry is forgiven.

    A job that goes with its client gets one attempt.
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
    """failures^4 seconds, cut to a whole second, `retries` times; then the job has failed for good,
    and those that wait for it with it.

    Due tasks go before those that were never delayed, the earliest first.
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
    """Ready again, at its old place, when the time to process is over; a failure, which only other
    protocols can report, changes nothing of that. After `most_attempts` leases it is dead.
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
    """Ready again at once, `retries` times; then failed, and kept until somebody decides."""

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
    """Faktory's waits, `retries` times, which may be none; then the dead set."""

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

#: Whose leases last as long as the holder's connection, not until a deadline: the rights of a
#: holder are those of its own protocol.
BOUND: Final = frozenset({MASENKO})
#: Whose leases no timer of ours ends: those, and Qless's, which end by the clock of whoever asks.
UNTIMED: Final = BOUND | {QLESS}
#: Whose leases only their holder may end; those of others anybody may who knows the job's id.
EXCLUSIVE: Final = frozenset({MASENKO, QLESS, HTTP})
#: Whose jobs keep their place when they come back.
RETURNING: Final = frozenset(code for code, policy in POLICIES.items() if policy.keeps_place)
#: Whose jobs stay, done or dead, until somebody takes them away.
KEPT: Final = frozenset(code for code, policy in POLICIES.items() if policy.dead_for == FOREVER)
