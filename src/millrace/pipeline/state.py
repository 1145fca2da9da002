"""The depth of every queue and the state of every job at a given time, from the journal."""

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.durable_files import make, sync

from . import events, job_states
from .lake import Lake

#: Up to this number of remaining jobs, a broadcast join finds their events; above it, a sort.
_FEW: Final = 1_000_000


class Depth(msgspec.Struct):
    """The number of jobs of a queue in each state."""

    server: str
    queue: str
    ready: int
    scheduled: int
    blocked: int
    leased: int
    done: int
    dead: int


class JobState(msgspec.Struct):
    """A job according to its last event; `since` is the time of that event."""

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
    """Filters jobs; an empty value matches any job."""

    queue: str = ""
    state: str = ""


class State:
    """All jobs that existed at a point in time."""

    def __init__(
        self, spark: SparkSession, lake: Lake, moment: datetime, which: Which | None = None
    ) -> None:
        read = events.read(spark, lake.root, last=moment.astimezone(UTC).date())
        past = job_states.until(read, moment)
        alive = job_states.alive(past).cache()
        self.count = alive.count()
        jobs = job_states.jobs(past, F.broadcast(alive) if self.count <= _FEW else alive)
        self._jobs = _chosen(jobs, which or Which())

    def depths(self) -> list[Depth]:
        rows = job_states.depths(self._jobs).orderBy("server", "queue").toArrow()
        return [Depth(**row) for row in rows.to_pylist()]

    def jobs(self, limit: int) -> list[JobState]:
        """Return the oldest jobs."""
        rows = self._jobs.orderBy("server", "seq").limit(limit).toArrow()
        return [JobState(**row) for row in rows.to_pylist()]

    def write(self, place: Path) -> None:
        """Write all jobs to one Parquet file."""
        aside = place.absolute().with_name(f".{place.name}.writing")
        rows = self._jobs.repartition(1).sortWithinPartitions("server", "seq")
        try:
            rows.write.mode("overwrite").parquet(events.located(aside))
            (part,) = aside.glob("part-*.parquet")
            make(place.absolute().parent)
            sync(part)
            part.replace(place)
            sync(place.absolute().parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _chosen(jobs: DataFrame, which: Which) -> DataFrame:
    if which.queue:
        jobs = jobs.where(F.col("queue") == which.queue)
    if which.state:
        jobs = jobs.where(F.col("state") == which.state)
    return jobs
