"""Read the jobs of a server page by page, in a configurable number of partitions."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from .options import Options, address
from .wire import Connection, Refused

STATES: Final = ("scheduled", "blocked", "ready", "leased", "done", "dead")
MOST_PARTS: Final = 1000
PAGE: Final = 500
#: Seconds between attempts while the server is at its limit of concurrent readers.
_PATIENCE: Final = 0.5

#: The columns. Values that do not apply to a job are null.
JOBS: Final = {
    "seq": "BIGINT",
    "jid": "STRING",
    "queue": "STRING",
    "kind": "STRING",
    "origin": "STRING",
    "state": "STRING",
    "priority": "DOUBLE",
    "payload": "STRING",
    "payload_encoding": "STRING",
    "result": "STRING",
    "result_encoding": "STRING",
    "created": "TIMESTAMP",
    "due": "TIMESTAMP",
    "ready_at": "TIMESTAMP",
    "leased_at": "TIMESTAMP",
    "deadline": "TIMESTAMP",
    "ended_at": "TIMESTAMP",
    "worker": "STRING",
    "protocol": "STRING",
    "attempt": "BIGINT",
    "failures": "BIGINT",
    "retries": "BIGINT",
    "error_group": "STRING",
    "error_message": "STRING",
    "backtrace": "ARRAY<STRING>",
    "failed_at": "TIMESTAMP",
    "tags": "ARRAY<STRING>",
    "load": "STRING",
}
_ARROW: Final = {
    "BIGINT": pa.int64(),
    "STRING": pa.string(),
    "DOUBLE": pa.float64(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "ARRAY<STRING>": pa.list_(pa.string()),
}


@dataclass
class Part(InputPartition):
    """The jobs with `seq % parts == part`."""

    part: int
    parts: int


class JobReader(DataSourceReader):
    def __init__(self, given: Options) -> None:
        self.address = address(given)
        self.queue = given.get("queue")
        self.state = given.get("state")
        if self.state and self.state not in STATES:
            raise ValueError(f"option 'state' must be one of {', '.join(STATES)}")
        self.parts = given.count("parts", 1, MOST_PARTS)

    def partitions(self) -> list[InputPartition]:
        return [Part(part, self.parts) for part in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        wanted = {"queue": self.queue or None, "state": self.state or None, "most": PAGE}
        wanted |= {"part": partition.part, "parts": partition.parts}
        with Connection(self.address) as wire:
            page = self._first(wire, wanted)
            while True:
                yield batch(page["jobs"])
                if page["cursor"] is None:
                    return
                page = wire.ask({"read": {"cursor": page["cursor"], "most": PAGE}})

    def _first(self, wire: Connection, wanted: dict[str, Any]) -> dict[str, Any]:
        """Read the first page, and retry while the server has no capacity for another reader."""
        give_up = time.monotonic() + self.address.timeout
        while True:
            try:
                return wire.ask({"read": wanted})
            except Refused as refused:
                if "too many read" not in str(refused) or time.monotonic() > give_up:
                    raise
            time.sleep(_PATIENCE)


def batch(jobs: list[dict[str, Any]]) -> pa.RecordBatch:
    """Convert a page of jobs to a record batch."""
    arrays = [
        pa.array([job.get(name) for job in jobs], _ARROW[kind]) for name, kind in JOBS.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(JOBS))
