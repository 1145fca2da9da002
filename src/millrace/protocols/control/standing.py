"""`server`, `pipeline` and `faktory`: how the process stands."""

from typing import Any, Final

from millrace.protocols.connection import Hub
from millrace.protocols.faktory import FaktoryHub, info
from millrace.protocols.goqueue import GoqueueHub
from millrace.protocols.masenko import MasenkoHub
from millrace.protocols.qless import QlessHub
from millrace.protocols.qless.state import DEFAULTS
from millrace.protocols.workq import WorkqHub

from .answering import Answering, Telling
from .errors import Refused
from .hub import ControlHub, Host
from .messages import PipelineStatus, ProtocolRow, ServerDetail

_NAMES: Final[dict[type[Hub], str]] = {
    FaktoryHub: "faktory",
    WorkqHub: "workq",
    MasenkoHub: "masenko",
    GoqueueHub: "goqueue",
    QlessHub: "qless",
}


def server(hub: ControlHub, _: bool, now: int) -> ServerDetail:
    """What the process knows, and beside it what its protocols know."""
    detail = _host(hub).detail()
    detail.now = now
    detail.sizes = hub.sizes()
    detail.halted = hub.engine.halted
    detail.protocols = protocols(hub)
    qless = hub.qless
    detail.qless = {} if qless is None else {**DEFAULTS, **qless.config}
    return detail


def protocols(hub: ControlHub) -> list[ProtocolRow]:
    return [
        ProtocolRow(
            name=name,
            port=hub.ports.get(name, 0),
            connections=len(each.connections),
            waiters=sum(connection.waiter is not None for connection in each.connections),
            commands=getattr(each, "commands", 0),
            errors=getattr(each, "errors", 0),
        )
        for each in hub.hubs
        if (name := _NAMES.get(type(each)))
    ]


def pipeline(hub: ControlHub, _: bool, __: int) -> PipelineStatus:
    return _host(hub).pipeline()


def faktory(hub: ControlHub, _: bool, now: int) -> dict[str, Any]:
    """INFO, as Faktory's clients get it; also if there are none, because its port is off."""
    served = hub.faktory
    if served is None:
        memory = 0 if hub.host is None else hub.host.detail().memory_mb
        started_at = now if hub.host is None else hub.host.detail().started_at
        served = FaktoryHub(
            hub.engine,
            started_at=started_at,
            challenge=lambda: (0, ""),
            memory_mb=lambda: memory,
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
