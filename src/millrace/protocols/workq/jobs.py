"""Jobs: from the arguments of add, schedule and run to engine records, and back to lines.

The checks follow the original's order: syntax of all arguments first, then their ranges. The
`wire_fields` of a job are the values that only replies contain: the TTL, and the time of a
scheduled job.
"""

from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.job import AFTER_ARRIVALS, FOREVER, Job, NewJob, id_from_seq, seq_from_id
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED
from millrace.protocols.errors import ClientError
from millrace.protocols.registry import WORKQ

from . import arguments
from .arguments import Flags

#: `add` takes a signed 32-bit number; for `schedule` and `run` the spec also permits 0 to 2^32-1.
MAX_ADD_PRIORITY: Final = (1 << 31) - 1
MAX_PRIORITY: Final = (1 << 32) - 1
MAX_FLAGS: Final = 3
MAX_RUN_FLAGS: Final = 1


# From arguments


def read_add(args: list[bytes], flags: Flags, payload: bytes, now: int) -> NewJob:
    if len(flags) > MAX_FLAGS:
        raise ClientError(arguments.INVALID_ARGS)
    jid = arguments.parse_job_id(args[0])
    ttr = arguments.parse_ttr(args[2])
    ttl = arguments.parse_ttl(args[3])
    max_attempts = retries = rank = 0
    if flags:
        max_attempts, retries = (
            arguments.parse_max_attempts(flags),
            arguments.parse_max_fails(flags),
        )
        rank = arguments.parse_priority(flags, MAX_ADD_PRIORITY)
    name = arguments.parse_name(args[1])
    arguments.check_ttr(ttr)
    arguments.check_ttl(ttl)
    return NewJob(
        jid,
        name,
        payload,
        WORKQ,
        name,
        retries,
        ttr * 1000,
        b"%d" % ttl,
        rank,
        expires_at=min(now + ttl * 1000, FOREVER),
        max_attempts=max_attempts,
    )


def read_schedule(args: list[bytes], flags: Flags, payload: bytes, now: int) -> NewJob:
    if len(flags) > MAX_FLAGS:
        raise ClientError(arguments.INVALID_ARGS)
    jid = arguments.parse_job_id(args[0])
    ttr = arguments.parse_ttr(args[2])
    ttl = arguments.parse_ttl(args[3])
    due = arguments.parse_time(args[4])
    max_attempts, retries = arguments.parse_max_attempts(flags), arguments.parse_max_fails(flags)
    rank = arguments.parse_priority(flags, MAX_PRIORITY)
    name = arguments.parse_name(args[1])
    arguments.check_ttr(ttr)
    arguments.check_ttl(ttl)
    expires = min(due + ttl * 1000, FOREVER)
    if expires <= now:
        raise ClientError("Invalid Time")
    return NewJob(
        jid,
        name,
        payload,
        WORKQ,
        name,
        retries,
        ttr * 1000,
        b"%d %b" % (ttl, arguments.format_second(due)),
        rank,
        due if due > now else 0,
        position=AFTER_ARRIVALS + max(0, due),
        expires_at=expires,
        max_attempts=max_attempts,
    )


def read_run(args: list[bytes], flags: Flags, payload: bytes) -> tuple[NewJob, int]:
    """The job, and the wait timeout in milliseconds."""
    if len(flags) > MAX_RUN_FLAGS:
        raise ClientError(arguments.INVALID_ARGS)
    jid = arguments.parse_job_id(args[0])
    ttr = arguments.parse_ttr(args[2])
    rank = arguments.parse_priority(flags, MAX_PRIORITY)
    timeout = arguments.parse_wait_timeout(args[3])
    name = arguments.parse_name(args[1])
    arguments.check_ttr(ttr)
    push = NewJob(jid, name, payload, WORKQ, name, 0, ttr * 1000, b"0", rank, transient=True)
    return push, timeout


# To lines


