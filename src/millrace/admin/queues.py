"""`queues` and `queue`: contents, waiting workers and latency of queues."""

from collections.abc import Iterator
from heapq import nsmallest
from itertools import accumulate, islice
from typing import Final

from millrace.engine.durations import Percentiles
from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.limits import QUEUE_KEY_PREFIX
from millrace.engine.queues import Queue
from millrace.engine.retention import MAX_RETENTION
from millrace.engine.statistics import DAY, KEPT_DAYS, QueueDay
from millrace.protocols.registry import HTTP, QLESS
from millrace.records import (
    BulkProgress,
    DurationSpread,
    GetQueue,
    LatencySummary,
    ListQueues,
    QueueAction,
    QueueDetail,
    QueuePage,
    QueueRecord,
    QueueStatistics,
)

from .actions import remove
from .bulk import ACTION_SLICE_SIZE, PROGRESS_INTERVAL, check_not_reverted
from .errors import AdminError, TargetNotFound, require_writable
from .jobs import MAX_PAGE_TEXT
from .service import AdminService

#: Queues or other objects examined per slice.
QUEUE_SLICE_SIZE: Final = 500
#: Queue records built per slice.
RECORD_SLICE_SIZE: Final = 20
#: Maximum stalled jobs counted.
MAX_STALLED_COUNTED: Final = 300


def list_queues(hub: AdminService, request: ListQueues, now: int) -> Iterator[QueuePage | None]:
    engine = hub.engine
    limit, text = request.limit, request.text.casefold()
    names, found, count = list(engine.tables.queues), list[str](), 0
    for first in range(0, len(names), QUEUE_SLICE_SIZE):
        known = _known(engine, names[first : first + QUEUE_SLICE_SIZE], paused=request.paused)
        some = [name for name in known if text in name.casefold()] if text else known
        count += len(some)
        behind = [name for name in some if name > request.cursor] if request.cursor else some
        found = nsmallest(limit + 1, found + behind)
        yield None
    rows: list[QueueRecord] = []
    limit = _fitting(found[:limit])
    for name in found[:limit]:
        queue = engine.queue(name)
        if queue is not None:
            rows.append(queue_record(hub, queue, now))
        if len(rows) % RECORD_SLICE_SIZE == 0:
            yield None
    yield QueuePage(rows, count, found[limit - 1] if len(found) > limit else "")


def get_queue(hub: AdminService, request: GetQueue, now: int) -> Iterator[QueueDetail | None]:
    engine, name = hub.engine, request.name
    found = engine.queue(name)
    if found is None or not is_known(found):
        raise TargetNotFound(f'Queue "{name}" not found.')
    today, known = now // DAY, engine.queue_days()
    days = [day for day in range(today - KEPT_DAYS, today + 1) if (name, day) in known]
    day = today if request.day < 0 else request.day
    stalled = engine.deadlines.count_expired(name, now + 1, engine.caller, MAX_STALLED_COUNTED)
    yield QueueDetail(
        queue_record(hub, found, now),
        queue_statistics(engine.queue_days().get((name, day)) or QueueDay(name, day)),
        days,
        stalled,
        len(engine.recurring.by_queue.get(name, ())),
        len(found.ready.parked),
    )


def queue_record(hub: AdminService, queue: Queue, now: int) -> QueueRecord:
    engine = hub.engine
    engine.current_statistics()
    recent = engine.recent_durations
    oldest = queue.ready.oldest()
    return QueueRecord(
        name=queue.name,
        paused=queue.paused,
        counts=list(queue.counts),
        oldest=0 if oldest is None else oldest.ready_at,
        wait=latency(recent.wait_percentiles(queue.name)),
        run=latency(recent.run_percentiles(queue.name)),
        limit=_limit(hub, queue.name, now),
        waiters=len(queue.waiters),
        last_fetch_at=queue.last_requested_at,
        depths=list(hub.samples.depths.get(queue.name, ())),
        retention=engine.retention_of(queue.name),
    )


def queue_statistics(day: QueueDay) -> QueueStatistics:
    wait, run = (
        DurationSpread(each.count, each.mean, each.vk, each.histogram)
        for each in (day.wait, day.run)
    )
    return QueueStatistics(day.queue, day.day, wait, run, day.failures, day.failed, day.retries)


def is_known(queue: Queue) -> bool:
    """Return whether the queue is known or has jobs. Otherwise, only waiting workers name it."""
    return queue.registered or any(queue.counts)


def latency(found: Percentiles) -> LatencySummary:
    return LatencySummary(*found)


