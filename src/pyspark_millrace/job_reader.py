"""Read the jobs of a server page by page, in a configurable number of partitions."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In, InputPartition

from .connection import Refused, ServerConnection
from .options import Options, address

STATES: Final = ("scheduled", "blocked", "ready", "leased", "done", "dead")
MAX_PARTS: Final = 1000
#: The number of jobs per page.
PAGE: Final = 500
#: Seconds between attempts while the server has its maximum number of readers.
_RETRY_INTERVAL: Final = 0.5

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
    """Reads the given columns; if the program names a schema, only its columns are converted."""

    def __init__(self, given: Options, columns: Sequence[str]) -> None:
        unknown = sorted(set(columns) - JOBS.keys())
        if unknown:
            raise ValueError(f"Jobs have no column {unknown[0]!r}.")
        self.address = address(given)
        self.columns = tuple(columns)
        #: The values of columns that a row must have.
        self.wanted: dict[str, frozenset[str]] = {}
        self.queue = given.get("queue")
        self.state = given.get("state")
        if self.state and self.state not in STATES:
            raise ValueError(f"option 'state' must be one of {', '.join(STATES)}")
        self.parts = given.count("parts", 1, MAX_PARTS)

    def partitions(self) -> list[InputPartition]:
        return [Part(part, self.parts) for part in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        wanted = {"queue": self.queue or None, "state": self.state or None, "most": PAGE}
        wanted |= {"part": partition.part, "parts": partition.parts}
        with ServerConnection(self.address) as connection:
            page = self._first(connection, wanted)
            while True:
                yield batch([job for job in page["jobs"] if self._wants(job)], self.columns)
                if page["cursor"] is None:
                    return
                page = connection.ask({"read": {"cursor": page["cursor"], "most": PAGE}})

    def _wants(self, job: dict[str, Any]) -> bool:
        return all(job.get(name) in values for name, values in self.wanted.items())

    def _first(self, connection: ServerConnection, wanted: dict[str, Any]) -> dict[str, Any]:
        """Read the first page. Retry while the server has its maximum number of readers."""
        deadline = time.monotonic() + self.address.timeout
        while True:
            try:
                return connection.ask({"read": wanted})
            except Refused as refused:
                if "too many read" not in str(refused) or time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_INTERVAL)


class FilteringJobReader(JobReader):
    """Also applies conditions of the query. The option `pushdown` selects it, because Spark refuses
    such a reader if push-down of filters is not enabled in the session, and because Spark 4.3 keeps
    the conditions for later queries of the same DataFrame.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Accept comparisons of state, queue and kind, and return all others. The server selects
        one state or one queue; the task checks every row, because a job can change before it is
        read.
        """
        for condition in filters:
            match condition:
                case EqualTo((("state" | "queue" | "kind") as name,), value):
                    self._restrict(name, [value])
                case In((("state" | "queue" | "kind") as name,), values):
                    self._restrict(name, values)
                case _:
                    yield condition
        self.state = self._only("state") or self.state
        self.queue = self._only("queue") or self.queue

    def _restrict(self, name: str, values: Iterable[Any]) -> None:
        found = frozenset(values)
        self.wanted[name] = found & self.wanted.get(name, found)

    def _only(self, name: str) -> str:
        found = self.wanted.get(name, frozenset())
        value = next(iter(found)) if len(found) == 1 else ""
        return value if name != "state" or value in STATES else ""


def batch(jobs: list[dict[str, Any]], columns: Iterable[str]) -> pa.RecordBatch:
    """Convert a page of jobs to a record batch."""
    names = list(columns)
    arrays = [pa.array([job.get(name) for job in jobs], _ARROW[JOBS[name]]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=names)
