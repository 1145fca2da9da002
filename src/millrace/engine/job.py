"""The record of a job in memory. store/records.py defines its form on disk."""

from typing import Final

from mypy_extensions import mypyc_attr

from .details import JobDetails, Number
from .states import LEASED

#: The code of the server itself, as the actor of an event. Protocol codes start at 1.
NO_PROTOCOL: Final = 0

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND

#: Positions from this value on are fixed, and follow all positions that the engine assigns.
AFTER_ARRIVALS: Final = 1 << 62
#: A position below 0 is also fixed, and is ahead of all arrivals.
BEFORE_ARRIVALS: Final = -AFTER_ARRIVALS
#: The last possible time, which is the largest signed 64-bit number.
FOREVER: Final = (1 << 63) - 1

#: The jid that the engine generates for a job that was pushed without one: this prefix and the seq
#: in 12 hex digits. It is a UUID, so every protocol can use it.
SEQ_ID_PREFIX: Final = "00000000-0000-4000-8000-"


def add_time(time: int, duration: int) -> int:
    """The sum, or FOREVER if a signed 64-bit number cannot hold it."""
    return FOREVER if duration > FOREVER - time else time + duration


def id_from_seq(seq: int) -> str:
    return f"{SEQ_ID_PREFIX}{seq:012x}"


def seq_from_id(jid: str) -> int:
    """The seq of a generated jid; 0, which no job has, for any other jid."""
    if not jid.startswith(SEQ_ID_PREFIX):
        return 0
    try:
        return int(jid[len(SEQ_ID_PREFIX) :], 16)
    except ValueError:
        return 0


#: An earlier failure with a backtrace: attempt, time, group, message, backtrace.
EarlierFailure = tuple[int, int, str, str, list[str]]


@mypyc_attr(acyclic=True)
class Failure:
    """The first failure's time, the last failure, and the backtraces of failures before it."""

    __slots__ = ("attempt", "backtrace", "earlier", "first_at", "group", "last_at", "message")

    def __init__(
        self,
        first_at: int,
        last_at: int,
        group: str,
        message: str,
        backtrace: list[str],
        attempt: int = 0,
        earlier: list[EarlierFailure] | None = None,
    ) -> None:
        self.first_at = first_at
        self.last_at = last_at
        self.group = group
        self.message = message
        self.backtrace = backtrace
        self.attempt = attempt
        #: Newest first; None if there are none.
        self.earlier = earlier


@mypyc_attr(acyclic=True)
class Extra:
    """Rare fields of a job, in a record of their own to save memory."""

    __slots__ = (
        "blockers",
        "dead_queue",
        "details",
        "load",
        "result",
        "retention",
        "tags",
        "transient",
    )

    def __init__(
        self,
        tags: list[str] | None = None,
        blockers: list[int] | None = None,
        result: bytes | None = None,
        transient: bool = False,
        dead_queue: str = "",
        details: JobDetails | None = None,
        load: str = "",
        retention: int = -1,
    ) -> None:
        self.tags = [] if tags is None else tags
        self.blockers = [] if blockers is None else blockers
        self.result = result
        #: The job ends with the connection of its client, and with the server.
        self.transient = transient
        #: The queue that the job moves to, once, after its final failure.
        self.dead_queue = dead_queue
        #: Details that few jobs have.
        self.details = details
        #: The bulk load that must be released before the job can run; see bulk_loads.py.
        self.load = load
        #: Retention of the completed job in microseconds; -1: the setting of its queue applies.
        self.retention = retention

    @property
    def is_empty(self) -> bool:
        """Whether every field has its default."""
        return (
            not self.tags
            and not self.blockers
            and self.result is None
            and not self.transient
            and not self.dead_queue
            and self.details is None
            and not self.load
            and self.retention == -1
        )


@mypyc_attr(acyclic=True)
class JobTotals:
    """Totals over all attempts of a job, and details of its last lease. Durations are in
    microseconds.
    """

    __slots__ = (
        "complete",
        "failures",
        "first_leased_at",
        "first_queue",
        "lease_wait",
        "leases",
        "renewals",
        "run",
        "wait",
    )

    def __init__(
        self,
        leases: int = 0,
        failures: int = 0,
        wait: int = 0,
        run: int = 0,
        first_leased_at: int = 0,
        lease_wait: int = -1,
        renewals: int = 0,
        first_queue: str = "",
        complete: bool = True,
    ) -> None:
        self.leases = leases
        self.failures = failures
        self.wait = wait
        self.run = run
        self.first_leased_at = first_leased_at
        #: The wait before the last lease; -1 if it is unknown.
        self.lease_wait = lease_wait
        #: The number of renewals of the last lease.
        self.renewals = renewals
        #: The queue to which the job was pushed, if it was moved.
        self.first_queue = first_queue
        #: False for a job that had attempts before totals were recorded.
        self.complete = complete