def id_of(job: Job) -> str:
    if job.origin == WORKQ or arguments.is_job_id(job.jid):
        return job.jid
    return id_from_seq(job.seq)


def find(engine: Engine, jid: str) -> Job | None:
    """The job with this id; if several jobs have it, the leased one, otherwise the oldest."""
    job = engine.find(jid)
    if job is None:
        return _find_alias(engine, jid)
    return job if job.state == LEASED else engine.find_leased(jid, WORKQ) or job


def find_for_result(engine: Engine, jid: str) -> Job | None:
    """The job that `complete` or `fail` may end: neither a blocked job, nor a job leased over a
    protocol where only the holder may end a lease.
    """
    job = find(engine, jid)
    if job is None or job.state == BLOCKED:
        return None
    if job.state != LEASED or job.holder_protocol == WORKQ:
        return job
    if job.jid == jid:
        return engine.find_leased(jid, WORKQ)
    return None if job.holder_protocol in engine.rules.exclusive_protocols else job


def _find_alias(engine: Engine, jid: str) -> Job | None:
    job = engine.job(seq_from_id(jid))
    return job if job is not None and id_of(job) == jid else None


def lease_reply(job: Job, payload: bytes, *, with_ttr: bool) -> bytes:
    """The reply to a lease. `with_ttr`: the TTR precedes the size, as in the original server."""
    jid, name = id_of(job).encode(), job.queue.encode()
    size = len(payload)
    if with_ttr:
        ttr = job.lease_duration // 1000
        return b"+OK 1\r\n%b %b %d %d\r\n%b\r\n" % (jid, name, ttr, size, payload)
    return b"+OK 1\r\n%b %b %d\r\n%b\r\n" % (jid, name, size, payload)


def lease_head(job: Job, size: int, *, with_ttr: bool) -> bytes:
    """The reply to a lease up to the payload."""
    jid, name = id_of(job).encode(), job.queue.encode()
    ttr = b"%d " % (job.lease_duration // 1000) if with_ttr else b""
    return b"+OK 1\r\n%b %b %b%d\r\n" % (jid, name, ttr, size)


def result(jid: str, *, succeeded: bool, content: bytes) -> bytes:
    return b"+OK 1\r\n%b %d %d\r\n%b\r\n" % (jid.encode(), succeeded, len(content), content)


def inspect_parts(job: Job, size: int) -> tuple[bytes, bytes]:
    """A job as `inspect` shows it: the parts before and after its payload, which has `size`
    bytes.
    """
    ttl, _, time = (job.wire_fields if job.origin == WORKQ else b"0").partition(b" ")
    before = (
        b"%b %d" % (id_of(job).encode(), 13 if time else 12),
        b"name " + arguments.write_name(job.queue),
        b"ttr %d" % (job.lease_duration // 1000),
        b"ttl " + ttl,
        b"payload-size %d" % size,
        b"payload ",
    )
    after = (
        b"",
        b"max-attempts %d" % job.max_attempts,
        b"attempts %d" % job.attempt,
        b"max-fails %d" % max(0, job.retries),
        b"fails %d" % job.failures,
        b"priority %d" % _priority(job),
        b"state %d" % _state(job),
        b"created " + arguments.format_second(job.created),
        *((b"time " + time,) if time else ()),
        b"",
    )
    return b"\r\n".join(before), b"\r\n".join(after)


def _priority(job: Job) -> int:
    """Return the client's priority, even while the job is ahead of all others. Priorities from
    other protocols are limited to the range of this one.
    """
    details = None if job.extra is None else job.extra.details
    rank = job.rank if details is None else details.rank
    return int(min(max(-MAX_ADD_PRIORITY - 1, rank), MAX_PRIORITY))


def _state(job: Job) -> int:
    """0 NEW, 1 COMPLETED, 2 FAILED, 3 PENDING, 4 LEASED."""
    if job.state == DONE:
        return 1
    if job.state == DEAD:
        return 2
    if job.state == LEASED:
        return 4
    return 3 if job.attempt or job.failures else 0
