"""The data of a server for the audit: from its store, and from the running process."""

from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from millrace.admin.client import request
from millrace.admin.errors import AdminError
from millrace.cli.output import ProgressBar
from millrace.journal.snapshot import StateSnapshot, days_table, queues_table, snapshot
from millrace.pipeline.audit.results import Live
from millrace.pipeline.errors import PipelineError
from millrace.records import Counters
from millrace.server.control_socket import control_socket_path, short_address
from millrace.store.errors import StoreError
from millrace.store.folders import has_store

REPLY_TIMEOUT: Final = 60.0  # seconds
#: A flush resets the counters, so that they must be read again.
_TRIES: Final = 5


class KnownJobs(NamedTuple):
    """The data at one point in time, before shipping."""

    stored: StateSnapshot
    #: Empty if no server is running.
    plural: list[Counters]

    def live(self, server: str) -> Live:
        """The same as a record of the pipeline. A server gets its ID at its first shipment."""
        event = self.stored.event
        if not self.plural:
            return Live(
                server=server,
                event=event,
                jobs=self.stored.jobs,
                days=self.stored.days,
                queues=None,
                as_of=event,
                since=self.stored.since,
            )
        first = self.plural[0]
        return Live(
            server=server,
            event=event,
            jobs=self.stored.jobs,
            days=pa.concat_tables(days_table(each.days, each.event) for each in self.plural),
            queues=pa.concat_tables(queues_table(each.queues, each.event) for each in self.plural),
            as_of=first.event,
            since=first.since,
        )


def look(folder: Path) -> KnownJobs | None:
    """The data of the server, or None for an empty folder."""
    try:
        if not has_store(folder):
            return None
        with ProgressBar("reading the store") as progress:
            stored = snapshot(folder, progress)
    except StoreError as error:
        raise PipelineError(str(error)) from error
    # The store is read first: the reply of the server must not be older.
    return KnownJobs(stored, counters(folder))


def counters(folder: Path) -> list[Counters]:
    """The counters of the server on this folder; empty if none is running."""
    for _ in range(_TRIES):
        try:
            with short_address(control_socket_path(folder)) as path:
                replies = list(request(path, {"counters": True}, REPLY_TIMEOUT))
        except (FileNotFoundError, ConnectionRefusedError):
            return []
        except AdminError as error:
            if error.code == "conflict":
                continue  # the counters were reset in between
            raise PipelineError(f"Cannot query the server on {folder}: {error}") from error
        except OSError as error:
            reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or error
            raise PipelineError(f"Cannot query the server on {folder}: {reason}") from error
        return [msgspec.json.decode(reply, type=Counters) for reply in replies]
    raise PipelineError(f"The server on {folder} did not return its counters. Try again.")
