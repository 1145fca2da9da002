"""`job`: all details of one job."""

from collections.abc import Iterable
from math import isfinite
from typing import Any, Final, cast

import msgspec

from millrace.engine.annotations import read_details
from millrace.engine.attempts import DAMAGED_GROUP
from millrace.engine.details import JobDetails
from millrace.engine.engine import Engine
from millrace.engine.job import FOREVER, Failure, Job, payload_size
from millrace.engine.payloads import MAX_DIRECT_READ
from millrace.engine.states import DEAD, STATE_NAMES
from millrace.protocols.errors import PayloadDamaged
from millrace.protocols.faktory.rails import wrapped_class
from millrace.protocols.qless.job_view import state_of
from millrace.protocols.registry import FAKTORY, GOQUEUE, PROTOCOL_NAMES, QLESS, WORKQ
from millrace.records import (
    EarlierFailureRecord,
    FailureRecord,
    GetJob,
    JobDetail,
    JobRecord,
    RelatedJob,
    RelatedJobs,
    State,
)

from .audit import truncate
from .errors import AdminError, TargetNotFound
from .service import MAX_NAME_LENGTH, AdminService, find_jobs

#: Maximum bytes of a payload or a result in a reply.
MAX_DETAIL_BYTES: Final = 1 << 20
#: Maximum lines of a backtrace, and maximum characters per line.
MAX_BACKTRACE_LINES: Final = 200
MAX_BACKTRACE_LINE: Final = 2000
#: Maximum listed blockers, and maximum listed dependents.
MAX_RELATED_JOBS: Final = 100
MAX_HISTORY_ENTRIES: Final = 500
#: Maximum size of a value that a protocol stores with the job, as JSON.
MAX_PROTOCOL_DATA: Final = 65_536

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _payload_part(engine: Engine, job: Job, start: int) -> bytes:
    """Return a part of the payload. Only a payload that is read as a whole can be verified; for
    others, the last failure of the job tells whether a worker found it damaged.
    """
    if 0 < job.stored_size <= MAX_DIRECT_READ:
        return engine.payload(job)[start:]
    failure = job.failure
    if failure is not None and failure.group == DAMAGED_GROUP and job.state == DEAD:
        raise PayloadDamaged(job.seq, "see its last failure")
    return engine.payload_part(job, start, MAX_DETAIL_BYTES)


def payload_excerpt(engine: Engine, job: Job) -> bytes:
    """Return the start of the payload for a list; empty if the payload is damaged."""
    try:
        return engine.payload_part(job, 0, PAYLOAD_EXCERPT_SIZE)
    except PayloadDamaged:
        return b""


def get_job(hub: AdminService, request: GetJob, now: int) -> JobDetail:
    found = _find(hub.engine, request)
    failure, extra = found.failure, found.extra
    record = job_record(hub, found)
    try:
        record.payload = _payload_part(hub.engine, found, max(0, request.offset))
        payload_error = ""
    except PayloadDamaged as damage:
        record.payload, payload_error = b"", str(damage)
    result = None if extra is None else extra.result
    return JobDetail(
        job=record,
        backtrace=[] if failure is None else _lines(failure.backtrace),
        first_failed_at=0 if failure is None else failure.first_at,
        waits_for=_related(*_blockers(hub.engine, found)),
        waited_for_by=_related(*hub.engine.first_dependents(found, MAX_RELATED_JOBS)),
        lease_for=found.lease_duration,
        expires_at=time_or_zero(found.expires_at),
        max_attempts=found.max_attempts,
        dead_queue="" if extra is None else extra.dead_queue,
        protocol_data=_own(found),
        history=_history(found),
        reasons=hub.reasons(found, now),
        same_id_count=hub.engine.count_of(found.jid) - 1,
        backtrace_truncated=failure is not None and _is_long(failure.backtrace),
        result_size=-1 if result is None else len(result),
        result_truncated=result is not None and len(result) > MAX_DETAIL_BYTES,
        result=None if result is None else result[:MAX_DETAIL_BYTES],
        load="" if extra is None else extra.load,
        earlier_failures=[] if failure is None else _earlier_failures(failure),
        payload_error=payload_error,
    )


