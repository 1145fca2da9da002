"""`health`, `server`, `pipeline` and `faktory`: how the process stands."""

from collections.abc import Generator, Iterator
from heapq import merge
from typing import Any, Final

from millrace.engine.engine import Engine
from millrace.engine.states import READY
from millrace.protocols.faktory import FaktoryHub, info
from millrace.protocols.qless.state import DEFAULTS
from millrace.records import Health, PipelineRun, ServerStatus

from .answering import Answering, Telling
from .errors import AdminError
from .overview import protocol
from .service import AdminService, HostInfo

#: So many queues are looked at before others have their turn.
QUEUE_SLICE_SIZE: Final = 500


def health(hub: AdminService, _: bool, now: int) -> Health:
    """What anybody may ask, as often as they like: it takes no time, however much there is."""
    served = hub.faktory
    return Health(
        now=now,
        halted=hub.engine.halted,
        connections=0 if served is None else len(served.connections),
        commands=0 if served is None else served.commands,
        faktory_version=info.FAKTORY_VERSION,
    )


def server(hub: AdminService, _: bool, now: int) -> ServerStatus:
    """What the process knows, and beside it what its protocols know."""
    detail = _host(hub).detail()
    detail.now = now
    detail.sizes = hub.sizes()
    detail.halted = hub.engine.halted
    detail.protocols = [protocol(hub, each) for each in hub.hubs]
    qless = hub.qless
    detail.qless = {} if qless is None else {**DEFAULTS, **qless.config}
    return detail


def pipeline(hub: AdminService, _: bool, __: int) -> PipelineRun:
    return _host(hub).pipeline()


def faktory(hub: AdminService, _: bool, now: int) -> Iterator[dict[str, Any] | None]:
    """INFO, as Faktory's clients get it; also if there are none, because its port is off."""
    served = hub.faktory
    if served is None:
        served = FaktoryHub(
            hub.engine,
            started_at=hub.started_at,
            challenge=lambda: (0, ""),
            memory_mb=hub.memory_mb,
        )
    depths = yield from _depths(hub.engine)
    yield info.read(served, now, depths)


def _depths(engine: Engine) -> Generator[None, None, dict[str, int]]:
    """How many jobs of each queue are ready, in the order of their names."""
    names, runs, depths = list(engine.queues), list[list[str]](), dict[str, int]()
    for first in range(0, len(names), QUEUE_SLICE_SIZE):
        runs.append(sorted(names[first : first + QUEUE_SLICE_SIZE]))
        yield
    for number, name in enumerate(merge(*runs), 1):
        queue = engine.queues.get(name)
        if queue is not None and queue.known:
            depths[name] = queue.counts[READY]
        if number % QUEUE_SLICE_SIZE == 0:
            yield
    return depths


def _host(hub: AdminService) -> HostInfo:
    if hub.host is None:
        raise AdminError("nobody tells how the process stands", "unavailable")
    return hub.host


ANSWERS: Final[dict[str, Answering]] = {
    "health": health,
    "server": server,
    "pipeline": pipeline,
}
LONG: Final[dict[str, Telling]] = {"faktory": faktory}
