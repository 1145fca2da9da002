"""Push a million jobs from Spark, and the same jobs with PUSHB from one plain client.

Run as `.venv/bin/python bench/bulk.py`. Each way has its own server with an empty folder. The rows
are read from Parquet files. Spark's start is reported separately. Finally one task fails halfway,
and the server must have every job exactly once.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import functions
from rich.console import Console

from machine import describe, stop_on_sigterm
from memory import count_waiting, push_all
from millrace.pipeline import session
from servers import NotInstalledError, Running, Server, StartError, choose, running, scratch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Number of files, so that each core has work.
FILES = 4
QUEUE = "default"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="number of jobs (1000000)")
    parser.add_argument("--batch", type=int, default=1000, help="jobs in one PUSHB (1000)")
    parser.add_argument("--frame", type=int, default=200, help="jobs in one frame of Spark's (200)")
    parser.add_argument("--repeat", type=int, default=2, help="each way so often (2)")
    parser.add_argument("--durability", default="fsync", choices=("fsync", "os", "memory"))
    parser.add_argument("--dir", default="", help="where the servers keep their data (./data)")
    parser.add_argument(
        "--json", default="", metavar="FILE", help="write the figures there as well"
    )
    options = parser.parse_args()
    if min(options.jobs, options.batch, options.frame, options.repeat) < 1:
        parser.error("--jobs, --batch, --frame and --repeat must be above 0")
    return options


def write_rows(folder: Path, jobs: int) -> str:
    """Write files whose rows have the same argument size as PUSHB's jobs."""
    each = -(-jobs // FILES)
    for first in range(0, jobs, each):
        numbers = range(first, min(first + each, jobs))
        rows = {
            "jid": [f"bulk-{number:010}" for number in numbers],
            "args": ['["' + "x" * 196 + '"]'] * len(numbers),
        }
        pq.write_table(pa.table(rows), folder / f"rows-{first:010}.parquet")
    return str(folder)


def save(frame: "DataFrame", port: int, per_frame: int) -> float:
    began = time.monotonic()
    (
        frame.write.format("millrace")
        .options(url=f"tcp://127.0.0.1:{port}", kind="bench", queue=QUEUE, frame=str(per_frame))
        .mode("append")
        .save()
    )
    return time.monotonic() - began


def failing_once(jobs: int) -> Callable[["DataFrame"], "DataFrame"]:
    """Rows of which one, three quarters through its partition, fails the first attempt."""
    doomed = f"bulk-{min(jobs - 1, -(-jobs // FILES) * 3 // 4):010}"

    def fail_first_attempt(jid: str) -> str:
        task = TaskContext.get()
        if jid == doomed and task is not None and task.attemptNumber() == 0:
            raise RuntimeError("intended failure of this task")
        return jid

    checked = functions.udf(fail_first_attempt, "string", useArrow=False)
    return lambda frame: frame.withColumn("jid", checked("jid"))


def read_back(spark: "SparkSession", port: int) -> tuple[int, int, float]:
    """The number of jobs on the server, the number of ids, and the seconds to read them."""
    began = time.monotonic()
    frame = spark.read.format("millrace").options(url=f"tcp://127.0.0.1:{port}", parts="2").load()
    row = frame.agg(functions.count("*"), functions.count_distinct("jid")).collect()[0]
    return row[0], row[1], time.monotonic() - began


@contextmanager
def fresh(server: Server, folder: Path) -> Iterator[Running]:
    with tempfile.TemporaryDirectory(dir=folder) as home, running(server, Path(home)) as started:
        yield started


def measure(options: argparse.Namespace, server: Server, folder: Path, console: Console) -> bool:
    jobs = options.jobs
    facts = describe(folder)
    for name, fact in facts.items():
        console.print(f"{name + ':':<13}{fact}", highlight=False, markup=False)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        source = write_rows(Path(made), jobs)
        began = time.monotonic()
        spark = session.start("local[2,4]", memory="1g")
        try:
            spark.sparkContext.setLogLevel("OFF")  # one task fails on purpose
            frame = spark.read.parquet(source)
            console.print(f"Spark's start: {time.monotonic() - began:.1f} s\n", highlight=False)
            figures, right = compare(options, server, folder, spark, frame, console)
        finally:
            spark.stop()
    if options.json:
        content = {"facts": facts, "jobs": jobs, **figures}
        Path(options.json).write_text(json.dumps(content, indent=1) + "\n")
    return right


def compare(
    options: argparse.Namespace,
    server: Server,
    folder: Path,
    spark: "SparkSession",
    frame: "DataFrame",
    console: Console,
) -> tuple[dict[str, float], bool]:
    jobs, best = options.jobs, {"PUSHB": 0.0, "Spark": 0.0, "read": 0.0}
    right = True

    def report(name: str, count: int, seconds: float, note: str = "") -> None:
        best[name] = max(best[name], count / seconds)
        line = f"{name:<8}{count / seconds:>12,.0f} jobs/s   ({count:,} in {seconds:.1f} s{note})"
        console.print(line, highlight=False)

    with fresh(server, folder) as started:
        save(
            frame.limit(1000), started.port, options.frame
        )  # compile Spark's code before the measurement
    for _ in range(options.repeat):
        with fresh(server, folder) as started:
            report("PUSHB", jobs, push_all(started.port, jobs, options.batch, console))
            right &= count_waiting(started.port) == jobs
        with fresh(server, folder) as started:
            seconds = save(frame, started.port, options.frame)
            cpu = started.cpu_seconds()
            report("Spark", jobs, seconds, f", {cpu / jobs * 1e6:.0f} µs of server CPU a job")
            right &= count_waiting(started.port) == jobs
            count, ids, seconds = read_back(spark, started.port)
            report("read", count, seconds)
            right &= count == ids == jobs
    ratio = best["Spark"] / best["PUSHB"]
    console.print(f"\nratio   {ratio:>12.2f} of PUSHB, best of each", highlight=False)
    with fresh(server, folder) as started:
        save(failing_once(jobs)(frame), started.port, options.frame)
        count, ids, _ = read_back(spark, started.port)
        verdict = (
            "every job is there once" if count == ids == jobs else f"WRONG: {count}, {ids} ids"
        )
        console.print(f"failing and tried again: {verdict}", highlight=False)
        right &= count == ids == jobs
    return {**best, "ratio": ratio}, right


def main() -> int:
    options = arguments()
    stop_on_sigterm()
    console = Console(width=None if sys.stdout.isatty() else 100)
    server = choose(f"millrace-{options.durability}")[0]
    try:
        with scratch(options.dir) as folder:
            return 0 if measure(options, server, folder, console) else 1
    except (NotInstalledError, StartError) as error:
        console.print(str(error), style="red", markup=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
