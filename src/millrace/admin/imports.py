"""`import_jobs`: the steps of an import of jobs from another server. See engine/imports.py."""

from collections.abc import Iterator
from typing import Final

from millrace.engine import imports
from millrace.engine.details import JobDetails, LastError
from millrace.engine.engine import Engine
from millrace.engine.errors import LoadError
from millrace.engine.imports import ImportedHistory
from millrace.engine.job import Failure, NewJob
from millrace.engine.recurring import RecurringJob
from millrace.engine.settings import DAYS_PREFIX
from millrace.engine.statistics import DurationSummary, QueueDay
from millrace.protocols.http.pushes import check_queue
from millrace.protocols.qless.state import QlessState
from millrace.protocols.registry import PROTOCOL_NAMES, QLESS
from millrace.records import (
    DayTotals,
    ImportedDetails,
    ImportedDurations,
    ImportedJob,
    ImportedQueueDay,
    ImportedRecurringJob,
    ImportedSettings,
    ImportJobs,
    ImportProgress,
)

from .errors import AdminError, require_room, require_writable
from .samples import day_totals
from .service import AdminService

#: Jobs that are staged, released or discarded in one slice.
IMPORT_SLICE_SIZE: Final = 50
#: Number of processed jobs between two progress replies.
PROGRESS_INTERVAL: Final = 1000
MAX_SOURCE_LENGTH: Final = 200

Steps = Iterator[ImportProgress | None]


def import_jobs(hub: AdminService, request: ImportJobs, now: int) -> Steps:
    if not 0 < len(request.source) <= MAX_SOURCE_LENGTH:
        raise AdminError(f"The name of a source has 1 to {MAX_SOURCE_LENGTH} characters.")
    match request.step:
        case "check":
            return _check(hub, request)
        case "begin":
            require_room(hub.engine)
            return _begin(hub, request)
        case "stage":
            require_room(hub.engine)
            return _stage(hub, request)
        case "finish":
            require_writable(hub.engine)
            return _finish(hub, request)
        case "discard":
            require_writable(hub.engine)
            return _discard(hub, request)


def _check(hub: AdminService, request: ImportJobs) -> Steps:
    engine, known = hub.engine, hub.imported.of(request.source)
    found = ImportProgress(0, 0, first=_is_first(engine, request.source))
    for number, job in enumerate(request.jobs, 1):
        if imports.digest(job.jid) in known:
            found.known.append(job.jid)
        elif job.jid in engine.tables.by_jid and not _is_staged(engine, request.source, job.jid):
            found.existing.append(job.jid)
        else:
            found.done += 1
        if number % IMPORT_SLICE_SIZE == 0:
            yield None
    yield found


def _is_first(engine: Engine, source: str) -> bool:
    return not imports.runs_of(engine, source).complete


def _is_staged(engine: Engine, source: str, jid: str) -> bool:
    """Whether an incomplete run has staged the job; the next run discards it."""
    job = engine.find(jid)
    extra = None if job is None else job.extra
    return extra is not None and extra.load in imports.load_names(source)


def _begin(hub: AdminService, request: ImportJobs) -> Steps:
    """Complete or discard the last run, and start a new one."""
    yield from _release(hub, request.source, 0)
    yield from _discard_staged(hub, request.source)
    yield ImportProgress(imports.begin(hub.engine, request.source, hub.now), 0)


def _stage(hub: AdminService, request: ImportJobs) -> Steps:
    engine, source = hub.engine, request.source
    known, undone = hub.imported.of(source), engine.revert_count
    _need_open(hub, request)
    found = ImportProgress(request.run, 0)
    staged: list[str] = []
    for number, job in enumerate(request.jobs, 1):
        if imports.digest(job.jid) in known:
            found.known.append(job.jid)
        elif imports.stage(engine, source, _push(job), _history(job), hub.now) is None:
            found.existing.append(job.jid)
        else:
            found.done += 1
            staged.append(job.jid)
        if number % IMPORT_SLICE_SIZE == 0:
            imports.store_digests(engine, source, request.run, staged)
            staged = []
            yield None
            _check_kept(engine, undone)
            _need_open(hub, request)
    imports.store_digests(engine, source, request.run, staged)
    yield found


def _finish(hub: AdminService, request: ImportJobs) -> Steps:
    """Apply the settings and complete the run in one change, then release the jobs in slices."""
    engine, source = hub.engine, request.source
    _need_open(hub, request)
    total = imports.staged_count(engine, source)
    if request.settings is not None and _is_first(engine, source):
        _apply(hub, request.settings)
    imports.finish(engine, source, request.run, hub.now)
    hub.imported.clear()
    number = hub.audit.add(hub.now, request.by, "import", source)
    hub.audit.count(number, total)
    yield None
    yield from _release(hub, source, total)
    yield ImportProgress(request.run, total, total)


