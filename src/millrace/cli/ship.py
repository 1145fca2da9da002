"""`millrace ship`: what has happened goes to the lake now, by its server or without one."""

import sys
from pathlib import Path

import msgspec

from millrace.cli.control import NoServer, NotAnswered, converse, shown
from millrace.cli.progress import Bar
from millrace.config import Config
from millrace.extras import missing_package
from millrace.journal.status import has_store, look
from millrace.pipeline.errors import PipelineError
from millrace.records import ShippingStatus
from millrace.store.errors import DataFolderInUse, StoreError

#: A full outbox takes a minute, and a file system that hangs no more than this.
PATIENCE = 600.0  # seconds


class NotShipped(PipelineError):
    """Nothing was shipped, or not everything; the text says why."""


def ship(config: Config, *, status: bool, json: bool) -> int:
    """The exit code: 0 only if everything is shipped, or nothing but the status was asked for."""
    try:
        if not has_store(config.server.data):
            raise NotShipped(f"there is no data folder {config.server.data} with anything in it")  # noqa: TRY301
        journal = shipping_of(config) if status else shipped(config)
    except NotShipped as error:
        sys.stderr.write(f"{error}\n")
        return 1
    told = msgspec.json.encode(journal).decode() + "\n" if json else in_words(journal)
    sys.stdout.write(told)
    return 0


def shipped(config: Config) -> ShippingStatus:
    """Bring all to the lake that is committed by now. Where nothing is kept, nothing is shipped."""
    try:
        return _ask(config.server.data, b'{"ship":true}\n')
    except NoServer:
        if has_store(config.server.data):
            _by_hand(config)
    return shipping_of(config)


def shipping_of(config: Config) -> ShippingStatus:
    """How far it is."""
    folder, lake = config.server.data, config.lake_path
    try:
        return _ask(folder, b'{"journal":true}\n')
    except NoServer:
        pass
    try:
        found = look(folder, lake)
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


def _ask(folder: Path, line: bytes) -> ShippingStatus:
    try:
        answer = converse(folder, line, PATIENCE)
    except NoServer:
        raise
    except NotAnswered as error:
        raise NotShipped(str(error)) from error
    try:
        return msgspec.json.decode(answer, type=ShippingStatus)
    except msgspec.DecodeError:
        told = shown(answer[:500].decode(errors="replace").rstrip())
        told = told or "it ended before it answered"
        raise NotShipped(f"the server on {folder} says: {told}") from None


def _by_hand(config: Config) -> None:
    try:
        from millrace.journal.by_hand import NotAll, ship_folder  # noqa: PLC0415 - with pyarrow
    except ImportError:
        raise NotShipped(missing_package("pyarrow")) from None
    folder = config.server.data
    try:
        with Bar("shipping") as progress:
            ship_folder(folder, config.lake_path, config.lake.ship_events, progress)
    except DataFolderInUse:
        raise NotShipped(f"a server is starting on {folder}, or stopping. Try again.") from None
    except (NotAll, StoreError) as error:
        raise NotShipped(f"not everything is shipped: {error}") from error


def in_words(journal: ShippingStatus) -> str:
    lines = [
        f"server       {journal.server or 'has no id before something is shipped'}",
        f"lake         {journal.lake}",
        f"shipped      {journal.next_shipped - 1:,} of {journal.next_event - 1:,}",
    ]
    if journal.events:
        oldest = f", the oldest for {journal.seconds:,.0f} s" if journal.seconds else ""
        lines.append(f"waiting      {journal.events:,}, of {journal.bytes:,} bytes{oldest}")
    if journal.dropped:
        lines.append(f"lost         {journal.dropped:,}, before they could be shipped")
    if journal.failing:
        lines.append(f"failing      {journal.failing}")
    return "\n".join(lines) + "\n"
