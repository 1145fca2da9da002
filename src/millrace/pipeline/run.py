"""A run: refreshes the tables, checks them, and records the versions of all tables in `runs`.

The run first determines without Spark whether there are new events, because Spark takes ten
seconds to start.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from millrace import __version__

from . import delta
from .backlog import Outstanding, outstanding
from .checks import Check, check
from .lake import Lake, locked
from .maintenance import maintain
from .progress import Progress, silent
from .snapshot import RunRecord, last_run, schema
from .tables import RUNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RunResult(NamedTuple):
    """The result of a run. `run` is None if there was no work."""

    run: RunRecord | None
    checks: list[Check]
    seconds: float

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.failed]


def run(
    lake: Lake,
    session: "Callable[[Outstanding], SparkSession]",
    progress: Progress = silent,
) -> RunResult:
    """Do the outstanding work; `session` is called only if there is any."""
    began = time.monotonic()
    with locked(lake):
        todo = outstanding(lake.root)
        if not todo:
            return RunResult(None, [], time.monotonic() - began)
        spark = session(todo)
        from .refresh import TableRefresh  # noqa: PLC0415 - loads Spark

        last = last_run(lake.root)
        number = 1 if last is None else last.run + 1
        refresh = TableRefresh(spark, lake.root, number, progress=progress)
        events = refresh.run()
        refresh.merge_open_jobs()
        refresh.compact()
        progress("check", 0, 0)
        checks = check(lake.root, refresh.events, refresh.tables, refresh.days)
        seconds = time.monotonic() - began
        done = RunRecord(
            run=number,
            time=datetime.now(UTC),
            seconds=seconds,
            events=events,
            versions={"events": refresh.events.version()}
            | {name: table.version() for name, table in refresh.tables.items()},
            position=dict(refresh.position),
            failed=sum(each.failed for each in checks),
            findings=[sentence for each in checks for sentence in each.found],
        )
        record(lake.root, done)
        maintain(lake.root, refresh.tables)
        return RunResult(done, checks, seconds)


def record(root: Path, done: RunRecord) -> None:
    """Append a run. From now on, readers open its versions."""
    table = delta.create(root, RUNS)
    row = {
        "run": done.run,
        "time": done.time,
        "seconds": done.seconds,
        "events": done.events,
        "tables": list(done.versions),
        "versions": list(done.versions.values()),
        "servers": list(done.position),
        "positions": list(done.position.values()),
        "failed": done.failed,
        "findings": done.findings,
        "millrace": __version__,
    }
    staged = delta.staging(root, RUNS)
    staged.mkdir()
    rows = pa.Table.from_pylist([row], schema(RUNS))
    pq.write_table(rows, staged / "part-0.parquet", compression="zstd")
    delta.commit(root, RUNS, table, delta.Change(staged, None, done.position, done.run))
