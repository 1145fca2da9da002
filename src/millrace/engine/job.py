"""A job as it is kept: in memory, in the store, in the order of its fields.

Changing the format. A job is written as a msgpack array in the order below, and its changing half
also on its own (`changing`), so:
1. add a field at the end of the record, with a default: old records, being shorter, still load;
2. if it changes after the push, add it at the end of `changing` and let `apply` do without it;
3. never remove or reorder a field: leave it unused, or raise store.sqlite.SCHEMA and migrate.
"""

from typing import Any, Final

import msgspec

#: Which protocol pushed a job, or acted on it. The number is written to disk: only add at the end.
PROTOCOLS: Final = ("", "workq", "masenko", "faktory", "qless", "goqueue", "http")
NO_PROTOCOL: Final = 0
WORKQ: Final = 1
MASENKO: Final = 2
FAKTORY: Final = 3
QLESS: Final = 4
GOQUEUE: Final = 5
HTTP: Final = 6

#: A place from here on stays what it is, and is behind every place that a job got by arriving.
LATER: Final = 1 << 62
#: The mirror image: below 0 a place stays what it is as well, and is ahead of every arrival.
EARLIER: Final = -LATER
#: The last possible time, which is the largest signed 64-bit number.
FOREVER: Final = (1 << 63) - 1

#: The jid of a job whose client gave it none: this and its seq, in 12 hex digits. It is a UUID, so
#: that every protocol can name the job by it.
ALIAS: Final = "00000000-0000-4000-8000-"


def add_time(time: int, duration: int) -> int:
    """The sum, or FOREVER if a signed 64-bit number cannot hold it."""
    return FOREVER if duration > FOREVER - time else time + duration


def alias(seq: int) -> str:
    return f"{ALIAS}{seq:012x}"


def seq_of(jid: str) -> int:
    """The seq that an alias was made from; 0, which no job has, for any other jid."""
    if not jid.startswith(ALIAS):
        return 0
    try:
        return int(jid[len(ALIAS) :], 16)
    except ValueError:
        return 0


class Failure(msgspec.Struct, array_like=True, gc=False):
    """What is remembered of a job's failures: the first one's time, the last one's words."""

    first_at: int
    last_at: int
    group: str
    message: str
    backtrace: list[str]


class Extra(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    """What few jobs have; kept apart so that most jobs do not pay for it."""

    tags: list[str] = []
    blockers: list[int] = []
    result: bytes | None = None
    #: It goes with the client that pushed it, and with the server.
    fleeting: bool = False
    #: The queue it moves to, once, when it has failed for good.
    dead_queue: str = ""
    #: What the origin's protocol keeps with the job and changes; the engine never looks.
    own: Any = None
    #: The load that it came with, and for whose release it waits; see loads.py.
    load: str = ""


class Lifetime(msgspec.Struct, array_like=True, gc=False):
    """Totals over all attempts of a job, in microseconds, and details of its last lease."""

    leases: int = 0
    failures: int = 0
    wait: int = 0
    run: int = 0
    first_leased_at: int = 0
    #: The wait before the last lease; -1 if it is unknown.
    lease_wait: int = -1
    #: The number of renewals of the last lease.
    renewals: int = 0
    #: The queue of the push, if the job was moved.
    first_queue: str = ""
    #: False for a job that had attempts before totals were recorded.
    complete: bool = True


class Job(msgspec.Struct, array_like=True, gc=False):
    """One unit of work. Times are microseconds since 1970."""

    # What was pushed: written once.
    seq: int
    jid: str
    kind: str
    payload: bytes
    origin: int
    created: int
    lease_for: int
    retries: int
    #: What the origin's protocol needs to give the job back as it came; the engine never looks.
    spec: bytes
    # What changes.
    queue: str
    state: int
    rank: float
    place: int
    due: int
    attempt: int
    failures: int
    ready_at: int
    leased_at: int
    deadline: int
    holder: str
    actor: int
    failure: Failure | None
    extra: Extra | None
    # What was pushed, added later; see above.
    #: The moment at which it goes, whatever it is doing; until then its result is kept. 0: none.
    expires: int = 0
    #: How often it may be leased. 0: no limit.
    most_attempts: int = 0
    # What changes, added later.
    #: When it was done, or died.
    ended_at: int = 0
    #: The cause of its last end.
    outcome: str = ""
    lifetime: Lifetime | None = None


class Push(msgspec.Struct, gc=False):
    """A job that somebody wants pushed."""

    #: Empty: the engine makes one.
    jid: str
    kind: str
    payload: bytes
    origin: int
    queue: str
    retries: int
    lease_for: int
    spec: bytes = b""
    rank: float = 0
    due: int = 0
    tags: list[str] = []
    blockers: list[int] = []
    #: Its place if that shall not be its arrival's: LATER or EARLIER, and something.
    place: int = 0
    expires: int = 0
    most_attempts: int = 0
    fleeting: bool = False
    dead_queue: str = ""
    own: Any = None
    load: str = ""


def extra_of(job: Job) -> Extra:
    """The fields that few jobs have, created if the job has none yet."""
    if job.extra is None:
        job.extra = Extra()
    return job.extra


Changing = tuple[Any, ...]


def changing(job: Job) -> Changing:
    """The half that changes, to be written without the payload."""
    return (
        job.seq,
        job.queue,
        job.state,
        job.rank,
        job.place,
        job.due,
        job.attempt,
        job.failures,
        job.ready_at,
        job.leased_at,
        job.deadline,
        job.holder,
        job.actor,
        job.failure,
        job.extra,
        job.ended_at,
        job.outcome,
        job.lifetime,
    )


def lifetime_of(job: Job) -> Lifetime:
    """The totals of a job, created at its first lease, failure or move."""
    found = job.lifetime
    if found is None:
        known = not job.attempt and not job.failures
        found = job.lifetime = Lifetime(complete=known)
    return found


def apply(job: Job, half: Changing) -> None:
    """Put a changing half, as read back, onto the job it belongs to."""
    (
        _,
        job.queue,
        job.state,
        job.rank,
        job.place,
        job.due,
        job.attempt,
        job.failures,
        job.ready_at,
        job.leased_at,
        job.deadline,
        job.holder,
        job.actor,
        failure,
        extra,
        *later,
    ) = half
    job.ended_at = later[0] if later else 0
    job.outcome = later[1] if len(later) > 1 else ""
    lifetime = later[2] if len(later) > 2 else None
    job.lifetime = None if lifetime is None else msgspec.convert(lifetime, Lifetime)
    job.failure = None if failure is None else msgspec.convert(failure, Failure)
    job.extra = None if extra is None else msgspec.convert(extra, Extra)