def _fitting(names: list[str]) -> int:
    """Return the number of names that fit in one reply, at least one."""
    sizes = accumulate(map(len, names))
    return min(len(names), 1 + sum(size < MAX_PAGE_TEXT for size in sizes))


def _known(engine: Engine, names: list[str], *, paused: bool) -> list[str]:
    found = [queue for name in names if (queue := engine.queue(name)) is not None]
    return [queue.name for queue in found if is_known(queue) and queue.paused >= paused]


def _limit(hub: AdminService, name: str, now: int) -> int:
    """Return the maximum number of leased jobs of a queue; 0 means no limit."""
    limits = hub.engine.limits
    found = limits.concurrency.get(name, 0), limits.maximum(QUEUE_KEY_PREFIX + name, now)
    return int(min((limit for limit in found if limit > 0), default=0))


#: Clearing a queue keeps jobs that become ready while it runs. It stops if this number of newer
#: jobs is ahead of the older ones.
MAX_NEWER_JOBS: Final = 200

# Actions on queues


def act_on_queue(
    hub: AdminService, request: QueueAction, now: int
) -> Iterator[BulkProgress | None]:
    engine = hub.engine
    require_writable(engine)
    queue = engine.queue(request.name)
    if queue is None or not (queue.registered or any(queue.counts)):
        raise TargetNotFound(f'Queue "{request.name}" not found.')
    number = hub.audit.add(now, request.by, f"{request.action} queue", request.name)
    if request.action in {"pause", "resume"}:
        engine.open_queue(request.name)
        engine.pause(request.name, paused=request.action == "pause", now=now)
        yield BulkProgress(1, [])
    elif request.action == "retain":
        if request.retention > MAX_RETENTION:
            raise AdminError("Completed jobs are kept for 366 days at most.")
        engine.set_retention(request.name, None if request.retention < 0 else request.retention)
        yield BulkProgress(1, [])
    elif request.action == "limit":
        if not engine.set_limit(
            QUEUE_KEY_PREFIX + request.name, request.limit or None, 0, now, HTTP
        ):
            engine.caller.wait()
        yield BulkProgress(1, [])
    elif request.action in {"clear", "remove"}:
        yield from _clear(hub, queue, request, number)
    else:  # an action that was added to QUEUE_ACTIONS only
        raise NotImplementedError(request.action)


def _clear(
    hub: AdminService, queue: Queue, request: QueueAction, number: int
) -> Iterator[BulkProgress | None]:
    """Remove the jobs that are ready now, in slices. Then remove the queue if requested."""
    engine = hub.engine
    undone, last = engine.revert_count, (engine.next_seq, engine.last_known_time)
    acted = BulkProgress(0, [], total=len(queue.ready), finished=False)
    told = 0
    try:
        while gone := _remove_some(
            hub, queue, last, min(ACTION_SLICE_SIZE, acted.total - acted.done)
        ):
            acted.done = acted.examined = acted.done + gone
            tell = acted.done - told >= PROGRESS_INTERVAL
            told = acted.done if tell else told
            yield acted if tell else None
            check_not_reverted(engine, undone, acted)
            if engine.queue(request.name) is not queue:
                break
        if request.action == "remove":
            _forget(hub, queue, hub.now)
    finally:
        if not engine.unavailable_reason and engine.revert_count == undone:
            hub.audit.count(number, acted.done)
    acted.examined, acted.finished = acted.total, True
    yield acted


def _remove_some(hub: AdminService, queue: Queue, last: tuple[int, int], most: int) -> int:
    """Remove up to `most` of the first jobs that were ready before `last`. Return their number."""
    ready, (next_seq, clock) = queue.ready, last

    def came_later(job: Job) -> bool:
        return job.seq >= next_seq or (job.origin != QLESS and job.ready_at > clock)

    parked = islice((job for job in ready.parked.values() if not came_later(job)), most)
    taken: list[Job] = list(parked)
    newer: list[Job] = []
    popped: list[Job] = []
    while len(taken) < most and len(newer) < MAX_NEWER_JOBS and (job := ready.pop()) is not None:
        (newer if came_later(job) else taken).append(job)
        popped.append(job)
    for job in popped:
        ready.add(job)
    for job in taken:
        remove(hub, job, hub.now)
    return len(taken)


def _forget(hub: AdminService, queue: Queue, now: int) -> None:
    """Remove the queue and its pause. If the queue has new ready jobs, only resume it."""
    if hub.engine.queue(queue.name) is not queue:
        return
    if len(queue.ready):
        hub.engine.pause(queue.name, paused=False, now=now)
        return
    hub.engine.remove_queue(queue.name, now)
    qless = hub.qless
    if qless is not None:
        qless.forget_queue(queue.name)