@mypyc_attr(acyclic=True)
class LeaseHistory:
    """The attempts of a job, and how it last ended. A job that waits for its first lease has none,
    which saves memory.
    """

    __slots__ = (
        "attempt",
        "deadline",
        "ended_at",
        "failure",
        "failures",
        "holder",
        "holder_protocol",
        "leased_at",
        "outcome",
        "totals",
    )

    def __init__(
        self,
        attempt: int = 0,
        failures: int = 0,
        leased_at: int = 0,
        deadline: int = 0,
        holder: str = "",
        holder_protocol: int = NO_PROTOCOL,
        failure: Failure | None = None,
        ended_at: int = 0,
        outcome: str = "",
        totals: JobTotals | None = None,
    ) -> None:
        self.attempt = attempt
        self.failures = failures
        self.leased_at = leased_at
        self.deadline = deadline
        self.holder = holder
        self.holder_protocol = holder_protocol
        self.failure = failure
        #: The time at which the job last ended.
        self.ended_at = ended_at
        #: The cause of that end.
        self.outcome = outcome
        self.totals = totals


#: The history of all jobs that were never leased and never ended. It does not change; see
#: `ensure_history`.
NO_HISTORY: Final = LeaseHistory()


@mypyc_attr(acyclic=True)
class Terms:
    """Pushed fields that most jobs have in common with many others. Jobs share these objects, which
    do not change.
    """

    __slots__ = ("kind", "lease_duration", "max_attempts", "origin", "retries")

    def __init__(
        self, kind: str, origin: int, lease_duration: int, retries: int, max_attempts: int
    ) -> None:
        self.kind = kind
        self.origin = origin
        self.lease_duration = lease_duration
        self.retries = retries
        #: The maximum number of leases. 0: no limit.
        self.max_attempts = max_attempts


#: Above this number of different terms, new jobs do not share the terms of older ones.
MAX_SHARED_TERMS: Final = 10_000
#: Jobs with longer kinds do not share their terms, which would stay in memory after the jobs end.
MAX_SHARED_KIND: Final = 255
_shared_terms: Final[dict[tuple[str, int, int, int, int], Terms]] = {}


def _new_terms(key: tuple[str, int, int, int, int]) -> Terms:
    found = Terms(*key)
    if len(found.kind) > MAX_SHARED_KIND:
        return found
    if len(_shared_terms) >= MAX_SHARED_TERMS:
        _shared_terms.clear()
    _shared_terms[key] = found
    return found


class _LatestTerms:
    """The terms of the last job. The next job usually has the same, and a comparison takes less
    time than a search.
    """

    __slots__ = ("terms",)

    def __init__(self) -> None:
        self.terms = Terms("", 0, 0, 0, 0)


_latest: Final = _LatestTerms()


def forget_shared_terms() -> None:
    """Share no terms with the jobs that exist now, because a flush removes them."""
    _shared_terms.clear()
    _latest.terms = Terms("", 0, 0, 0, 0)


@mypyc_attr(acyclic=True)
class Job:
    """One unit of work. Times are microseconds since 1970."""

    __slots__ = (
        "created",
        "due_at",
        "expires_at",
        "extra",
        "history",
        "inline_payload",
        "jid",
        "position",
        "queue",
        "rank",
        "ready_at",
        "seq",
        "state",
        "stored_size",
        "terms",
        "wire_fields",
    )

    def __init__(
        self,
        seq: int,
        jid: str,
        kind: str,
        inline_payload: bytes,
        origin: int,
        created: int,
        lease_duration: int,
        retries: int,
        wire_fields: bytes,
        queue: str,
        state: int,
        rank: Number,
        position: int,
        due_at: int,
        ready_at: int = 0,
        history: LeaseHistory | None = None,
        extra: Extra | None = None,
        expires_at: int = 0,
        max_attempts: int = 0,
        *,
        stored_size: int = 0,
    ) -> None:
        # Pushed fields. After the push, only `Edits.update` changes them.
        self.seq = seq
        self.jid = jid
        terms = _latest.terms
        if (
            terms.kind != kind
            or terms.origin != origin
            or terms.lease_duration != lease_duration
            or terms.retries != retries
            or terms.max_attempts != max_attempts
        ):
            key = (kind, origin, lease_duration, retries, max_attempts)
            terms = _latest.terms = _shared_terms.get(key) or _new_terms(key)
        self.terms = terms
        #: The payload, unless it is in the store. Read it with `Engine.payload`.
        self.inline_payload = inline_payload
        #: The size of a payload in the store; 0: it is in memory.
        self.stored_size = stored_size
        self.created = created
        #: Wire fields that the origin's protocol returns unchanged; the engine does not read them.
        self.wire_fields = wire_fields
        #: The end of its time to live in any state; its result is available until then. 0: none.
        self.expires_at = expires_at
        # Mutable fields.
        self.queue = queue
        self.state = state
        self.rank = rank
        self.position = position
        self.due_at = due_at
        self.ready_at = ready_at
        #: Change its fields only after `ensure_history`.
        self.history = NO_HISTORY if history is None else history
        self.extra = extra

    def restore(
        self,
        queue: str,
        state: int,
        rank: Number,
        position: int,
        due_at: int,
        ready_at: int,
        history: LeaseHistory | None,
        extra: Extra | None,
    ) -> None:
        """Assign the mutable fields that the store has read. Only the store calls this."""
        self.queue = queue
        self.state = state
        self.rank = rank
        self.position = position
        self.due_at = due_at
        self.ready_at = ready_at
        self.history = NO_HISTORY if history is None else history
        self.extra = extra

    def change_terms(self, kind: str, retries: int) -> None:
        terms = self.terms
        key = (kind, terms.origin, terms.lease_duration, retries, terms.max_attempts)
        self.terms = _shared_terms.get(key) or _new_terms(key)

    @property
    def kind(self) -> str:
        return self.terms.kind

    @property
    def origin(self) -> int:
        return self.terms.origin

    @property
    def lease_duration(self) -> int:
        return self.terms.lease_duration

    @property
    def retries(self) -> int:
        return self.terms.retries

    @property
    def max_attempts(self) -> int:
        return self.terms.max_attempts

    @property
    def attempt(self) -> int:
        return self.history.attempt

    @property
    def failures(self) -> int:
        return self.history.failures

    @property
    def leased_at(self) -> int:
        return self.history.leased_at

    @property
    def deadline(self) -> int:
        return self.history.deadline

    @property
    def holder(self) -> str:
        return self.history.holder

    @property
    def holder_protocol(self) -> int:
        return self.history.holder_protocol

    @property
    def failure(self) -> Failure | None:
        return self.history.failure

    @property
    def ended_at(self) -> int:
        return self.history.ended_at

    @property
    def outcome(self) -> str:
        return self.history.outcome

    @property
    def totals(self) -> JobTotals | None:
        return self.history.totals


