"""A run and an audit on another master, in a process of its own: Spark has one session to each.

    python cluster_run.py LAKE MASTER

Python workers are given a Python that is not there: whatever would need one fails.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from millrace.pipeline import audit, session
from millrace.pipeline.lake import Lake
from millrace.pipeline.run import run

#: Where `local-cluster` has its workers' folders, as nobody can say otherwise.
WORK = Path(pyspark.__file__).parent / "work"
prepare = session.prepare


def prepare_without_python(master: str, environ: MutableMapping[str, str]) -> None:
    prepare(master, environ)
    environ["PYSPARK_PYTHON"] = "/nowhere/python"


def main(lake: Path, master: str) -> None:
    session.prepare = prepare_without_python
    started: list[SparkSession] = []

    def start(_: object) -> SparkSession:
        few = {"spark.sql.shuffle.partitions": "2"}
        started.append(session.start(master, memory="512m", quick=True, conf=few))
        return started[0]

    ran = run(Lake(lake), start)
    assert audit.run(started[0], Lake(lake)).ok
    context = started[0].sparkContext
    hosts = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # and the driver
    print(f"{ran.taken.events} events, {hosts} executors")
    name = context.applicationId
    started[0].stop()
    shutil.rmtree(WORK / name, ignore_errors=True)
    with contextlib.suppress(OSError):  # not there, or another run's
        WORK.rmdir()


if __name__ == "__main__":
    assert os.environ.get("SPARK_LOCAL_IP") is None
    main(Path(sys.argv[1]), sys.argv[2])
