"""`metrics`: all values that the server exports to Prometheus."""

from collections.abc import Iterator, Sequence
from heapq import nlargest
from typing import Final

from millrace.engine.durations import Durations, count_below
from millrace.engine.engine import Engine
from millrace.engine.queues import Queue
from millrace.engine.states import READY
from millrace.records import GetMetrics, Histogram, Metrics, PortStatus, ShippingStatus

from .overview import count_workers, port_status
from .queues import is_known
from .samples import depth
from .service import AdminService

SECOND: Final = 1_000_000
#: Queues examined per slice.
METRIC_SLICE_SIZE: Final = 200
#: Bounds of histograms, as powers of two in microseconds: from 0.25 ms to 19 hours for jobs, and
#: from 0.125 ms to half a minute for short durations.
JOB_BUCKETS: Final = range(8, 37, 2)
SHORT_BUCKETS: Final = range(7, 26)


class QueueDepths:
    """Job counts of the deepest queues, and the sum of all other queues."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._deepest: list[tuple[int, str]] = []
        self.count = 0
        self.paused = 0
        self.waiters = 0
        self.told: dict[str, list[int]] = {}
        self.oldest: dict[str, int] = {}

    def look(self, engine: Engine) -> Iterator[None]:
        """Examine all queues twice, in slices: find the deepest queues, then count the jobs."""
        names = list(engine.tables.queues)
        for some in _slices(names):
            found = [(depth(queue), queue.name) for queue in _queues(engine, some)]
            self._deepest = nlargest(self._most, self._deepest + found)
            yield None
        deepest = {name for _, name in self._deepest}
        for some in _slices(names):
            for queue in _queues(engine, some):
                self._count(queue, queue.name if queue.name in deepest else "")
            yield None

    def _count(self, queue: Queue, told_as: str) -> None:
        self.waiters += len(queue.waiters)
        if not is_known(queue):
            return
        self.count += 1
        self.paused += queue.paused
        counts = self.told.setdefault(told_as, [0] * len(queue.counts))
        for state, count in enumerate(queue.counts):
            counts[state] += count
        oldest = queue.ready.oldest() if queue.counts[READY] else None
        if oldest is not None:
            at = oldest.ready_at
            self.oldest[told_as] = min(at, self.oldest.get(told_as, at))


def get_metrics(hub: AdminService, request: GetMetrics, now: int) -> Iterator[Metrics | None]:
    engine = hub.engine
    depths = QueueDepths(request.limit)
    yield from depths.look(engine)
    protocols: list[PortStatus] = []
    for each in hub.hubs:
        protocols.append(port_status(hub, each))
        yield None
    engine.current_statistics()
    recent, measured = engine.recent_durations, hub.samples.measured
    journal = _NOWHERE if hub.keeper is None else hub.keeper.current_status()
    detail = None if hub.host is None else hub.host.server_status()
    yield Metrics(
        now=now,
        started_at=hub.started_at,
        pushed=recent.pushed,
        completed=recent.completed,
        failed=recent.failed,
        queues=depths.told,
        queues_count=depths.count,
        paused=depths.paused,
        retrying=engine.retrying,
        protocols=protocols,
        waits=histogram(recent.waits, recent.wait_sum, JOB_BUCKETS),
        runs=histogram(recent.runs, recent.run_sum, JOB_BUCKETS),
        commits=_short(measured.commits),
        lag=_short(measured.lag),
        waiters=depths.waiters,
        workers=count_workers(hub),
        store_bytes=0 if detail is None else detail.store_bytes,
        outbox_bytes=journal.bytes,
        outbox_events=journal.events,
        shipping_lag=journal.seconds,
        shipped_files=journal.files,
        dropped_events=journal.dropped,
        memory_bytes=hub.memory_mb() << 20,
        halted=bool(engine.unavailable_reason),
        pushes_refused=bool(engine.unavailable_reason or engine.push_refusal_reason),
        oldest=depths.oldest,
        disk_free=0 if detail is None else detail.disk_free,
        disk_size=0 if detail is None else detail.disk_size,
        original={
            series: values
            for each in hub.hubs
            for series, values in each.original_metrics().items()
        },
    )


def histogram(counts: Sequence[int], total: int, powers: range) -> Histogram:
    return Histogram(
        bounds=[(1 << power) / SECOND for power in powers],
        counts=[count_below(counts, power) for power in powers],
        count=sum(counts),
        sum=total / SECOND,
    )


def _short(durations: Durations) -> Histogram:
    return histogram(durations.counts, durations.sum, SHORT_BUCKETS)


def _slices(names: list[str]) -> Iterator[list[str]]:
    return (
        names[first : first + METRIC_SLICE_SIZE]
        for first in range(0, len(names), METRIC_SLICE_SIZE)
    )


def _queues(engine: Engine, names: list[str]) -> Iterator[Queue]:
    """Return the named queues that still exist."""
    return (queue for queue in map(engine.queue, names) if queue is not None)


_NOWHERE: Final = ShippingStatus("", "", 1, 1, 0, 0)