class NewJob:
    """A job to push."""

    __slots__ = (
        "blockers",
        "dead_queue",
        "details",
        "due_at",
        "expires_at",
        "jid",
        "kind",
        "lease_duration",
        "load",
        "max_attempts",
        "origin",
        "payload",
        "position",
        "queue",
        "rank",
        "retention",
        "retries",
        "tags",
        "transient",
        "wire_fields",
    )

    def __init__(
        self,
        jid: str,
        kind: str,
        payload: bytes,
        origin: int,
        queue: str,
        retries: int,
        lease_duration: int,
        wire_fields: bytes = b"",
        rank: Number = 0,
        due_at: int = 0,
        tags: list[str] | None = None,
        blockers: list[int] | None = None,
        position: int = 0,
        expires_at: int = 0,
        max_attempts: int = 0,
        transient: bool = False,
        dead_queue: str = "",
        details: JobDetails | None = None,
        load: str = "",
        retention: int = -1,
    ) -> None:
        #: Empty: the engine generates one.
        self.jid = jid
        self.kind = kind
        self.payload = payload
        self.origin = origin
        self.queue = queue
        self.retries = retries
        self.lease_duration = lease_duration
        self.wire_fields = wire_fields
        self.rank = rank
        self.due_at = due_at
        self.tags = [] if tags is None else tags
        self.blockers = [] if blockers is None else blockers
        #: A fixed position, relative to AFTER_ARRIVALS or BEFORE_ARRIVALS; 0 for the position of
        #: its arrival.
        self.position = position
        self.expires_at = expires_at
        self.max_attempts = max_attempts
        self.transient = transient
        self.dead_queue = dead_queue
        self.details = details
        self.load = load
        self.retention = retention


def payload_size(job: Job) -> int:
    return job.stored_size or len(job.inline_payload)


def ensure_history(job: Job) -> LeaseHistory:
    """The fields of a job that was leased or has ended, created if the job has none yet."""
    if job.history is NO_HISTORY:
        job.history = LeaseHistory()
    return job.history


def ensure_extra(job: Job) -> Extra:
    """The fields that few jobs have, created if the job has none yet."""
    if job.extra is None:
        job.extra = Extra()
    return job.extra


def is_first_lease(job: Job) -> bool:
    """Whether this is the first lease of a job without stored totals: it was never leased, failed
    or moved before. Most jobs end with their first lease.
    """
    history = job.history
    return history.totals is None and history.attempt == 1 and not history.failures


def first_wait(job: Job) -> int:
    """The wait of a job before its first lease."""
    leased_at, ready_at = job.history.leased_at, job.ready_at
    return leased_at - ready_at if leased_at > ready_at else 0


def ensure_totals(job: Job) -> JobTotals:
    """The totals of a job, created at its first renewal, failure, move or second lease."""
    history = ensure_history(job)
    found = history.totals
    if found is None:
        if job.state == LEASED and is_first_lease(job):
            wait = first_wait(job)
            found = JobTotals(1, 0, wait, 0, history.leased_at, wait)
        else:
            found = JobTotals(complete=not history.attempt and not history.failures)
        history.totals = found
    return found