def _discard(hub: AdminService, request: ImportJobs) -> Steps:
    total = imports.staged_count(hub.engine, request.source)
    if imports.is_releasing(hub.engine, request.source):
        raise AdminError("The import is complete. It cannot be discarded.", "conflict")
    yield from _discard_staged(hub, request.source)
    yield ImportProgress(request.run, total, total)


def _discard_staged(hub: AdminService, source: str) -> Steps:
    engine, undone = hub.engine, hub.engine.revert_count
    while imports.discard(engine, source, IMPORT_SLICE_SIZE, hub.now):
        yield None
        _check_kept(engine, undone)


def _release(hub: AdminService, source: str, total: int) -> Steps:
    engine, undone, done = hub.engine, hub.engine.revert_count, 0
    while imports.is_releasing(engine, source):
        done += imports.release(engine, source, IMPORT_SLICE_SIZE, hub.now)
        tell = total and done % PROGRESS_INTERVAL == 0
        yield ImportProgress(0, done, total, finished=False) if tell else None
        _check_kept(engine, undone)


def _need_open(hub: AdminService, request: ImportJobs) -> None:
    try:
        imports.require_open_run(hub.engine, request.source, request.run)
    except LoadError as error:
        raise AdminError(str(error), "conflict") from None


def _check_kept(engine: Engine, undone: int) -> None:
    """Raise AdminError if the store has refused a slice."""
    if engine.revert_count != undone or engine.unavailable_reason:
        reason = engine.unavailable_reason or "the store failed"
        raise AdminError(f"{reason}: repeat the import", "unavailable")


# Jobs


def _push(job: ImportedJob) -> NewJob:
    check_queue(job.queue)
    if job.protocol not in PROTOCOL_NAMES[1:]:
        raise AdminError(f"Unknown protocol {job.protocol}.")
    return NewJob(
        job.jid,
        job.kind,
        job.payload,
        PROTOCOL_NAMES.index(job.protocol),
        job.queue,
        job.retries,
        job.lease_for,
        job.spec,
        job.rank,
        job.due,
        job.tags,
        position=job.place,
        expires_at=job.expires,
        max_attempts=job.max_attempts,
        dead_queue=job.dead_queue,
        details=None if job.details is None else _details(job, job.details),
    )


def _details(job: ImportedJob, given: ImportedDetails) -> JobDetails:
    error, failure = None, job.failure
    if failure is not None:
        error = LastError(failure.group, failure.message, given.failed_at, given.failed_worker)
    return JobDetails(
        given.priority,
        list(given.log),
        list(given.tags),
        last_error=error,
        spawned_from=given.spawned_from,
        limits=given.limits,
        waiting_since=given.waiting_since,
    )


def _history(job: ImportedJob) -> ImportedHistory:
    failed = job.failure
    failure = None
    if failed is not None:
        failure = Failure(
            failed.first_at, failed.last_at, failed.group, failed.message, failed.backtrace
        )
    return ImportedHistory(
        job.created, job.attempts, job.failures, failure, job.result, job.waits_for, job.dead
    )


# Settings


def _apply(hub: AdminService, settings: ImportedSettings) -> None:
    engine, now = hub.engine, hub.now
    qless = hub.qless
    for name, first_at in settings.queues.items():
        check_queue(name)
        engine.open_queue(name)
        if first_at and qless is not None:
            qless.register_queue(name, first_at)
    for name in settings.paused:
        engine.open_queue(name)
        engine.pause(name, paused=True, now=now)
    for limit in settings.limits:
        engine.set_limit(limit.key, limit.maximum, limit.expires, now)
    for jid, since in settings.tracked.items():
        engine.track(jid, since)
    for record in settings.recurring:
        engine.put_recurring(_recurring_job(record))
    for option, value in settings.qless_options.items():
        _need_qless(qless).options.set(option, value)
    imports.add_statistics(
        engine, settings.processed, settings.failures, map(_queue_day, settings.queue_days)
    )
    for day, processed, failures in settings.days:
        before = day_totals(engine, day) or DayTotals(day, 0, 0)
        total = (processed + before.processed, failures + before.failures)
        engine.set_setting(f"{DAYS_PREFIX}{day}", b"%d %d" % total)


def _recurring_job(given: ImportedRecurringJob) -> RecurringJob:
    return RecurringJob(
        given.jid,
        given.kind,
        given.payload,
        given.queue,
        given.interval,
        given.priority,
        given.retries,
        given.backlog,
        given.tags,
        given.next_at,
        given.count,
        given.limits,
        origin=QLESS,
        prefix=given.prefix,
    )


def _queue_day(given: ImportedQueueDay) -> QueueDay:
    return QueueDay(
        given.queue,
        given.day,
        _spread(given.wait),
        _spread(given.run),
        given.failures,
        given.failed,
        given.retries,
    )


def _spread(given: ImportedDurations) -> DurationSummary:
    return DurationSummary(given.count, given.mean, given.vk, given.histogram)


def _need_qless(qless: QlessState | None) -> QlessState:
    if qless is None:
        raise AdminError("The Qless port is off. Enable it to import settings of Qless.")
    return qless
