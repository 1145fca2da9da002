"""A run and an audit on another master, in a separate process: Spark has one session per process.

    python cluster_run.py LAKE MASTER

Python workers get an invalid path of Python, so that any step that needs one fails.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from millrace.pipeline import session
from millrace.pipeline.audit.run import run as run_audit
from millrace.pipeline.lake import Lake
from millrace.pipeline.run import run

#: The fixed location of the worker folders of `local-cluster`.
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

    result = run(Lake(lake), start)
    assert run_audit(started[0], Lake(lake)).ok
    context = started[0].sparkContext
    hosts = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # and the driver
    print(f"{result.run.events} events, {hosts} executors")
    name = context.applicationId
    started[0].stop()
    shutil.rmtree(WORK / name, ignore_errors=True)
    with contextlib.suppress(OSError):  # missing, or used by another run
        WORK.rmdir()


if __name__ == "__main__":
    assert os.environ.get("SPARK_LOCAL_IP") is None
    main(Path(sys.argv[1]), sys.argv[2])
