"""The rules that a protocol gives to the engine: retries of its jobs, rights of its leases.

The protocol that pushed a job decides the next state after a failure. The protocol that leased the
job decides how the holder keeps and loses the lease. Each protocol declares its rules in its
`spec.py`.
"""

from collections.abc import Iterable
from operator import attrgetter
from random import Random
from typing import ClassVar, Final

from mypy_extensions import mypyc_attr

from .job import FOREVER, SECOND, Job
from .states import DEAD, SCHEDULED


class RetryDecision:
    """The next state of a job, the time of its retry, and its position if that is fixed."""

    __slots__ = ("due_at", "position", "state")

    def __init__(self, state: int, due_at: int = 0, position: int = 0) -> None:
        self.state = state
        self.due_at = due_at
        self.position = position


@mypyc_attr(allow_interpreted_subclasses=True)
class RetryPolicy:
    """Decides the next state of a job of this protocol after a failed or expired attempt.

    The engine carries out the decision. It provides the randomness, so that a run with the same
    seed is repeatable. The attributes are class variables, so that compiled code finds the values
    of a Python subclass.
    """

    #: Retention of a dead job in microseconds. With FOREVER it stays until a client removes it, and
    #: the maximum of the dead set does not apply.
    dead_retention: ClassVar[int] = 15_552_000_000_000  # 180 days
    #: Group and message of the error of an expired lease.
    expiry_error: ClassVar[tuple[str, str]] = ("LeaseExpired", "the time to run has expired")
    #: Whether an expired lease counts as a failure of the job.
    expiry_counts_as_failure: ClassVar[bool] = True
    #: Whether a job fails with its blocker; otherwise it continues to wait for the dead blocker.
    fails_with_blocker: ClassVar[bool] = False
    #: Whether a queue is removed after the final failure of its last job.
    removes_empty_queue: ClassVar[bool] = False
    #: Whether a failed job returns to its old place; otherwise it is behind the ready jobs.
    keeps_position: ClassVar[bool] = False

    def after_failure(self, job: Job, now: int, random: Random) -> RetryDecision:
        """Decide the next state of a failed job. `job.history.failures` includes this failure."""
        raise NotImplementedError

    def after_expiry(self, job: Job, now: int, random: Random) -> RetryDecision:
        """Decide the next state of a job with an expired lease."""
        return self.after_failure(job, now, random)


def retry_with_backoff(job: Job, now: int, random: Random) -> RetryDecision:
    """Retry after count^4 + 15 + rand(0..29) * (count + 1) seconds, `retries` times; then the job
    is dead.
    """
    count = job.history.failures - 1
    if count >= job.retries:
        return RetryDecision(DEAD)
    seconds = count**4 + 15 + random.randrange(30) * (count + 1)
    return RetryDecision(SCHEDULED, now + seconds * SECOND)


class LeaseRights:
    """The rules by which holders keep and lose leases of a protocol."""

    __slots__ = ("bound", "exclusive", "timed")

    def __init__(self, *, bound: bool = False, timed: bool = True, exclusive: bool = False) -> None:
        #: A lease ends with the holder's connection, and has no deadline.
        self.bound = bound
        #: A timer of the engine ends a lease at its deadline.
        self.timed = timed
        #: Only the holder can end a lease; otherwise any client with the job's id can.
        self.exclusive = exclusive


class ProtocolRules:
    """The rules of one protocol. `code` identifies it in a job's record."""

    __slots__ = ("code", "label", "name", "own_clock", "policy", "rights")

    def __init__(
        self,
        code: int,
        name: str,
        label: str,
        policy: RetryPolicy,
        rights: LeaseRights | None = None,
        own_clock: bool = False,
    ) -> None:
        self.code = code
        self.name = name
        self.label = label
        self.policy = policy
        self.rights = LeaseRights() if rights is None else rights
        #: Clients send their own time, which applies to their jobs and leases.
        self.own_clock = own_clock


class RuleTable:
    """The rules of all protocols, by code. Each set contains the codes of the protocols to which
    its description applies.
    """

    __slots__ = (
        "bound_protocols",
        "exclusive_protocols",
        "keep_position_protocols",
        "labels",
        "names",
        "own_clock_protocols",
        "policies",
        "retaining_protocols",
        "untimed_protocols",
    )

    def __init__(self, rules: Iterable[ProtocolRules]) -> None:
        table = sorted(rules, key=attrgetter("code"))
        self.names: Final = {0: "", **{each.code: each.name for each in table}}
        self.labels: Final = {0: "", **{each.code: each.label for each in table}}
        self.policies: Final = {each.code: each.policy for each in table}
        #: Leases end with the holder's connection and have no deadline.
        self.bound_protocols: Final = frozenset(each.code for each in table if each.rights.bound)
        #: Leases have no timer.
        self.untimed_protocols: Final = frozenset(
            each.code for each in table if each.rights.bound or not each.rights.timed
        )
        #: Only the holder can end a lease. In other protocols, any client with the job's id can.
        self.exclusive_protocols: Final = frozenset(
            each.code for each in table if each.rights.exclusive
        )
        #: Jobs return to their place after a failure.
        self.keep_position_protocols: Final = frozenset(
            each.code for each in table if each.policy.keeps_position
        )
        #: Done and dead jobs stay until a client removes them.
        self.retaining_protocols: Final = frozenset(
            each.code for each in table if each.policy.dead_retention == FOREVER
        )
        #: Clients send their own time.
        self.own_clock_protocols: Final = frozenset(each.code for each in table if each.own_clock)
