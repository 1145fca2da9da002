"""What a server knows itself, for the audit: from its store, and asked of it where it runs."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from millrace.cli.progress import Bar
from millrace.journal.snapshot import Snapshot, days_table, queues_table, snapshot
from millrace.journal.status import has_store
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.findings import Live
from millrace.records import Counters
from millrace.server.control_socket import beside, socket_of
from millrace.store.errors import StoreError

PATIENCE: Final = 60.0  # seconds
#: A flush begins the counters anew; nobody flushes so often.
_TRIES: Final = 5


class Known(NamedTuple):
    """What was known at one moment, before anything was shipped."""

    stored: Snapshot
    #: Empty where no server runs.
    counted: list[Counters]

    def live(self, server: str) -> Live:
        """The same in the pipeline's words; a server gets its id when its journal is shipped."""
        event = self.stored.event
        if not self.counted:
            return Live(
                server=server,
                event=event,
                jobs=self.stored.jobs,
                days=self.stored.days,
                queues=None,
                asked=event,
                since=self.stored.since,
            )
        first = self.counted[0]
        return Live(
            server=server,
            event=event,
            jobs=self.stored.jobs,
            days=pa.concat_tables(days_table(each.days, each.event) for each in self.counted),
            queues=pa.concat_tables(queues_table(each.queues, each.event) for each in self.counted),
            asked=first.event,
            since=first.since,
        )


def look(folder: Path) -> Known | None:
    """None: nothing was ever written to that folder."""
    try:
        if not has_store(folder):
            return None
        with Bar("reading the store") as progress:
            stored = snapshot(folder, progress)
    except StoreError as error:
        raise PipelineError(str(error)) from error
    # In this order: what a server tells is of an event that is not before the store's.
    return Known(stored, counters(folder))


def counters(folder: Path) -> list[Counters]:
    """What the server on this folder has counted; nothing if none runs."""
    for _ in range(_TRIES):
        try:
            lines = list(_asked(folder))
        except (FileNotFoundError, ConnectionRefusedError):
            return []
        except OSError as error:
            reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or error
            raise PipelineError(f"cannot ask the server on {folder}: {reason}") from error
        try:
            pieces = [msgspec.json.decode(line, type=Counters) for line in lines]
        except msgspec.DecodeError:
            continue  # it began anew meanwhile, or could not write
        if pieces and not pieces[-1].more:
            return pieces
    raise PipelineError(f"the server on {folder} does not tell what it counted: try again")


def _asked(folder: Path) -> Iterator[bytes]:
    """The lines of the answer, to the last piece or to a refusal."""
    with socket.socket(socket.AF_UNIX) as connection, beside(socket_of(folder)) as name:
        connection.settimeout(PATIENCE)
        connection.connect(name)
        connection.sendall(b'{"counters":true}\n')
        with connection.makefile("rb") as stream:
            for line in stream:
                yield line
                if b'"more":true' not in line:
                    return
