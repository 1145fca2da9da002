"""`queues` and `queue`: what is in them, who asks for it, how long it takes."""

from collections.abc import Iterator
from heapq import nsmallest
from itertools import accumulate
from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.queues import Queue
from millrace.engine.spans import Percentiles
from millrace.engine.states import READY
from millrace.engine.stats import DAY, KEPT_DAYS, QueueDay
from millrace.protocols.qless.job_view import read_part
from millrace.protocols.qless.state import Qless
from millrace.protocols.qless.throttles import OF_QUEUE
from millrace.records import (
    DurationSpread,
    GetQueue,
    LatencySummary,
    ListQueues,
    QueueDetail,
    QueuePage,
    QueueRecord,
    QueueStatistics,
)

from .answering import Answering, Telling
from .errors import NotFound
from .jobs import MAX_PAGE_TEXT
from .samples import MAX_SAMPLED_QUEUES
from .service import AdminService

#: So many queues, or other things, are looked at before others have their turn.
QUEUE_SLICE_SIZE: Final = 500
#: And so many are told of.
RECORD_SLICE_SIZE: Final = 20
#: So many stalled jobs are counted, and not more.
MAX_STALLED_COUNTED: Final = 300


def queues(hub: AdminService, asked: ListQueues, now: int) -> Iterator[QueuePage | None]:
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
            rows.append(row(hub, queue, now))
        if len(rows) % RECORD_SLICE_SIZE == 0:
            yield None
    yield QueuePage(rows, count, found[most - 1] if len(found) > most else "")


def queue(hub: AdminService, asked: GetQueue, now: int) -> Iterator[QueueDetail | None]:
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
        row(hub, found, now),
        queue_statistics(engine.count().days.get((name, day)) or QueueDay(name, day)),
        days,
        stalled,
        recurring,
        throttled,
    )


def row(hub: AdminService, queue: Queue, now: int) -> QueueRecord:
    engine = hub.engine
    engine.count()
    lately = engine.lately
    oldest = queue.ready.oldest()
    return QueueRecord(
        name=queue.name,
        paused=queue.paused,
        counts=list(queue.counts),
        oldest=0 if oldest is None else oldest.ready_at,
        wait=spans(lately.waited(queue.name)),
        run=spans(lately.ran(queue.name)),
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
    """Is it more than a name that somebody waits for?"""
    return queue.known or any(queue.counts)


def spans(found: Percentiles) -> LatencySummary:
    return LatencySummary(*found)


def _fitting(names: list[str]) -> int:
    """How many of them one answer tells: at least one."""
    sizes = accumulate(map(len, names))
    return min(len(names), 1 + sum(size < MAX_PAGE_TEXT for size in sizes))


def _known(engine: Engine, names: list[str], *, paused: bool) -> list[str]:
    found = [queue for name in names if (queue := engine.queues.get(name)) is not None]
    return [queue.name for queue in found if is_known(queue) and queue.paused >= paused]


def _limit(hub: AdminService, name: str, now: int) -> int:
    """How many of its jobs Qless hands out at a time; 0 is any number."""
    qless = hub.qless
    if qless is None:
        return 0
    limits = (
        qless.setting(f"{name}-max-concurrency") if qless.config else 0,
        qless.throttles.maximum(OF_QUEUE + name, now + hub.engine.theirs),
    )
    return int(min((limit for limit in limits if limit > 0), default=0))


def _throttled(qless: Qless, name: str) -> Iterator[int]:
    """How many jobs of a queue wait for a throttle, bit by bit."""
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


ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {"queues": queues, "queue": queue}
