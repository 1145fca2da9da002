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
from typing import Any, Final, NamedTuple

import msgspec
import oracle_sql as sql
from generate import Generator, Plan, land, parts, plan
from processes import Process
from pyspark.sql import DataFrame, SparkSession

from millrace.journal.landing import Landed
from millrace.pipeline import events as lake_events
from millrace.pipeline import reading
from millrace.pipeline.commit import located
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.ingest import ingest
from millrace.pipeline.lake import Lake
from millrace.pipeline.progress import Progress
from millrace.pipeline.tables import DEPTH_DAY, EVENTS, LATENCY_HIST
from millrace.pipeline.transforms.attempts import attempts
from millrace.pipeline.transforms.audit import audit_jobs, audit_seq
from millrace.pipeline.transforms.depths import depth_day, opening, throughput_minute
from millrace.pipeline.transforms.failures import failure_groups
from millrace.pipeline.transforms.flushes import DDL as FLUSHES
from millrace.pipeline.transforms.jobs import jobs
from millrace.pipeline.transforms.latency import latency_hist
from millrace.pipeline.transforms.protocols import protocol_day
from millrace.pipeline.transforms.queues import queue_day
from millrace.pipeline.transforms.workers import worker_hour

INGEST: Final = "ingest"


class Given(NamedTuple):
    """What tables are made of. As in a refresh, flushes are known beforehand, and there are none;
    and what is made of another table reads that, if it is small.
    """

    events: DataFrame
    flushes: DataFrame
    #: The depths before the first day.
    opening: DataFrame
    latency_hist: DataFrame


#: How each table is made of all events.
TRANSFORMS: Final[dict[str, Callable[[Given], DataFrame]]] = {
    "latency_hist": lambda given: latency_hist(given.events),
    "queue_day": lambda given: queue_day(given.events, given.latency_hist),
    "depth_day": lambda given: depth_day(given.events, given.flushes),
    "throughput_minute": lambda given: throughput_minute(
        given.events, given.opening, given.flushes
    ),
    "failure_groups": lambda given: failure_groups(given.events),
    "protocol_day": lambda given: protocol_day(given.events),
    "attempts": lambda given: attempts(given.events, given.flushes),
    "worker_hour": lambda given: worker_hour(attempts(given.events, given.flushes)),
    "jobs": lambda given: jobs(given.events, given.flushes),
    "audit_seq": lambda given: audit_seq(given.events),
    "audit_jobs": lambda given: audit_jobs(given.events, given.flushes),
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
        (scratch / "latency_hist").mkdir(parents=True, exist_ok=True)

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
        shipped = reading.files(lake, EVENTS.name)
        histogram = self._scratch / "latency_hist"
        if table == "queue_day":
            self._put_histogram(lake, histogram)
        with _cost(self._java, self._own) as spark:
            made = TRANSFORMS[table](self._given(lake, histogram))
            made.write.format("noop").mode("overwrite").save()
        self._spark.catalog.clearCache()  # some transforms keep what they need twice
        if self._duckdb is None:
            return Measured(table, events, spark(), None)
        for view in sql.views(shipped):
            self._duckdb.execute(view)
        if table == "queue_day":
            self._duckdb.execute(f"CREATE OR REPLACE TEMP TABLE latency_hist AS {sql.LATENCY_HIST}")
        with _cost(self._own) as duckdb:
            # All columns of all rows, so that none of them can be left out.
            query = f"SELECT bit_xor(hash(made)) FROM ({sql.QUERIES[table]}) AS made"
            self._duckdb.execute(query).fetchall()
        return Measured(table, events, spark(), duckdb())

    def _given(self, lake: Lake, histogram: Path) -> Given:
        return Given(
            lake_events.read(self._spark, lake),
            self._nothing(FLUSHES),
            opening(self._nothing(f"{DEPTH_DAY.ddl}, day DATE")),
            self._spark.read.schema(f"{LATENCY_HIST.ddl}, day DATE").parquet(located(histogram)),
        )

    def _put_histogram(self, lake: Lake, folder: Path) -> None:
        made = latency_hist(lake_events.read(self._spark, lake))
        made.write.mode("overwrite").parquet(located(folder))

    def _nothing(self, ddl: str) -> DataFrame:
        """An empty table, which Spark knows to be empty."""
        return self._spark.createDataFrame([], ddl).limit(0)

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
