"""`/health`, `/ready` and `/stats`: for load balancers, orchestrators and Faktory's tools."""

from typing import Any

import msgspec

from millrace import records as messages
from millrace.protocols.times import rfc3339
from millrace.web.doors import Refusal, Visit


class HealthServer(msgspec.Struct):
    description: str
    faktory_version: str
    connections: int
    command_count: int


class Health(msgspec.Struct):
    """In Faktory's shape."""

    now: str
    server: HealthServer


class Ready(msgspec.Struct):
    ready: bool


async def health(visit: Visit) -> Health:
    """The server is there. Nothing is read from disk for it, and nothing counted."""
    found = await visit.ask(messages.Health, health=True)
    server = HealthServer("Faktory", found.faktory_version, found.connections, found.commands)
    return Health(rfc3339(found.now), server)


async def ready(visit: Visit) -> Ready:
    """Changes can be made durable."""
    found = await visit.ask(messages.Health, health=True)
    if found.halted:
        raise Refusal(503, f"nothing can be changed at the moment: {found.halted}")
    return Ready(ready=True)


async def stats(visit: Visit) -> dict[str, Any]:
    """What Faktory's INFO says."""
    return await visit.ask(dict, faktory=True)
