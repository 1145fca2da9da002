"""`server`, `pipeline` and `faktory`: how the process stands."""

from typing import Any, Final

from millrace.protocols.faktory import FaktoryHub, info
from millrace.protocols.qless.state import DEFAULTS

from .answering import Answering, Telling
from .errors import Refused
from .hub import ControlHub, Host
from .messages import PipelineStatus, ServerDetail
from .overview import protocol


def server(hub: ControlHub, _: bool, now: int) -> ServerDetail:
    """What the process knows, and beside it what its protocols know."""
    detail = _host(hub).detail()
    detail.now = now
    detail.sizes = hub.sizes()
    detail.halted = hub.engine.halted
    detail.protocols = [protocol(hub, each) for each in hub.hubs]
    qless = hub.qless
    detail.qless = {} if qless is None else {**DEFAULTS, **qless.config}
    return detail


def pipeline(hub: ControlHub, _: bool, __: int) -> PipelineStatus:
    return _host(hub).pipeline()


def faktory(hub: ControlHub, _: bool, now: int) -> dict[str, Any]:
    """INFO, as Faktory's clients get it; also if there are none, because its port is off."""
    served = hub.faktory
    if served is None:
        served = FaktoryHub(
            hub.engine,
            started_at=hub.started_at,
            challenge=lambda: (0, ""),
            memory_mb=hub.memory_mb,
        )
    return info.read(served, now)


def _host(hub: ControlHub) -> Host:
    if hub.host is None:
        raise Refused("nobody tells how the process stands", "unavailable")
    return hub.host


ANSWERS: Final[dict[str, Answering]] = {
    "server": server,
    "pipeline": pipeline,
    "faktory": faktory,
}
LONG: Final[dict[str, Telling]] = {}
