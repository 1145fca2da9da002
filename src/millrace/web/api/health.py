"""`/health`, `/ready` and `/stats`: for load balancers, orchestrators and Faktory's tools."""

from typing import Annotated, Any

import msgspec

from millrace.protocols.times import format_rfc3339
from millrace.records import Health
from millrace.records.types import Doc
from millrace.web.context import RequestContext
from millrace.web.errors import HttpError


class FaktoryServer(msgspec.Struct):
    """The server, in the form of Faktory's /health."""

    description: Annotated[str, Doc("Description", "Always `Faktory`.")]
    faktory_version: Annotated[str, Doc("Version", "Version of the emulated Faktory.")]
    connections: Annotated[int, Doc("Connections", "Connections of the Faktory port.")]
    command_count: Annotated[int, Doc("Commands", "Commands of the Faktory port.")]


class FaktoryHealth(msgspec.Struct):
    """A sign of life, in the form of Faktory's /health."""

    now: Annotated[str, Doc("Now", "Time of the server.")]
    server: Annotated[FaktoryServer, Doc("Server", "The server.")]


class Readiness(msgspec.Struct):
    """The server accepts changes."""

    ready: Annotated[bool, Doc("Ready", "Always true.")]


async def health(context: RequestContext) -> FaktoryHealth:
    """Cheap: it reads nothing from disk and counts nothing."""
    found = await context.ask(Health, health=True)
    server = FaktoryServer("Faktory", found.faktory_version, found.connections, found.commands)
    return FaktoryHealth(format_rfc3339(found.now), server)


async def ready(context: RequestContext) -> Readiness:
    found = await context.ask(Health, health=True)
    if found.halted:
        raise HttpError(503, f"The server accepts no changes: {found.halted}")
    return Readiness(ready=True)


async def stats(context: RequestContext) -> dict[str, Any]:
    """Faktory's INFO."""
    return await context.ask(dict, faktory=True)
