"""Converts jobs, statistics and change sets to rows and back.

A row is a msgpack array of the fields of an object, in the order of the function below. The store
writes a job once with all fields (`job_row`), and later only its mutable fields (`state_row`). The
rows of a job's optional objects are nested in its row. To change the format:
1. add a field at the end of the row, and give it a default in the constructor of its class: old
   rows are shorter and still load;
2. if a field of a job changes after the push, also add it at the end of `state_row`, and with a
   default to `Job.restore`;
3. never remove or reorder a field: leave it unused, or increment schema.SCHEMA and add
   a migration.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final
from zlib import crc32

import msgspec

from millrace.engine.change_set import ChangeSet
from millrace.engine.details import JobDetails, LastError, LimitWait
from millrace.engine.job import Extra, Failure, Job, JobTotals, LeaseHistory
from millrace.engine.jobs_by_seq import JobsBySeq
from millrace.engine.seq_set import SeqSet
from millrace.engine.statistics import DurationSummary, QueueDay

from .errors import ChecksumError

#: The mask of a checksum and of its initial value: both have 32 bits.
UINT32_MASK: Final = 0xFFFF_FFFF
#: The fields of an object. A row with fewer fields than the current format has an older format.
Row = tuple[Any, ...]

#: Position of the payload in the row of a job, or of its size if the payload is in the store.
PAYLOAD_INDEX: Final = 3
#: The lengths of the rows of a job and of its state.
JOB_ROW_LENGTH: Final = 28
STATE_ROW_LENGTH: Final = 18
#: The last fields of these rows, which rows of older versions do not have.
_LATER_JOB_FIELDS: Final = [0, 0, 0, "", None]
_LATER_STATE_FIELDS: Final = [0, "", None]
#: Positions of other fields in the row of a job, of the details in the row of `Extra`, and of the
#: earlier failures in the row of `Failure`.
STATE_INDEX: Final = 10
FAILURE_INDEX: Final = 21
EXTRA_INDEX: Final = 22
DETAILS_INDEX: Final = 5
EARLIER_INDEX: Final = 6
#: Names of queues and wire fields that jobs share, unless they are long.
MAX_SHARED_VALUES: Final = 100_000
MAX_SHARED_LENGTH: Final = 16
MAX_SHARED_NAME: Final = 255
_shared: Final[dict[Any, Any]] = {}


class _Latest:
    """The shared values of the last row. The next row usually has the same ones, and a comparison
    takes less time than a lookup.
    """

    __slots__ = ("queue", "wire_fields")

    def __init__(self) -> None:
        self.queue = ""
        self.wire_fields = b""


_latest: Final = _Latest()


def job_row(job: Job) -> Row:
    history, terms = job.history, job.terms
    return (
        job.seq,
        job.jid,
        terms.kind,
        job.stored_size or job.inline_payload,
        terms.origin,
        job.created,
        terms.lease_duration,
        terms.retries,
        job.wire_fields,
        job.queue,
        job.state,
        job.rank,
        job.position,
        job.due_at,
        history.attempt,
        history.failures,
        job.ready_at,
        history.leased_at,
        history.deadline,
        history.holder,
        history.holder_protocol,
        history.failure,
        job.extra,
        job.expires_at,
        terms.max_attempts,
        history.ended_at,
        history.outcome,
        history.totals,
    )


def state_row(job: Job) -> Row:
    """The seq and the mutable fields of a job."""
    history = job.history
    return (
        job.seq,
        job.queue,
        job.state,
        job.rank,
        job.position,
        job.due_at,
        history.attempt,
        history.failures,
        job.ready_at,
        history.leased_at,
        history.deadline,
        history.holder,
        history.holder_protocol,
        history.failure,
        job.extra,
        history.ended_at,
        history.outcome,
        history.totals,
    )


def _failure_row(failure: Failure) -> Row:
    row = (failure.first_at, failure.last_at, failure.group, failure.message, failure.backtrace)
    if failure.earlier or (failure.backtrace and failure.attempt):
        return (*row, failure.attempt, failure.earlier)
    return row


def _extra_row(extra: Extra) -> Row:
    return (
        extra.tags,
        extra.blockers,
        extra.result,
        extra.transient,
        extra.dead_queue,
        extra.details,
        extra.load,
        extra.retention,
    )


def _details_row(details: JobDetails) -> Row:
    return (
        details.priority,
        details.log,
        details.tags,
        details.lapsed_at,
        details.front,
        details.last_error,
        details.spawned_from,
        details.done_at,
        details.limits,
        details.waiting_since,
        details.parked,
        details.released_limits,
        details.lower_first,
        details.clock_offset,
        details.lease_offset,
    )


def _totals_row(totals: JobTotals) -> Row:
    return (
        totals.leases,
        totals.failures,
        totals.wait,
        totals.run,
        totals.first_leased_at,
        totals.lease_wait,
        totals.renewals,
        totals.first_queue,
        totals.complete,
    )


def _duration_summary_row(spread: DurationSummary) -> Row:
    return (spread.count, spread.mean, spread.vk, spread.histogram)


def _day_row(day: QueueDay) -> Row:
    wait, run = _duration_summary_row(day.wait), _duration_summary_row(day.run)
    return (day.queue, day.day, wait, run, day.failures, day.failed, day.retries)


def _row(value: Any) -> Row:
    """The row of an object that msgpack does not know."""
    if isinstance(value, Extra):
        return _extra_row(value)
    if isinstance(value, JobTotals):
        return _totals_row(value)
    if isinstance(value, Failure):
        return _failure_row(value)
    if isinstance(value, JobDetails):
        return _details_row(value)
    if isinstance(value, LastError):
        return (value.group, value.message, value.when, value.worker)
    if isinstance(value, LimitWait):
        return (value.key, value.since, value.rank)
    if isinstance(value, Job):
        return job_row(value)
    if isinstance(value, QueueDay):
        return _day_row(value)
    raise NotImplementedError(f"a {type(value).__name__} has no row")


_encoder = msgspec.msgpack.Encoder(enc_hook=_row)
encode = _encoder.encode
decode_any = msgspec.msgpack.Decoder().decode


# Reading


def _failure(row: list[Any]) -> Failure:
    if len(row) > EARLIER_INDEX and row[EARLIER_INDEX] is not None:
        row[EARLIER_INDEX] = [tuple(each) for each in row[EARLIER_INDEX]]
    return Failure(*row)


def _extra(row: list[Any]) -> Extra:
    if len(row) > DETAILS_INDEX and row[DETAILS_INDEX] is not None:
        row[DETAILS_INDEX] = _details(row[DETAILS_INDEX])
    return Extra(*row)


def _details(row: list[Any]) -> JobDetails:
    last_error_index, parked_index = 5, 10
    if len(row) > last_error_index and row[last_error_index] is not None:
        row[last_error_index] = LastError(*row[last_error_index])
    if len(row) > parked_index and row[parked_index] is not None:
        row[parked_index] = LimitWait(*row[parked_index])
    return JobDetails(*row)


def _totals(row: list[Any]) -> JobTotals:
    return JobTotals(*row)


def _history(row: list[Any], start: int, end: int) -> LeaseHistory | None:
    """The fields of a job that was leased or has ended: those from `start` and those from `end` on.
    None if all have their defaults.
    """
    # The annotations let the compiled code test the fields without a call.
    attempt: int = row[start]
    failures: int = row[start + 1]
    leased_at: int = row[start + 3]
    deadline: int = row[start + 4]
    holder: str = row[start + 5]
    holder_protocol: int = row[start + 6]
    failure: list[Any] | None = row[start + 7]
    ended_at: int = row[end]
    outcome: str = row[end + 1]
    totals: list[Any] | None = row[end + 2]
    if (
        attempt == 0
        and failures == 0
        and leased_at == 0
        and deadline == 0
        and not holder
        and holder_protocol == 0
        and failure is None
        and ended_at == 0
        and not outcome
        and totals is None
    ):
        return None
    return LeaseHistory(
        attempt,
        failures,
        leased_at,
        deadline,
        holder,
        holder_protocol,
        None if failure is None else _failure(failure),
        ended_at,
        outcome,
        None if totals is None else _totals(totals),
    )


def _add_missing_fields(row: list[Any], length: int, later_fields: list[Any]) -> None:
    """Add the fields that a row of an older version does not have."""
    missing = length - len(row)
    if not 0 <= missing <= len(later_fields):
        raise IndexError(f"a row has {len(row)} fields instead of {length}")
    row += later_fields[len(later_fields) - missing :]


def job_from_row(row: list[Any]) -> Job:
    """Convert a row to a job. The caller must not use the row again. Jobs share equal short values,
    and a job uses one object for equal times, so that jobs take no more memory after a restart than
    before it.
    """
    if len(row) != JOB_ROW_LENGTH:
        _add_missing_fields(row, JOB_ROW_LENGTH, _LATER_JOB_FIELDS)
    queue: str = row[9]
    if queue == _latest.queue:
        queue = _latest.queue
    elif len(queue) <= MAX_SHARED_NAME:
        _latest.queue = queue = _shared.setdefault(queue, queue)
    wire_fields: bytes = row[8]
    if wire_fields == _latest.wire_fields:
        wire_fields = _latest.wire_fields
    elif len(wire_fields) <= MAX_SHARED_LENGTH:
        _latest.wire_fields = wire_fields = _shared.setdefault(wire_fields, wire_fields)
    if len(_shared) > MAX_SHARED_VALUES:
        _shared.clear()
    created: int = row[5]
    position: int = row[12]
    ready_at: int = row[16]
    payload: Any = row[PAYLOAD_INDEX]
    stored_size = 0
    if isinstance(payload, int):  # the size of a payload in the store
        stored_size, payload = payload, b""
    extra = row[EXTRA_INDEX]
    # Separate arguments instead of `*row`: the compiled code then calls the constructor directly.
    return Job(
        row[0],
        row[1],
        row[2],
        payload,
        row[4],
        created,
        row[6],
        row[7],
        wire_fields,
        queue,
        row[STATE_INDEX],
        row[11],
        created if position == created else position,
        row[13],
        created if ready_at == created else ready_at,
        _history(row, 14, 25),
        None if extra is None else _extra(extra),
        row[23],
        row[24],
        stored_size=stored_size,
    )


def decode_job(record: bytes) -> Job:
    return job_from_row(decode_any(record))


def decode_jobs(
    rows: Iterable[tuple[int, int, bytes]], checksum_start: int, jobs: JobsBySeq
) -> int:
    """Add the jobs of rows (seq, checksum, record) to `jobs`. Return the total of the checksums.
    The start-up time depends on this loop.
    """
    total = 0
    found: list[Job] = []
    for seq, checksum, record in rows:
        if crc32(record, seq & UINT32_MASK ^ checksum_start) != checksum:
            raise ChecksumError(f"job {seq} does not match its checksum")
        total += checksum
        found.append(job_from_row(decode_any(record)))
    jobs.extend(found)
    return total


def stored_payloads(jobs: JobsBySeq) -> tuple[SeqSet, int, int, int]:
    """The seqs of the jobs whose payload is in the store, their number and total, and the total
    size of these payloads.
    """
    found, count, seqs, sizes = SeqSet(), 0, 0, 0
    start = end = 0  # of the current range of seqs
    for job in jobs.each():
        if job.stored_size:
            if job.seq != end:
                found.add_range(start, end)
                start = job.seq
            end = job.seq + 1
            count += 1
            seqs += job.seq
            sizes += job.stored_size
    found.add_range(start, end)
    return found, count, seqs, sizes


def apply_state(job: Job, row: list[Any]) -> None:
    """Assign the mutable fields of a row, which must not be used again."""
    if len(row) != STATE_ROW_LENGTH:
        _add_missing_fields(row, STATE_ROW_LENGTH, _LATER_STATE_FIELDS)
    queue, extra = row[1], row[14]
    if len(queue) <= MAX_SHARED_NAME:
        queue = _shared.setdefault(queue, queue)
    job.restore(
        queue,
        row[2],
        row[3],
        row[4],
        row[5],
        row[8],
        _history(row, 6, 15),
        None if extra is None else _extra(extra),
    )


def decode_day(record: bytes) -> QueueDay:
    queue, day, wait, run, *rest = decode_any(record)
    return QueueDay(queue, day, DurationSummary(*wait), DurationSummary(*run), *rest)


# Change sets


def encode_changes(
    change_set: ChangeSet, max_inline: int, payloads: dict[int, bytes] | None
) -> bytes:
    """New jobs, the mutable fields of changed jobs, and the seqs of removed jobs.

    Payloads above `max_inline` bytes are added to `payloads`; the rows of their jobs contain only
    the size. Without `payloads`, all rows contain their payload.
    """
    new: list[Row] = []
    for jobs in (change_set.new, change_set.rewritten):
        for job in jobs.values():
            if payloads is not None and len(job.inline_payload) > max_inline:
                payloads[job.seq] = job.inline_payload
                new.append(_row_without_payload(job))
            else:
                new.append(job_row(job))
    changed = [state_row(job) for job in change_set.changed.values()]
    return encode((new, changed, list(change_set.removed)))


def encode_job(job: Job, *, without_payload: bool) -> bytes:
    """The row of a job. A payload that the store keeps elsewhere may still be in memory."""
    if without_payload and not job.stored_size:
        return encode(_row_without_payload(job))
    return encode(job)


def _row_without_payload(job: Job) -> Row:
    row = job_row(job)
    return (*row[:PAYLOAD_INDEX], len(job.inline_payload), *row[PAYLOAD_INDEX + 1 :])


def split(blob: bytes, max_bytes: int) -> Iterator[bytes]:
    """Split the changes into several blobs of about this size. A replay of the blobs in order has
    the same effect as a replay of the original.
    """
    new, changed, gone = decode_any(blob)
    piece: list[list[Any]] = []
    size = 0
    for row in new:
        piece.append(row)
        payload = row[PAYLOAD_INDEX]
        size += 0 if isinstance(payload, int) else len(payload)
        size += len(row[8]) + 1000  # the wire fields
        if size >= max_bytes:
            yield encode((piece, (), ()))
            piece, size = [], 0
    yield encode((piece, changed, gone))


def replay(blob: bytes, jobs: JobsBySeq, touched: dict[int, None]) -> None:
    """Apply a change set to `jobs`, and add the changed jobs to `touched`. A change to an unknown
    job is skipped: the job was removed before the store wrote its row, as a later change set shows.
    """
    new, changed, gone = decode_any(blob)
    for row in new:
        job = job_from_row(row)
        jobs.put(job.seq, job)
        touched[job.seq] = None
    for row in changed:
        known = jobs.get(row[0])
        if known is not None:
            apply_state(known, row)
        touched[row[0]] = None
    for seq in gone:
        jobs.pop(seq)
        touched[seq] = None
