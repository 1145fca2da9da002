"""How long Spark takes for each table, and DuckDB for the same from the same files.

The lake grows in three steps: a quarter of all events, a half, all of them. After each, what is new
has been taken in, and each table was made once from everything; its rows are counted, not written.
Everything is made once before that, from a few files, because Java compiles what it runs often.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from millrace.journal.landing import Landed
from millrace.pipeline import events as lake_events
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.ingest import ingest
from millrace.pipeline.lake import Lake
from millrace.pipeline.progress import Progress
from millrace.pipeline.transforms.attempts import attempts
from millrace.pipeline.transforms.audit import audit_jobs, audit_seq
from millrace.pipeline.transforms.depths import depth_day, opening, throughput_minute
from millrace.pipeline.transforms.failures import failure_groups
from millrace.pipeline.transforms.flushes import flushes
from millrace.pipeline.transforms.jobs import jobs
from millrace.pipeline.transforms.latency import latency_hist
from millrace.pipeline.transforms.protocols import protocol_day
from millrace.pipeline.transforms.queues import queue_day
from millrace.pipeline.transforms.workers import worker_hour

from . import sql
from .generating import Generator, Plan, land, parts, plan
from .processes import Process

INGEST: Final = "ingest"


def _throughput(events: DataFrame) -> DataFrame:
    found = flushes(events)
    before = opening(depth_day(events.limit(0), found))
    return throughput_minute(events, before, found)


#: How each table is made of all events.
TRANSFORMS: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {
    "latency_hist": latency_hist,
    "queue_day": lambda events: queue_day(events, latency_hist(events)),
    "depth_day": lambda events: depth_day(events, flushes(events)),
    "throughput_minute": _throughput,
    "failure_groups": failure_groups,
    "protocol_day": protocol_day,
    "attempts": lambda events: attempts(events, flushes(events)),
    "worker_hour": lambda events: worker_hour(attempts(events, flushes(events))),
    "jobs": lambda events: jobs(events, flushes(events)),
    "audit_seq": audit_seq,
    "audit_jobs": lambda events: audit_jobs(events, flushes(events)),
}
#: What can be measured, in this order.
STEPS: Final = (INGEST, *TRANSFORMS)


class Cost(msgspec.Struct, frozen=True):
    """What something took: seconds, seconds of processor time, and the most memory, in bytes."""

    seconds: float
    cpu: float
    peak: int


class Measured(msgspec.Struct, frozen=True):
    """One table, made of so many events; without DuckDB there is nothing of it."""

    table: str
    events: int
    spark: Cost
    duckdb: Cost | None

    @property
    def ratio(self) -> float | None:
        """How many times as long as DuckDB Spark takes."""
        return None if self.duckdb is None else self.spark.seconds / self.duckdb.seconds


class Benched(msgspec.Struct, frozen=True):
    events: int
    cores: int
    #: What making the events took.
    generated: Cost
    measured: list[Measured]

    def of(self, table: str) -> list[Measured]:
        """Its measurements, the smallest first."""
        return [each for each in self.measured if each.table == table]

    def growth(self, table: str) -> float:
        """What an event costs at the full size, relative to the smallest: 1, if cost is linear."""
        first, *_, last = self.of(table)
        return (last.spark.seconds / last.events) / (first.spark.seconds / first.events)


def bench(
    spark: SparkSession,
    scratch: Path,
    events: int,
    progress: Progress,
    *,
    tables: Sequence[str] = STEPS,
    seed: int = 7,
    on_measured: Callable[[Measured], None] = lambda _: None,
) -> Benched:
    """Make the events, in a folder that is empty, and measure."""
    unknown = set(tables) - set(STEPS)
    if unknown:
        raise PipelineError(f"there is no table {min(unknown)}: take of {', '.join(STEPS)}")
    planned = plan(events)
    source, lake = scratch / "source", Lake(scratch / "lake")
    runner = _Runner(spark, scratch)
    files, generated = runner.generate(source, planned, seed, progress)
    progress("warm up", 0, 0)
    runner.warm_up(source, files[:2], tables)
    measured: list[Measured] = []
    so_far = 0
    for part in parts(files):
        land(source, lake, part)
        so_far += len(part) * planned.per_file
        for number, table in enumerate(STEPS):
            progress(f"measure at {so_far:,} events", number, len(STEPS))
            if table == INGEST:
                found = runner.ingest(lake, part)
            elif table in tables:
                found = runner.table(lake, table, so_far)
            if table in tables:
                measured.append(found)
                on_measured(found)
    return Benched(planned.events, runner.cores, generated, measured)


class _Runner:
    """Runs the same with both, and looks at what that costs."""

    def __init__(self, spark: SparkSession, scratch: Path) -> None:
        self.cores = os.cpu_count() or 1
        self._spark = spark
        self._scratch = scratch
        java: Any = spark.sparkContext._jvm  # noqa: SLF001 - there is no other way to it
        self._java = Process(int(java.java.lang.ProcessHandle.current().pid()))
        self._own = Process(os.getpid())
        self._duckdb = self._connect() if util.find_spec("duckdb") else None

    def generate(
        self, folder: Path, planned: Plan, seed: int, progress: Progress
    ) -> tuple[list[Landed], Cost]:
        with _cost(self._own) as cost:
            files = Generator(planned, seed).write(folder, progress, threads=self.cores)
        return files, cost()

    def warm_up(self, source: Path, files: list[Landed], tables: Sequence[str]) -> None:
        """Take in a few files in a lake of their own, and make every table of them."""
        lake = Lake(self._scratch / "warm")
        lake.landing.mkdir(parents=True)
        for each in files:
            (lake.landing / each.name).hardlink_to(source / each.name)
        self.ingest(lake, files)
        for table in tables:
            if table != INGEST:
                self.table(lake, table, 1)
        shutil.rmtree(lake.root)

    def ingest(self, lake: Lake, files: list[Landed]) -> Measured:
        """Take in these files, which have just landed."""
        with _cost(self._java, self._own) as spark:
            taken = ingest(self._spark, lake)
        if taken.quarantined or taken.refused:
            raise PipelineError("the events of the bench are not as they must be: a defect")
        if self._duckdb is None:
            return Measured(INGEST, taken.events, spark(), None)
        names = ", ".join(f"'{lake.landing / each.name}'" for each in files)
        with _cost(self._own) as duckdb:
            self._duckdb.execute(sql.divided(f"[{names}]", str(self._scratch / "divided")))
        shutil.rmtree(self._scratch / "divided")
        return Measured(INGEST, taken.events, spark(), duckdb())

    def table(self, lake: Lake, table: str, events: int) -> Measured:
        """Make one table of all events."""
        with _cost(self._java, self._own) as spark:
            made = TRANSFORMS[table](lake_events.read(self._spark, lake))
            made.write.format("noop").mode("overwrite").save()
        self._spark.catalog.clearCache()  # some transforms keep what they need twice
        if self._duckdb is None:
            return Measured(table, events, spark(), None)
        with _cost(self._own) as duckdb:
            for view in sql.views(str(lake.table(lake_events.HOT) / "day=*" / "b-*.parquet")):
                self._duckdb.execute(view)
            # All columns of all rows, so that none of them can be left out.
            self._duckdb.execute(f"SELECT bit_xor(hash(made)) FROM ({sql.QUERIES[table]}) AS made")  # noqa: S608
            self._duckdb.fetchall()
        return Measured(table, events, spark(), duckdb())

    def _connect(self) -> Any:
        import duckdb  # noqa: PLC0415 - it need not be there

        folder = self._scratch / "duckdb"
        return duckdb.connect(config={"threads": self.cores, "temp_directory": str(folder)})


@contextmanager
def _cost(*processes: Process) -> Iterator[Callable[[], Cost]]:
    """What the block takes these processes, to be asked for after it. The first one's memory."""
    processes[0].forget_peak()
    cpu = sum(process.cpu() for process in processes)
    found: list[Cost] = []
    began = time.perf_counter()
    yield lambda: found[0]
    seconds = time.perf_counter() - began
    found.append(
        Cost(seconds, sum(process.cpu() for process in processes) - cpu, processes[0].peak())
    )
