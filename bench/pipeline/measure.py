"""The steps of the cost table. Each runs in its own process, so that its CPU time and memory are
separate; Java compiles its code again in each process.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import plain_sql
import pyarrow as pa
import pyarrow.parquet as pq
from generate import Generator, Plan
from processes import Process

from millrace.journal.location import EVENTS
from millrace.pipeline import delta
from millrace.pipeline.lake import Lake

#: New events of a small refresh, and of the smallest one (one cycle of jobs on two servers).
NEW_EVENTS: Final = 10_000
FEW_EVENTS: Final = 140
ROUNDS: Final = 6
SEED: Final = 7
MAX_ADDRESS_SPACE: Final = 8 << 30


class Cost(msgspec.Struct, frozen=True):
    """The cost of a step: seconds, CPU-seconds, the peak of memory in bytes, and Spark jobs."""

    name: str
    events: int
    seconds: float
    cpu: float
    peak: int = 0
    jobs: int = 0

    @property
    def per_million(self) -> float:
        return self.cpu / self.events * 1e6 if self.events else 0.0


class SparkProcess:
    """A session, and its processes for the CPU time."""

    def __init__(self, memory: str, *, quick: bool) -> None:
        from millrace.pipeline import session  # noqa: PLC0415 - only steps with Spark load it

        self.spark = session.start(memory=memory, quick=quick)
        java: Any = self.spark.sparkContext._jvm  # noqa: SLF001 - there is no other way to it
        self._java = Process(int(java.java.lang.ProcessHandle.current().pid()))
        self._own = Process(os.getpid())

    def cpu(self) -> float:
        return self._java.cpu() + self._own.cpu()

    def peak(self) -> int:
        return self._java.peak() + self._own.peak()

    def jobs(self) -> int:
        return len(self.spark.sparkContext.statusTracker().getJobIdsForGroup(None))

    def refresh(self, lake: Path, name: str, *, cold: bool = False) -> Cost:
        """Run the pipeline. A cold run includes the start of the session."""
        from millrace.pipeline.run import run  # noqa: PLC0415

        began, cpu, jobs = time.perf_counter(), 0.0 if cold else self.cpu(), self.jobs()
        result = run(Lake(lake), lambda _: self.spark)
        assert not result.failed, result.failed
        events = 0 if result.run is None else result.run.events
        seconds = time.perf_counter() - began
        return Cost(name, events, seconds, self.cpu() - cpu, self.peak(), self.jobs() - jobs)


def ship_more(lake: Path, planned: Plan, events: int) -> Plan:
    """Ship the events that follow the events of the plan."""
    more = planned.more(events)
    Generator(more, SEED).ship(lake, range(more.files), lambda *_: None)
    return more


# The steps


def all_tables(lake: Path, memory: str, planned: Plan) -> Cost:
    """The first run, with the compiler that the command chooses."""
    from millrace.cli.pipeline.session import QUICK_LIMIT  # noqa: PLC0415

    process = SparkProcess(memory, quick=planned.events < QUICK_LIMIT)
    return process.refresh(lake, "all tables", cold=True)


def cold(lake: Path, memory: str, _: Plan) -> Cost:
    return SparkProcess(memory, quick=True).refresh(lake, "few new events, cold", cold=True)


def warm(lake: Path, memory: str, planned: Plan) -> Cost:
    """Refresh several times. The result is the median of the second half."""
    process, found = SparkProcess(memory, quick=True), []
    for _ in range(ROUNDS):
        planned = ship_more(lake, planned, NEW_EVENTS)
        found.append(process.refresh(lake, "new events, warm"))
    last = found[ROUNDS // 2 :]
    return msgspec.structs.replace(
        last[-1],
        cpu=statistics.median(each.cpu for each in last),
        seconds=statistics.median(each.seconds for each in last),
    )


def audit(lake: Path, memory: str, planned: Plan) -> Cost:
    """Verify the chain of every job."""
    from millrace.pipeline import events  # noqa: PLC0415
    from millrace.pipeline.audit.chains import audit_jobs  # noqa: PLC0415

    process = SparkProcess(memory, quick=False)
    began, cpu = time.perf_counter(), process.cpu()
    process.spark.conf.set("spark.sql.shuffle.partitions", "32")
    problems = audit_jobs(events.read(process.spark, lake)).count()
    assert problems == 0, problems
    seconds = time.perf_counter() - began
    return Cost("chain audit", planned.events, seconds, process.cpu() - cpu, process.peak())


def queue_statistics(lake: Path, memory: str, planned: Plan) -> Cost:
    """Counts, means and variances by queue and day, as a program of a user computes them. The
    second of two runs counts.
    """
    from millrace.pipeline import events  # noqa: PLC0415

    process = SparkProcess(memory, quick=False)
    events.read(process.spark, lake).createOrReplaceTempView("all_events")
    cpu = seconds = 0.0
    for _ in range(2):
        began, cpu = time.perf_counter(), process.cpu()
        process.spark.sql(
            "SELECT server, queue, day, count(*), avg(wait_us), var_samp(wait_us), avg(run_us), "
            "var_samp(run_us), count_if(type = 'failed') FROM all_events GROUP BY 1, 2, 3"
        ).collect()
        seconds, cpu = time.perf_counter() - began, process.cpu() - cpu
    return Cost("queue statistics", planned.events, seconds, cpu, process.peak())


def one_job(lake: Path, _: str, planned: Plan) -> Cost:
    """One job's events, as the page of a job reads them: the median of 20 jobs."""
    from generate import SERVERS  # noqa: PLC0415

    from millrace.journal import job_events  # noqa: PLC0415
    from millrace.journal.events_table import EventsTable  # noqa: PLC0415

    table, own, found = EventsTable(lake), Process(os.getpid()), []
    seconds = []
    for number in range(20):
        key = job_events.JobKey(1 + number * planned.events // 200, "")
        began, cpu = time.perf_counter(), own.cpu()
        assert list(job_events._query(table, SERVERS[0], key))  # noqa: SLF001 - without a folder
        seconds.append(time.perf_counter() - began)
        found.append(own.cpu() - cpu)
    return Cost("one job's events", 1, statistics.median(seconds), statistics.median(found))


def nothing_new(lake: Path, _: str, __: Plan) -> Cost:
    """The command, without new events."""
    before, began = os.times(), time.perf_counter()
    command = [Path(sys.executable).with_name("millrace"), "pipeline", "run", "--lake", lake]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return Cost("no new events", 0, time.perf_counter() - began, cpu)


def duckdb_tables(lake: Path, _: str, planned: Plan) -> Cost:
    import duckdb  # noqa: PLC0415 - optional

    db = duckdb.connect(config={"threads": os.cpu_count() or 1, "memory_limit": "3GB"})
    table = delta.open_table(lake, EVENTS)
    paths = [str(file.path) for file in delta.files(table, lake, EVENTS)]
    out = _output(lake)
    db.execute(f"CREATE VIEW events AS FROM read_parquet({paths}, hive_partitioning = true)")

    def compute() -> None:
        for name, query in plain_sql.QUERIES.items():
            place = out / f"duckdb-{name}.parquet"
            db.execute(f"COPY ({query}) TO '{place}' (FORMAT parquet, COMPRESSION zstd)")

    return _measured("DuckDB, all tables", planned.events, compute)


def datafusion_tables(lake: Path, _: str, planned: Plan) -> Cost:
    from deltalake import QueryBuilder  # noqa: PLC0415

    table, out = delta.open_table(lake, EVENTS), _output(lake)
    assert table is not None
    # DataFusion has no memory limit here and must not use all memory of the machine.
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, hard))

    def compute() -> None:
        for name, query in plain_sql.QUERIES.items():
            reader = pa.RecordBatchReader.from_stream(
                QueryBuilder().register("events", table).execute(query)
            )
            with pq.ParquetWriter(
                out / f"datafusion-{name}.parquet", reader.schema, compression="zstd"
            ) as writer:
                for batch in reader:
                    writer.write_batch(batch)

    try:
        return _measured("DataFusion, all tables", planned.events, compute)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _measured(name: str, events: int, compute: Callable[[], None]) -> Cost:
    own = Process(os.getpid())
    began, cpu = time.perf_counter(), own.cpu()
    compute()
    return Cost(name, events, time.perf_counter() - began, own.cpu() - cpu, own.peak())


def _output(lake: Path) -> Path:
    folder = lake.parent / "output"
    folder.mkdir(exist_ok=True)
    return folder


#: In an order in which each step finds the lake that it needs.
STEPS: Final[dict[str, Callable[[Path, str, Plan], Cost]]] = {
    "duckdb": duckdb_tables,
    "datafusion": datafusion_tables,
    "audit": audit,
    "statistics": queue_statistics,
    "job": one_job,
    "all": all_tables,
    "nothing": nothing_new,
    "cold": cold,
    "archive": cold,
    "warm": warm,
}


def main() -> int:
    """Run one step: its name, the lake, the heap and the plan, as JSON. Print the cost as JSON."""
    name, lake, memory, planned = sys.argv[1:]
    cost = STEPS[name](Path(lake), memory, msgspec.json.decode(planned, type=Plan))
    sys.stdout.write(msgspec.json.encode(cost).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
