"""Replies with jobs: a reply with many jobs, or with large ones, is written in slices."""

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

from millrace.engine.discarded import drain
from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.payloads import MAX_DIRECT_READ
from millrace.engine.states import LEASED
from millrace.protocols.errors import PayloadDamaged
from millrace.protocols.payload_reads import is_large, read_ahead, release_payload

from . import locks
from . import lua_values as lua
from .commands import MAX_REPLY_BYTES
from .errors import ChangeRefused
from .job_view import JobText, with_data, with_data_in_slices
from .names import decode_name
from .resp import BulkStringParts, Reply
from .state import QlessState

#: Number of jobs that are popped or written in one slice.
JOBS_BATCH_SIZE: Final = 20
#: Number of rows that one slice joins if the reply is larger than MAX_JOINED_BYTES.
ROWS_BATCH_SIZE: Final = 200
MAX_JOINED_BYTES: Final = 1 << 20
#: Maximum number of jobs that are popped or written in one step.
MAX_JOBS_PER_STEP: Final = 50
#: Number of arguments that one slice of a command without a reply uses.
ARGUMENTS_BATCH_SIZE: Final = 100

JobWriter = Callable[[QlessState, Job], JobText]
#: An encoded job.
Row = bytes | BulkStringParts


class PoppedJobs:
    """The jobs that a pop has leased."""

    __slots__ = ("_engine", "_leases")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Seq -> the attempt and its holder.
        self._leases: dict[int, tuple[int, str]] = {}

    def add(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._leases[job.seq] = job.attempt, job.holder

    def held(self) -> list[Job]:
        """The jobs that are still leased. A refused commit undoes leases."""
        found = []
        for seq, lease in self._leases.items():
            job = self._engine.job(seq)
            if job is not None and job.state == LEASED and (job.attempt, job.holder) == lease:
                found.append(job)
        return found


def reply_with_jobs(
    api: Any, call: Any, write: JobWriter, finish: Callable[[list[Any]], Reply]
) -> Reply | Generator[None, None, Reply]:
    """The reply to `pop` (queue, worker, count) or `peek` (queue, count)."""
    at = 2 if call.command == "pop" else 1
    count = lua.tonumber(call.args[at]) if len(call.args) > at else None
    popped: PoppedJobs | None = api.hub.popped
    earlier = popped.held() if popped is not None and call.command == "pop" else []
    if count is None or (count <= MAX_JOBS_PER_STEP and not earlier):
        jobs: list[Job] = api.run_command(call.command, call.now, call.args)
        if popped is not None and call.command == "pop":
            popped.add(jobs)
        if not any(is_large(api.engine, job) for job in jobs):
            return finish([encode_job(api.qless, job, write) for job in jobs])
        if call.command == "pop":
            return _pop(api, call, len(jobs), write, finish, jobs, popped)
        return encode_jobs_in_slices(api.qless, jobs, write, finish)
    if call.command == "pop":
        return _pop(api, call, count, write, finish, earlier, popped)
    return _peek(api, call, write, finish)


def _peek(
    api: Any, call: Any, write: JobWriter, finish: Callable[[list[Any]], Reply]
) -> Generator[None, None, Reply]:
    jobs = drain((yield from locks.peek_in_slices(api.qless, call.now, call.args)))
    return (yield from encode_jobs_in_slices(api.qless, jobs, write, finish))


def _pop(
    api: Any,
    call: Any,
    count: float,
    write: JobWriter,
    finish: Callable[[list[Any]], Reply],
    jobs: list[Job],
    popped: PoppedJobs | None,
) -> Generator[None, None, Reply]:
    """Pop until there are enough jobs, there are no more, or the reply reaches its maximum size.
    `jobs` are the first ones. The command pushes as many recurring jobs as a small pop may push.
    `popped` is None outside of a transaction. If the store refuses a commit, the reply then
    contains the jobs whose leases are durable.
    """
    engine, reverts, turn = api.engine, api.engine.revert_count, api.engine.turn
    outside_exec = popped is None
    popped = PoppedJobs(engine) if popped is None else popped
    popped.add(jobs)
    rows: dict[int, Row] = {}
    size, limits = 0, locks.PopLimits(count - len(jobs))
    has_more = len(jobs) < count
    while jobs or has_more:
        if not jobs:
            wanted = min(JOBS_BATCH_SIZE, count - len(rows))
            args = [*call.args[:2], b"%d" % -(-wanted // 1), *call.args[3:]]
            jobs, turn = locks.pop_some(api.qless, call.now, args, limits), engine.turn
            popped.add(jobs)
            has_more = len(jobs) >= wanted or limits.expired_locks > 0
        for number, job in enumerate(jobs, 1):
            row = yield from _encode_job_in_slices(api.qless, job, write, call.now)
            if row:
                rows[job.seq] = row
                size += len(row)
            if len(row) > MAX_DIRECT_READ or (number % JOBS_BATCH_SIZE == 0 and number < len(jobs)):
                yield
        jobs, has_more = [], has_more and len(rows) < count and size < MAX_REPLY_BYTES
        if has_more:
            yield
            has_more = engine.revert_count == reverts
    while outside_exec and engine.revert_count == reverts and engine.is_turn_uncommitted(turn):
        api.hub.awaits_commit = True
        yield
    if engine.revert_count != reverts:
        rows = {job.seq: rows[job.seq] for job in popped.held() if job.seq in rows}
        if not rows:
            raise ChangeRefused
    reply = yield from finish_in_slices(list(rows.values()), finish)
    api.hub.is_durable = outside_exec
    return reply


def finish_in_slices(
    rows: list[Row], finish: Callable[[list[Any]], Reply]
) -> Generator[None, None, Reply]:
    """Make a JSON list of rows. For a large list, `finish` gets parts of it, which are not copied.
    If `finish` is `list`, it gets the rows themselves.
    """
    if finish is list or sum(map(len, rows)) <= MAX_JOINED_BYTES:
        return finish(rows)
    rows.reverse()
    parts: list[Row] = []
    while rows:
        batch = [rows.pop() for _ in range(min(len(rows), ROWS_BATCH_SIZE))]
        if BulkStringParts in map(type, batch):
            parts += batch
        else:
            parts.append(BulkStringParts([b",".join(batch)]))  # type: ignore[arg-type]
        yield
    return finish(parts)


def encode_job(q: QlessState, job: Job, write: JobWriter) -> bytes:
    """Encode a job."""
    return with_data(q.engine, job, write(q, job))


def _encode_job_in_slices(
    q: QlessState, job: Job, write: JobWriter, popped_at: int | None = None
) -> Generator[None, None, Row]:
    """Encode a job, large data in slices. Return empty bytes if it is removed in the meantime, or
    if a popped job dies because its data is damaged.
    """
    engine = q.engine
    if not is_large(engine, job):
        return encode_job(q, job, write) if job.seq in engine.tables.jobs else b""
    attempt = job.attempt
    try:
        yield from read_ahead(engine, job)
    except PayloadDamaged as damage:
        is_held = job.attempt == attempt and job.state == LEASED and engine.job(job.seq) is job
        if popped_at is None or engine.unavailable_reason:
            raise
        if is_held:
            engine.bury_damaged(job, popped_at, str(damage))
        return b""
    try:
        if job.seq not in engine.tables.jobs:
            return b""
        return BulkStringParts((yield from with_data_in_slices(engine, job, write(q, job))))
    finally:
        release_payload(engine, job)


def multiget(
    q: QlessState, args: list[bytes], write: JobWriter, finish: Callable[[list[Any]], Reply]
) -> Reply | Generator[None, None, Reply]:
    """The reply to a request for jobs by their jids, each once: a request could repeat the jid of a
    large job.
    """
    found = (q.find(decode_name(jid)) for jid in dict.fromkeys(args))
    if len(args) > MAX_JOBS_PER_STEP:
        return encode_jobs_in_slices(q, found, write, finish)
    jobs = [job for job in found if job is not None]
    if any(is_large(q.engine, job) for job in jobs):
        return encode_jobs_in_slices(q, jobs, write, finish)
    return finish([encode_job(q, job, write) for job in jobs])


def get(q: QlessState, job: Job | None, write: JobWriter) -> Reply | Generator[None, None, Reply]:
    """The reply to a request for one job."""
    if job is None:
        return None
    if is_large(q.engine, job):
        return encode_jobs_in_slices(q, [job], write, _single_row)
    return encode_job(q, job, write)


def _single_row(rows: list[Any]) -> Reply:
    return rows[0] if rows else None


def change_in_slices(
    q: QlessState,
    now: int,
    args: list[bytes],
    change: Callable[[QlessState, int, list[bytes]], Any],
    *,
    of_queues: bool,
) -> Generator[None, None, Reply]:
    """Apply a command without a reply to its arguments, some in each slice. The port may refuse
    one of several queues, so all are checked before the first change.
    """
    if of_queues and q.hub.rule is not None:
        for number, name in enumerate(args, 1):
            q.queue_name(decode_name(name))
            if number % ARGUMENTS_BATCH_SIZE == 0:
                yield
    for start in range(0, len(args), ARGUMENTS_BATCH_SIZE):
        change(q, now, args[start : start + ARGUMENTS_BATCH_SIZE])
        yield
    return None


def encode_jobs_in_slices(
    q: QlessState,
    jobs: Iterable[Job | None],
    write: JobWriter,
    finish: Callable[[list[Any]], Reply],
    popped_at: int | None = None,
) -> Generator[None, None, Reply]:
    """Encode jobs up to the maximum size of a reply. Jobs removed between slices are skipped."""
    found: list[Row] = []
    size = 0
    for number, job in enumerate(jobs, 1):
        if job is not None and size < MAX_REPLY_BYTES:
            row = yield from _encode_job_in_slices(q, job, write, popped_at)
            if row:
                found.append(row)
                size += len(row)
                if len(row) > MAX_DIRECT_READ:
                    yield
        if number % JOBS_BATCH_SIZE == 0:
            yield
    return (yield from finish_in_slices(found, finish))
