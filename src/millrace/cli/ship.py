"""`millrace ship`: by the running server, or without one."""

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from millrace.cli.control import NoServer, NotAnswered, converse
from millrace.cli.options import ConfigFile, Data, Json, load_config
from millrace.cli.output import ProgressBar
from millrace.config import Config
from millrace.extras import missing_package
from millrace.journal.location import parse_location
from millrace.journal.status import shipping_status
from millrace.pipeline.errors import PipelineError
from millrace.records import ShippingStatus
from millrace.store.errors import DataFolderInUse, StoreError
from millrace.store.folders import has_store

#: A full outbox takes about a minute to ship.
SHIP_TIMEOUT = 600.0  # seconds


class NotShipped(PipelineError):
    """Not all events were shipped; the message gives the reason."""


def ship_command(
    data: Data = None,
    lake: Annotated[
        str | None, typer.Option("--lake", help="Lake folder, used if no server is running.")
    ] = None,
    config: ConfigFile = None,
    *,
    status: Annotated[
        bool, typer.Option("--status", help="Show the shipping status without shipping.")
    ] = False,
    json: Json = False,
) -> None:
    """Ship pending events to the lake now.

    A running server ships automatically, at the interval `[lake] ship_every`. This command returns
    when all events committed before it started are in the lake. Without a running server, the
    command ships the events itself and locks the data folder meanwhile. `millrace pipeline run`
    ships first, so it does not need this command. Shipping requires the extra `lake`.

    Examples:
    - `millrace ship --data /var/lib/millrace`
    - `millrace ship --status --json | jq .seconds`: the age of the oldest pending event

    """
    raise typer.Exit(ship(load_config(config, data, lake), status=status, json=json))


def ship(config: Config, *, status: bool, json: bool) -> int:
    """Return the exit code: 0 if all events are shipped, or if only the status was requested."""
    try:
        if not has_store(config.server.data):
            raise NotShipped(f"Data folder {config.server.data} does not exist or is empty.")  # noqa: TRY301
        journal = shipping_of(config) if status else shipped(config)
    except NotShipped as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(msgspec.json.encode(journal).decode() + "\n" if json else as_text(journal))
    return 0


def shipped(config: Config) -> ShippingStatus:
    """Ship all events committed so far. A server without a store has none."""
    try:
        return _ask(config.server.data, {"ship": True})
    except NoServer:
        if has_store(config.server.data):
            _ship_folder(config)
    return shipping_of(config)


def shipping_of(config: Config) -> ShippingStatus:
    """The shipping status."""
    folder, lake = config.server.data, parse_location(config.lake_uri)
    try:
        return _ask(folder, {"journal": True})
    except NoServer:
        pass
    try:
        found = shipping_status(folder, lake)
    except StoreError as error:
        raise NotShipped(str(error)) from error
    return ShippingStatus(
        server=found.server,
        lake=str(lake),
        next_event=found.next_event,
        next_shipped=found.next_shipped,
        events=found.next_event - found.next_shipped,
        bytes=found.bytes,
    )


def _ask(folder: Path, operation: dict[str, Any]) -> ShippingStatus:
    try:
        (answer,) = converse(folder, operation, SHIP_TIMEOUT)
    except NoServer:
        raise
    except NotAnswered as error:
        raise NotShipped(str(error)) from error
    return msgspec.json.decode(answer, type=ShippingStatus)


def _ship_folder(config: Config) -> None:
    try:
        from millrace.journal.offline import ShipError, ship_folder  # noqa: PLC0415 - loads deltalake
    except ImportError:
        raise NotShipped(missing_package("deltalake")) from None
    folder = config.server.data
    try:
        with ProgressBar("shipping") as progress:
            ship_folder(folder, parse_location(config.lake_uri), config.lake.ship_events, progress)
    except DataFolderInUse:
        raise NotShipped(f"A server is starting or stopping on {folder}. Try again.") from None
    except (ShipError, StoreError) as error:
        raise NotShipped(f"Not all events were shipped: {error}") from error


def as_text(journal: ShippingStatus) -> str:
    lines = [
        f"server       {journal.server or 'no ID before the first shipment'}",
        f"lake         {journal.lake}",
        f"shipped      {journal.next_shipped - 1:,} of {journal.next_event - 1:,} events",
    ]
    if journal.events:
        oldest = f", oldest {journal.seconds:,.0f} s" if journal.seconds else ""
        lines.append(f"pending      {journal.events:,} events, {journal.bytes:,} bytes{oldest}")
    if journal.dropped:
        lines.append(f"dropped      {journal.dropped:,} events, because the outbox was full")
    if journal.failing:
        lines.append(f"failing      {journal.failing}")
    return "\n".join(lines) + "\n"
