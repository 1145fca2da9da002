"""The record of a job, in memory and in the store.

Changing the format. A job is written as a msgpack array in the order below, and its changing half
also on its own (`changing`), so:
1. add a field at the end of the record, with a default: old records, being shorter, still load;
2. if it changes after the push, add it at the end of `changing` and let `apply` do without it;
3. never remove or reorder a field: leave it unused, or raise store.sqlite.SCHEMA and migrate.
"""

from typing import Any, Final

import msgspec

#: Protocols that push and lease jobs. The numbers are on disk: only add at the end.
PROTOCOLS: Final = ("", "workq", "masenko", "faktory", "qless", "goqueue", "http")
NO_PROTOCOL: Final = 0
WORKQ: Final = 1
MASENKO: Final = 2
FAKTORY: Final = 3
QLESS: Final = 4
GOQUEUE: Final = 5
HTTP: Final = 6

#: A place from here on is fixed, and is behind the places of all arrivals.
LATER: Final = 1 << 62
#: A place below 0 is fixed too, and is ahead of all arrivals.
EARLIER: Final = -LATER
#: The last possible time, which is the largest signed 64-bit number.
FOREVER: Final = (1 << 63) - 1

#: The jid of a job without one: this prefix and the seq in 12 hex digits. It is a UUID, so every
#: protocol can use it.
ALIAS: Final = "00000000-0000-4000-8000-"


def add_time(time: int, duration: int) -> int:
    """The sum, or FOREVER if a signed 64-bit number cannot hold it."""
    return FOREVER if duration > FOREVER - time else time + duration


def alias(seq: int) -> str:
    return f"{ALIAS}{seq:012x}"


def seq_of(jid: str) -> int:
    """The seq of a generated jid; 0, which no job has, for any other jid."""
    if not jid.startswith(ALIAS):
        return 0
    try:
        return int(jid[len(ALIAS) :], 16)
    except ValueError:
        return 0


class Failure(msgspec.Struct, array_like=True, gc=False):
    """The first failure's time, and the last failure."""

    first_at: int
    last_at: int
    group: str
    message: str
    backtrace: list[str]


class Extra(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    """Rare fields of a job, in a record of their own to save memory."""

    tags: list[str] = []
    blockers: list[int] = []
    result: bytes | None = None
    #: The job ends with the connection of its client, and with the server.
    fleeting: bool = False
    #: The queue that the job moves to, once, after its final failure.
    dead_queue: str = ""
    #: Fields of the origin's protocol; the engine does not read them.
    own: Any = None
    #: The bulk load whose release the job waits for; see loads.py.
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

    # Pushed fields, written once.
    seq: int
    jid: str
    kind: str
    payload: bytes
    origin: int
    created: int
    lease_for: int
    retries: int
    #: Wire fields that the origin's protocol returns unchanged; the engine does not read them.
    spec: bytes
    # Changing fields.
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
    # Pushed fields, added later; see above.
    #: The end of its time to live in any state; until then its result is kept. 0: none.
    expires: int = 0
    #: The maximum number of leases. 0: no limit.
    most_attempts: int = 0
    # Changing fields, added later.
    #: The time of its last end.
    ended_at: int = 0
    #: The cause of its last end.
    outcome: str = ""
    lifetime: Lifetime | None = None


class Push(msgspec.Struct, gc=False):
    """A job to push."""

    #: Empty: the engine generates one.
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
    #: A fixed place, relative to LATER or EARLIER; 0 for the place of its arrival.
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
    """The changing fields, which the store writes without the payload."""
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
    """Assign the changing fields that were read from the store."""
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
