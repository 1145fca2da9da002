"""`queues` and `queue`: contents, waiting workers and latency of queues."""

from collections.abc import Iterator
from heapq import nsmallest
from itertools import accumulate
from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.job import QLESS, Job
from millrace.engine.queues import Queue
from millrace.engine.spans import Percentiles
from millrace.engine.states import READY
from millrace.engine.stats import DAY, KEPT_DAYS, QueueDay
from millrace.protocols.qless.job_view import read_part
from millrace.protocols.qless.state import Qless
from millrace.protocols.qless.throttles import OF_QUEUE
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
from .bulk import (
    ACTION_SLICE_SIZE,
    PROGRESS_INTERVAL,
    check_not_reverted,
    quoted,
)
from .errors import NotFound, require_writable
from .jobs import MAX_PAGE_TEXT
from .samples import MAX_SAMPLED_QUEUES
from .service import AdminService

#: Queues or other objects examined per slice.
QUEUE_SLICE_SIZE: Final = 500
#: Queue records built per slice.
RECORD_SLICE_SIZE: Final = 20
#: Maximum stalled jobs counted.
MAX_STALLED_COUNTED: Final = 300


def list_queues(hub: AdminService, asked: ListQueues, now: int) -> Iterator[QueuePage | None]:
    engine = hub.engine
    most, text = max(1, min(asked.most, MAX_SAMPLED_QUEUES)), asked.text.casefold()
    names, found, count = list(engine.queues), list[str](), 0
    for first in range(0, len(names), QUEUE_SLICE_SIZE):
        known = _known(engine, names[first : first + QUEUE_SLICE_SIZE], paused=asked.paused)
        some = [name for name in known if text in name.casefold()] if text else known
        count += len(some)
        behind = [name for name in some if name > asked.after] if asked.after else some
        found = nsmallest(most + 1, found + behind)
        yield None
    rows: list[QueueRecord] = []
    most = _fitting(found[:most])
    for name in found[:most]:
        queue = engine.queues.get(name)
        if queue is not None:
            rows.append(queue_record(hub, queue, now))
        if len(rows) % RECORD_SLICE_SIZE == 0:
            yield None
    yield QueuePage(rows, count, found[most - 1] if len(found) > most else "")


def get_queue(hub: AdminService, asked: GetQueue, now: int) -> Iterator[QueueDetail | None]:
    engine, name = hub.engine, asked.name
    found = engine.queues.get(name)
    if found is None or not is_known(found):
        raise NotFound(f'there is no queue "{name}"')
    today, known = now // DAY, engine.count().days
    days = [day for day in range(today - KEPT_DAYS, today + 1) if (name, day) in known]
    day = today if asked.day < 0 else asked.day
    qless = hub.qless
    stalled = recurring = throttled = 0
    if qless is not None:
        stalled = len(qless.expired(name, now + engine.theirs, MAX_STALLED_COUNTED))
        every = list(qless.recurring.values())
        for first in range(0, len(every), QUEUE_SLICE_SIZE):
            recurring += sum(each.queue == name for each in every[first : first + QUEUE_SLICE_SIZE])
            yield None
        for some in _throttled(qless, name):
            throttled += some
            yield None
    yield QueueDetail(
        queue_record(hub, found, now),
        queue_statistics(engine.count().days.get((name, day)) or QueueDay(name, day)),
        days,
        stalled,
        recurring,
        throttled,
    )


def queue_record(hub: AdminService, queue: Queue, now: int) -> QueueRecord:
    engine = hub.engine
    engine.count()
    lately = engine.lately
    oldest = queue.ready.oldest()
    return QueueRecord(
        name=queue.name,
        paused=queue.paused,
        counts=list(queue.counts),
        oldest=0 if oldest is None else oldest.ready_at,
        wait=latency(lately.waited(queue.name)),
        run=latency(lately.ran(queue.name)),
        limit=_limit(hub, queue.name, now),
        waiters=len(queue.waiters),
        asked=queue.asked,
        depths=list(hub.samples.depths.get(queue.name, ())),
    )


def queue_statistics(day: QueueDay) -> QueueStatistics:
    wait, run = (
        DurationSpread(each.count, each.mean, each.vk, each.histogram)
        for each in (day.wait, day.run)
    )
    return QueueStatistics(day.queue, day.day, wait, run, day.failures, day.failed, day.retries)


def is_known(queue: Queue) -> bool:
    """Return whether the queue is known or has jobs. Otherwise, only waiting workers name it."""
    return queue.known or any(queue.counts)


def latency(found: Percentiles) -> LatencySummary:
    return LatencySummary(*found)