def _find(engine: Engine, request: GetJob) -> Job:
    if len(request.id) > MAX_NAME_LENGTH:
        raise AdminError(f"A name has at most {MAX_NAME_LENGTH:,} characters.", "too large")
    if request.seq:
        found = engine.job(request.seq)
        if found is not None and request.id in {found.jid, str(found.seq), ""}:
            return found
    else:
        found = engine.find(request.id) or next(iter(find_jobs(engine, request.id)), None)
        if found is not None:
            return found
    shown = request.id[:200] or request.seq
    raise TargetNotFound(
        f'Job "{shown}" not found. It may have finished and no longer be retained.'
    )


def _blockers(engine: Engine, found: Job) -> tuple[list[Job], int]:
    seqs = [] if found.extra is None else found.extra.blockers
    named_ones = [
        engine.tables.jobs[seq] for seq in seqs[:MAX_RELATED_JOBS] if seq in engine.tables.jobs
    ]
    return named_ones, len(seqs) - len(named_ones)


def _related(jobs: Iterable[Job], more: int) -> RelatedJobs:
    found = [RelatedJob(shorten(each.jid), each.seq, STATE_NAMES[each.state]) for each in jobs]
    return RelatedJobs(found, more)


def _is_long(backtrace: list[str]) -> bool:
    return len(backtrace) > MAX_BACKTRACE_LINES or any(
        len(line) > MAX_BACKTRACE_LINE for line in backtrace
    )


def _earlier_failures(failure: Failure) -> list[EarlierFailureRecord]:
    return [
        EarlierFailureRecord(attempt, at, group, message, _lines(backtrace))
        for attempt, at, group, message, backtrace in failure.earlier or ()
    ]


def _lines(backtrace: list[str]) -> list[str]:
    return [line[:MAX_BACKTRACE_LINE] for line in backtrace[:MAX_BACKTRACE_LINES]]


# Data of protocols


def _own(found: Job) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if found.origin == FAKTORY:
        own |= _of_faktory(found.wire_fields)
    elif found.origin == WORKQ:
        own |= _of_workq(found.wire_fields)
    part = _part(found)
    if part is not None:
        own |= _of_qless(found, part)
    return own


def _part(found: Job) -> JobDetails | None:
    """Return the data of Qless, or None. Do not create it."""
    return None if found.extra is None or found.extra.details is None else read_details(found)


def _of_faktory(spec: bytes) -> dict[str, Any]:
    """See faktory/work_unit.py."""
    custom, created, at, tail = (spec.split(b"\n") + [b""] * 4)[:4]
    own = {
        name: _json(text)
        for name, text in (("custom", custom), ("created_at", created), ("at", at))
        if text
    }
    if tail:
        try:
            others = _decode_members(b"{%b}" % tail[1:])
        except (ValueError, RecursionError):
            others = {}
        own |= {name: _json(bytes(raw)) for name, raw in others.items()}
    return own


def _of_workq(spec: bytes) -> dict[str, Any]:
    """See workq/jobs.py."""
    ttl, _, time = spec.partition(b" ")
    own: dict[str, Any] = {"ttl": int(ttl)} if ttl.isdigit() else {}
    if time:
        own["time"] = time.decode("utf-8", "replace")
    return own


def _of_qless(found: Job, part: JobDetails) -> dict[str, Any]:
    own: dict[str, Any] = {"state": state_of(found)}
    if found.origin == QLESS:
        own["remaining"] = found.retries - found.failures
    if part.limits:
        own["throttles"] = part.limits[:MAX_RELATED_JOBS]
    if part.parked is not None:
        own["throttled_by"] = part.parked.key
    if part.released_limits:
        own["freed"] = part.released_limits[:MAX_RELATED_JOBS]
    if part.spawned_from:
        own["spawned_from"] = part.spawned_from
    if part.lower_first:
        own["lower_first"] = True
    return own


def _history(found: Job) -> list[tuple[float, str, dict[str, Any] | None]]:
    part = _part(found)
    return [] if part is None else [_stage(*stage) for stage in part.log[-MAX_HISTORY_ENTRIES:]]


def _stage(when: float, what: Any, more: Any) -> tuple[float, str, dict[str, Any] | None]:
    if more is not None and not isinstance(more, dict):
        more = {"data": more}
    if more and len(_encode(more)) > MAX_PROTOCOL_DATA:
        more = {"data": f"more than {MAX_PROTOCOL_DATA} bytes"}
    return when, str(what), more


