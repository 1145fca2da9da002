"""Write a stream of rows. Each micro-batch is a load named after the query and the batch number.

A batch that is processed again after a crash uses the same load. The server recognizes jobs that
are already staged, and tasks stage no jobs in a released load. Each row therefore becomes a job
exactly once.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from . import writer
from .connection import ServerAddress, ServerConnection
from .options import Options
from .work_units import Shape, Units
from .writer import Staged

#: Spark sets these properties for tasks. The query id stays the same after a restart from the
#: checkpoint.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, address: ServerAddress, shape: Shape, given: Options) -> None:
        self.address = address
        self.shape = shape
        #: Replaces the query id in the names of loads.
        self.name = given.get("load")
        self.frame = given.count("frame", writer.FRAME, writer.MAX_FRAME)
        self.window = given.count("window", writer.WINDOW, writer.MAX_WINDOW)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        task = TaskContext.get()
        assert task is not None, "rows are written by tasks"
        load = f"{self.name or task.getLocalProperty(_QUERY)}-{task.getLocalProperty(_BATCH)}"
        units = Units(self.shape, load, task.partitionId())
        with ServerConnection(self.address) as connection:
            if connection.ask({"open": load})["state"] != "open":
                return Staged(load, 0, 0)
            jobs = (unit for batch in iterator for unit in units.of(batch))
            return writer.stage(connection, load, jobs, self.frame, self.window)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark calls it by this name
    ) -> None:
        for load in _loads(messages):
            writer.release_load(self.address, load)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark calls it by this name
    ) -> None:
        """Discard the loads. A failure loses no data: a retry of the batch uses the same load."""
        for load in _loads(messages):
            writer.discard_load(self.address, load)


def _loads(messages: list[WriterCommitMessage | None]) -> list[str]:
    return sorted({message.load for message in messages if isinstance(message, Staged)})