def _fitting(names: list[str]) -> int:
    """Return the number of names that fit in one reply, at least one."""
    sizes = accumulate(map(len, names))
    return min(len(names), 1 + sum(size < MAX_PAGE_TEXT for size in sizes))


def _known(engine: Engine, names: list[str], *, paused: bool) -> list[str]:
    found = [queue for name in names if (queue := engine.queues.get(name)) is not None]
    return [queue.name for queue in found if is_known(queue) and queue.paused >= paused]


def _limit(hub: AdminService, name: str, now: int) -> int:
    """Return the maximum concurrent jobs of a queue in Qless; 0 means no limit."""
    qless = hub.qless
    if qless is None:
        return 0
    limits = (
        qless.setting(f"{name}-max-concurrency") if qless.config else 0,
        qless.throttles.maximum(OF_QUEUE + name, now + hub.engine.theirs),
    )
    return int(min((limit for limit in limits if limit > 0), default=0))


def _throttled(qless: Qless, name: str) -> Iterator[int]:
    """Count the jobs of a queue that wait for a throttle. Yield one number per slice."""
    jobs, seen = qless.engine.jobs, set[int]()
    entries = [seq for heap in list(qless.throttles.pending.values()) for _, _, seq in heap]
    for first in range(0, len(entries), QUEUE_SLICE_SIZE):
        some = {seq for seq in entries[first : first + QUEUE_SLICE_SIZE] if seq not in seen}
        seen |= some
        found = [job for job in map(jobs.get, some) if job is not None]
        yield sum(
            (job.queue, job.state) == (name, READY) and read_part(job).throttled is not None
            for job in found
        )


#: Clearing a queue keeps jobs that become ready while it runs. It stops if this number of newer
#: jobs is ahead of the older ones.
MAX_NEWER_JOBS: Final = 200

# Actions on queues


def act_on_queue(hub: AdminService, asked: QueueAction, now: int) -> Iterator[BulkProgress | None]:
    engine = hub.engine
    require_writable(engine)
    queue = engine.queues.get(asked.name)
    if queue is None or not (queue.known or any(queue.counts)):
        raise NotFound(f"there is no queue {quoted(asked.name)}")
    number = hub.audit.add(now, asked.by, f"{asked.action} queue", asked.name)
    if asked.action in {"pause", "resume"}:
        engine.open_queue(asked.name)
        engine.pause(asked.name, paused=asked.action == "pause", now=now)
        yield BulkProgress(1, [])
    else:
        yield from _clear(hub, queue, asked, number)


def _clear(
    hub: AdminService, queue: Queue, asked: QueueAction, number: int
) -> Iterator[BulkProgress | None]:
    """Remove the jobs that are ready now, in slices. Then remove the queue if requested."""
    engine = hub.engine
    undone, last = engine.reverts, (engine.next_seq, engine.clock)
    acted = BulkProgress(0, [], of=len(queue.ready), over=False)
    told = 0
    try:
        while gone := _remove_some(hub, queue, last, min(ACTION_SLICE_SIZE, acted.of - acted.done)):
            acted.done = acted.looked = acted.done + gone
            tell = acted.done - told >= PROGRESS_INTERVAL
            told = acted.done if tell else told
            yield acted if tell else None
            check_not_reverted(engine, undone, acted)
            if engine.queues.get(asked.name) is not queue:
                break
        if asked.action == "remove":
            _forget(hub, queue, hub.now)
    finally:
        if not engine.halted and engine.reverts == undone:
            hub.audit.count(number, acted.done)
    acted.looked, acted.over = acted.of, True
    yield acted


def _remove_some(hub: AdminService, queue: Queue, last: tuple[int, int], most: int) -> int:
    """Remove up to `most` of the first jobs that were ready before `last`. Return their number."""
    ready, (next_seq, clock) = queue.ready, last
    taken: list[Job] = []
    newer: list[Job] = []
    while len(taken) < most and len(newer) < MAX_NEWER_JOBS and (job := ready.pop()) is not None:
        came_later = job.seq >= next_seq or (job.origin != QLESS and job.ready_at > clock)
        (newer if came_later else taken).append(job)
    for job in (*taken, *newer):
        ready.add(job)
    for job in taken:
        remove(hub, job, hub.now)
    return len(taken)


def _forget(hub: AdminService, queue: Queue, now: int) -> None:
    """Remove the queue and its pause. If the queue has new ready jobs, only resume it."""
    if hub.engine.queues.get(queue.name) is not queue:
        return
    if len(queue.ready):
        hub.engine.pause(queue.name, paused=False, now=now)
        return
    hub.engine.remove_queue(queue.name, now)
    qless = hub.qless
    if qless is not None:
        qless.unsee(queue.name)