def _json(text: bytes) -> Any:
    """Return the original JSON, so that large numbers keep their value. Return text if the JSON is
    invalid or too long.
    """
    try:
        if len(text) <= MAX_PROTOCOL_DATA:
            _decode(text)
            return msgspec.Raw(text)
    except (ValueError, RecursionError):
        pass
    return text[:MAX_PROTOCOL_DATA].decode("utf-8", "replace")


#: Length of payloads (in bytes) and error messages (in characters) in lists.
PAYLOAD_EXCERPT_SIZE: Final = 200
MESSAGE_EXCERPT_SIZE: Final = 300
#: Length of an error message in the detail of a job.
MAX_MESSAGE_SIZE: Final = 65_536
NAME_EXCERPT_SIZE: Final = 1000
MAX_LISTED_TAGS: Final = 50
#: Maximum characters of text per page. A longer list continues on the next page.
MAX_PAGE_TEXT: Final = 1 << 20


def list_record(hub: AdminService, job: Job) -> JobRecord:
    """Return the record of a job for a list, with long names, message and payload shortened."""
    found = job_record(hub, job)
    complete = job_names(found)
    found.jid, found.queue, found.kind = shorten(job.jid), shorten(job.queue), shorten(job.kind)
    found.worker, found.wrapped_class = shorten(found.worker), shorten(found.wrapped_class)
    found.tags = [shorten(tag) for tag in found.tags[:MAX_LISTED_TAGS]]
    if found.failure is not None:
        found.failure.group = shorten(found.failure.group)
        found.failure.message = found.failure.message[:MESSAGE_EXCERPT_SIZE]
    found.truncated = job_names(found) != complete
    return found


def job_names(record: JobRecord) -> tuple[object, ...]:
    """Return all text of a job that a list may shorten."""
    names = (record.jid, record.queue, record.kind, record.worker, record.group)
    return (*names, record.wrapped_class, record.message, record.tags)


def job_record(hub: AdminService, job: Job) -> JobRecord:
    """Return the record of a job with complete names."""
    failure, extra = job.history.failure, job.extra
    return JobRecord(
        seq=job.seq,
        jid=job.jid,
        queue=job.queue,
        kind=job.kind,
        state=cast("State", STATE_NAMES[job.state]),
        protocol=PROTOCOL_NAMES[job.origin],
        priority=priority(job),
        created=job.created,
        due=time_or_zero(job.due_at),
        ready_at=job.ready_at,
        leased_at=job.history.leased_at,
        deadline=time_or_zero(job.history.deadline),
        ended_at=job.history.ended_at,
        attempt=job.history.attempt,
        failures=job.history.failures,
        retries=job.retries,
        worker=job.history.holder,
        worker_protocol=PROTOCOL_NAMES[job.history.holder_protocol],
        failure=_failure(failure),
        tags=[] if extra is None else list(extra.tags),
        tracked=job.jid in hub.engine.annotations.tracked,
        payload=payload_excerpt(hub.engine, job),
        size=payload_size(job),
        wrapped_class=wrapped_class(hub.engine, job),
        truncated=failure is not None and len(failure.message) > MAX_MESSAGE_SIZE,
    )


def _failure(failure: Failure | None) -> FailureRecord | None:
    if failure is None or not (failure.group or failure.message or failure.last_at):
        return None
    return FailureRecord(failure.group, failure.message[:MAX_MESSAGE_SIZE], failure.last_at)


def shorten(said: str) -> str:
    return truncate(said, NAME_EXCERPT_SIZE)


def text_size(row: JobRecord) -> int:
    """Return the number of characters of text in the record."""
    names = (row.jid, row.queue, row.kind, row.worker, row.group, row.wrapped_class, row.message)
    return sum(map(len, names)) + sum(map(len, row.tags))


def priority(job: Job) -> float:
    """Return the priority in the scale of the protocol that pushed the job."""
    if job.origin == QLESS:
        value = read_details(job).priority
    else:
        has_part = job.extra is not None and job.extra.details is not None
        rank = read_details(job).rank if has_part else job.rank
        value = 0.0 - rank if job.origin == GOQUEUE else rank
    return value if isfinite(value) else 0  # JSON cannot represent infinity or NaN


def time_or_zero(at: int) -> int:
    """Return a time, or 0 for FOREVER."""
    return 0 if at == FOREVER else at
