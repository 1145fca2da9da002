"""`overview`: current and recent totals of the server."""

from collections.abc import Iterator
from typing import Any, Final

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.states import READY
from millrace.protocols.connection import Hub
from millrace.protocols.faktory import info
from millrace.protocols.faktory.hub import FaktoryHub
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.options import DEFAULTS
from millrace.records import (
    Counters,
    FlushRequest,
    Health,
    Ok,
    OldestJob,
    Overview,
    PipelineRun,
    PortStatus,
    RunPipeline,
    ServerStatus,
)

from .errors import AdminError, require_writable
from .queues import is_known, latency, queue_statistics
from .samples import by_state, days, ready, total
from .service import AdminService, HostInfo

#: Queues examined per slice.
QUEUE_SLICE_SIZE: Final = 500


class QueueTotals:
    """Totals over all queues. They are complete after `look` has ended."""

    def __init__(self) -> None:
        self.queues = 0
        self.paused = 0
        self.waiters = 0
        #: The ready job with the longest wait.
        self.oldest: Job | None = None

    def look(self, engine: Engine) -> Iterator[None]:
        """Examine all queues in slices."""
        names = list(engine.tables.queues)
        for first in range(0, len(names), QUEUE_SLICE_SIZE):
            for name in names[first : first + QUEUE_SLICE_SIZE]:
                self._count(engine, name)
            yield None

    def _count(self, engine: Engine, name: str) -> None:
        queue = engine.queue(name)
        if queue is None:
            return
        self.waiters += len(queue.waiters)
        if not is_known(queue):
            return
        self.queues += 1
        self.paused += queue.paused
        oldest = queue.ready.oldest() if queue.counts[READY] else None
        if oldest is not None and (self.oldest is None or oldest.ready_at < self.oldest.ready_at):
            self.oldest = oldest


def get_overview(hub: AdminService, _: bool, now: int) -> Iterator[Overview | None]:
    engine = hub.engine
    census = QueueTotals()
    yield from census.look(engine)
    protocols: list[PortStatus] = []
    for each in hub.hubs:
        protocols.append(port_status(hub, each))
        yield None
    counts = by_state(engine)
    counts[READY] = ready(engine)
    oldest = census.oldest
    yield Overview(
        now=now,
        samples=[*hub.samples.totals, total(engine, now)],
        counts=counts,
        retrying=engine.retrying,
        processed=engine.totals.processed,
        failures=engine.totals.failures,
        queues=census.queues,
        paused_queues=census.paused,
        oldest_job=None
        if oldest is None
        else OldestJob(oldest.jid, oldest.queue, oldest.ready_at, oldest.seq),
        workers=count_workers(hub),
        protocols=protocols,
        commit=latency(hub.samples.measured.commits.recent_percentiles()),
        days=days(engine, now),
        halted=engine.unavailable_reason,
        memory_mb=hub.memory_mb(),
        started_at=hub.started_at,
    )


def port_status(control: AdminService, hub: Hub) -> PortStatus:
    return PortStatus(
        name=hub.protocol,
        port=control.ports.get(hub.protocol, 0),
        connections=len(hub.connections),
        waiters=sum(each.waiter is not None for each in hub.connections),
        commands=hub.commands,
        errors=hub.errors,
    )


def count_workers(hub: AdminService) -> int:
    """Return the number of registered workers of Faktory and Qless."""
    faktory, qless = hub.faktory, hub.qless
    known = 0 if faktory is None else len(faktory.connections_by_worker)
    return known + (0 if qless is None else len(qless.workers.last_seen))


def get_health(hub: AdminService, _: bool, now: int) -> Health:
    """Return the health of the server. The cost does not depend on the number of jobs, so that any
    client may call it at any rate.
    """
    served = hub.faktory
    return Health(
        now=now,
        halted=hub.engine.unavailable_reason,
        connections=0 if served is None else len(served.connections),
        commands=0 if served is None else served.commands,
        faktory_version=info.FAKTORY_VERSION,
    )


def get_sizes(hub: AdminService, _: bool, __: int) -> Iterator[dict[str, int] | None]:
    """Return the sizes of the collections in memory."""
    found = yield from hub.sizes()
    yield found


def get_server(hub: AdminService, _: bool, now: int) -> Iterator[ServerStatus | None]:
    """Return the status of the process and of its protocols."""
    host = _host(hub)
    sizes = yield from hub.sizes()
    detail = host.server_status()
    detail.now = now
    detail.sizes = sizes
    detail.halted = hub.engine.unavailable_reason
    detail.protocols = [port_status(hub, each) for each in hub.hubs]
    qless = hub.qless
    detail.qless = {} if qless is None else {**DEFAULTS, **qless.options.config}
    yield detail


def get_pipeline(hub: AdminService, _: bool, __: int) -> PipelineRun:
    return _host(hub).pipeline()


def faktory_info(hub: AdminService, _: bool, now: int) -> Iterator[dict[str, Any] | None]:
    """Return the reply to Faktory's INFO, also if the Faktory port is off."""
    served = hub.faktory
    if served is None:
        served = FaktoryHub(
            hub.engine,
            started_at=hub.started_at,
            challenge=lambda: (0, ""),
            memory_mb=hub.memory_mb,
        )
    depths = yield from info.ready_counts_in_slices(hub.engine)
    yield info.collect_info(served, now, depths)


def _host(hub: AdminService) -> HostInfo:
    if hub.host is None:
        raise AdminError("The status of the server process is not available.", "unavailable")
    return hub.host


#: Queues or days of statistics per reply. Other connections wait while a reply is built.
COUNTERS_SLICE_SIZE: Final = 64


def get_counters(hub: AdminService) -> Iterator[Counters]:
    """Yield the counters of all queues and days that exist at the time of the request. Each reply
    has the values at the time when it is built.
    """
    engine = hub.engine
    statistics = engine.current_statistics()
    names, keys = list(engine.tables.queues), list(statistics.days)
    since = statistics.first_retained_day(engine.last_known_time)
    world = (engine.flush_count, engine.revert_count)
    others = len(names)
    for first in range(0, max(1, others + len(keys)), COUNTERS_SLICE_SIZE):
        if (engine.flush_count, engine.revert_count) != world:
            raise AdminError("The counters were reset during the request. Try again.", "conflict")
        last = first + COUNTERS_SLICE_SIZE
        days = engine.queue_days()
        yield Counters(
            hub.event,
            [(name, _counts(engine, name)) for name in names[first:last]],
            [
                queue_statistics(days[key])
                for key in keys[max(0, first - others) : max(0, last - others)]
                if key in days
            ],
            since,
            last < others + len(keys),
        )


def _counts(engine: Engine, name: str) -> list[int]:
    queue = engine.queue(name)
    return [0] * 6 if queue is None else list(queue.counts)


# Actions on the whole server


def run_pipeline(hub: AdminService, request: RunPipeline, now: int) -> Ok:
    require_writable(hub.engine)
    if hub.host is None:
        raise AdminError("This server cannot run the pipeline.", "unavailable")
    reason = hub.host.run_pipeline()
    if reason:
        raise AdminError(reason, "conflict")
    hub.audit.add(now, request.by, "run pipeline", "")
    return Ok()


def flush(hub: AdminService, request: FlushRequest, now: int) -> Ok:
    require_writable(hub.engine)
    count = len(hub.engine.tables.jobs)
    qless_hub = next((each for each in hub.hubs if isinstance(each, QlessHub)), None)
    if qless_hub is None:
        hub.engine.flush(now)
    else:
        qless_hub.flush_server(now)
    hub.audit.add(now, request.by, "flush", "everything", count)
    return Ok()
