"""Every queue's depth and every job's state as of a moment, folded from the journal."""

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from . import events
from .commit import install, located
from .lake import Lake
from .transforms import state

#: With fewer jobs left than this their events are looked up; with more, they are sorted.
_FEW: Final = 1_000_000


class Depth(msgspec.Struct):
    """The jobs of a queue, by state."""

    server: str
    queue: str
    ready: int
    scheduled: int
    blocked: int
    leased: int
    done: int
    dead: int


class Job(msgspec.Struct):
    """A job as its last event tells it; `since` is when that was."""

    server: str
    seq: int
    jid: str
    queue: str
    kind: str
    origin: str
    state: str
    priority: float
    attempt: int
    worker: str | None
    created: datetime | None
    since: datetime
    due: datetime | None
    event_id: int


class Which(NamedTuple):
    """Which jobs are meant; empty: any."""

    queue: str = ""
    state: str = ""


class State:
    """All jobs that there were at a moment."""

    def __init__(
        self, spark: SparkSession, lake: Lake, moment: datetime, which: Which | None = None
    ) -> None:
        read = events.read(spark, lake, last=moment.astimezone(UTC).date())
        past = state.until(read, moment)
        alive = state.alive(past).cache()
        self.count = alive.count()
        jobs = state.jobs(past, F.broadcast(alive) if self.count <= _FEW else alive)
        self._jobs = _chosen(jobs, which or Which())

    def depths(self) -> list[Depth]:
        rows = state.depths(self._jobs).orderBy("server", "queue").toArrow()
        return [Depth(**row) for row in rows.to_pylist()]

    def jobs(self, limit: int) -> list[Job]:
        """The oldest."""
        rows = self._jobs.orderBy("server", "seq").limit(limit).toArrow()
        return [Job(**row) for row in rows.to_pylist()]

    def write(self, place: Path) -> None:
        """All jobs, as one Parquet file."""
        aside = place.absolute().with_name(f".{place.name}.writing")
        rows = self._jobs.repartition(1).sortWithinPartitions("server", "seq")
        try:
            rows.write.mode("overwrite").parquet(located(aside))
            (part,) = aside.glob("part-*.parquet")
            install(part, place)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _chosen(jobs: DataFrame, which: Which) -> DataFrame:
    if which.queue:
        jobs = jobs.where(F.col("queue") == which.queue)
    if which.state:
        jobs = jobs.where(F.col("state") == which.state)
    return jobs
