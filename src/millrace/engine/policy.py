"""What happens after an attempt that did not succeed: one policy per protocol of origin.

A policy only decides; the engine carries it out. Randomness is the engine's, so a seed replays it.
"""

from random import Random
from typing import Final, NamedTuple, Protocol

from .job import FAKTORY, Job
from .states import DEAD, GONE, SCHEDULED

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND


class Verdict(NamedTuple):
    """Where a job goes after a failed attempt, and when if it is to be tried again."""

    state: int
    due: int = 0


class Policy(Protocol):
    #: How long a dead job is kept, in microseconds.
    dead_for: int
    #: Group and message of the failure that an expired lease is.
    expired: tuple[str, str]

    def after_failure(self, job: Job, now: int, random: Random) -> Verdict:
        """Decide for a job whose `failures` already counts this one."""
        ...


class FaktoryPolicy:
    """count^4 + 15 + rand(0..29) * (count + 1) seconds, `retries` times; then the dead set.

    `retries` 0 discards at the first failure, a negative one goes to the dead set at once.
    """

    dead_for = 180 * DAY
    expired = ("ReservationExpired", "Faktory job reservation expired")

    def after_failure(self, job: Job, now: int, random: Random) -> Verdict:
        if job.retries == 0:
            return Verdict(GONE)
        count = job.failures - 1
        if count >= job.retries:
            return Verdict(DEAD)
        seconds = count**4 + 15 + random.randrange(30) * (count + 1)
        return Verdict(SCHEDULED, now + seconds * SECOND)


POLICIES: Final[dict[int, Policy]] = {FAKTORY: FaktoryPolicy()}
