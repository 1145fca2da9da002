"""Predicts the waits of a period for several scenarios, with one Spark task per replay.

Queues that share a worker are replayed together. The tasks read their visits from files that Spark
writes first, so the driver holds only the results.
"""

import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from millrace.pipeline.buckets import Bucket, merged, percentiles
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.events import located
from millrace.pipeline.lake import Lake
from millrace.pipeline.progress import Progress, silent
from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.views import create_views

from .model import VERSION, Prediction, QueueOutcome, ScenarioOutcome
from .replay import Replay
from .results import QueueResult, recorded
from .scenario import Scenario
from .visits import Period, from_rows, visits_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Maximum number of points of a backlog in a prediction.
MAX_POINTS: Final = 720
_SECOND: Final = 1_000_000


class ReplayTask(NamedTuple):
    """A replay of queues of one server. Without a scenario, it returns the recorded values."""

    number: int
    scenario: bytes | None
    folder: str
    queues: tuple[str, ...]
    period: Period


class TaskResult(NamedTuple):
    number: int
    workers: int
    queues: dict[str, QueueResult]


def predict(
    spark: "SparkSession",
    snapshot: Snapshot,
    period: Period,
    scenarios: Sequence[Scenario],
    *,
    queue: str | None = None,
    now: datetime | None = None,
    progress: Progress = silent,
) -> Prediction:
    """Replay a period without changes and with each scenario."""
    if period.end <= period.start:
        raise PipelineError("The period is empty: its end must be after its start.")
    folder = Lake(snapshot.root).ops / f"visits-{secrets.token_hex(8)}"
    try:
        progress("read visits", 0, 0)
        create_views(spark, snapshot)
        visits = spark.sql(visits_sql(period))
        visits.repartition("server").write.partitionBy("server").parquet(located(folder))
        parts = _parts(spark, folder, queue)
        progress("replay", 0, 0)
        numbered = [None, Scenario(), *scenarios]
        tasks = [
            ReplayTask(
                number, None if each is None else msgspec.json.encode(each), where, names, period
            )
            for number, each in enumerate(numbered)
            for where, names in parts
        ]
        results: list[TaskResult] = []
        if tasks:
            context = spark.sparkContext
            results = context.parallelize(tasks, len(tasks)).map(replay_task).collect()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _prediction(snapshot, period, numbered, results, queue, now or datetime.now(UTC))


def _parts(
    spark: "SparkSession", folder: Path, queue: str | None
) -> list[tuple[str, tuple[str, ...]]]:
    """The queues that share workers, with the folder of their server."""
    if not any(folder.glob("server=*")):
        return []
    pairs = (
        # Without a schema, Spark reads the number of a server as an integer.
        spark.read.schema("server STRING, holder STRING, worker STRING, queue STRING")
        .parquet(located(folder))
        .distinct()
        .collect()
    )
    found: list[tuple[str, tuple[str, ...]]] = []
    for server in sorted({row.server for row in pairs}):
        of_server = [row for row in pairs if row.server == server]
        links = [
            (f"{row.holder} {row.worker}" if row.holder else "", row.queue) for row in of_server
        ]
        where = str(folder / f"server={server}")
        found += [
            (where, queues) for queues in components(links) if queue is None or queue in queues
        ]
    return found


def components(links: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Queues that are connected by workers. A queue without a worker is on its own."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    queues = set()
    for worker, queue in links:
        queues.add(queue)
        own = root(f"queue {queue}")
        if worker:
            parent[own] = root(f"worker {worker}")
    groups: dict[str, list[str]] = {}
    for queue in sorted(queues):
        groups.setdefault(root(f"queue {queue}"), []).append(queue)
    return [tuple(group) for group in groups.values()]


def replay_task(task: ReplayTask) -> TaskResult:
    """One replay, in a Spark task."""
    import pyarrow as pa  # noqa: PLC0415 - only tasks read files
    import pyarrow.compute as pc  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    files = sorted(Path(task.folder).glob("*.parquet"))
    rows = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
    rows = rows.filter(pc.is_in(rows["queue"], pa.array(task.queues)))
    visits = list(from_rows(rows.to_pylist(), task.period))
    visits.sort()
    if task.scenario is None:
        return TaskResult(task.number, 0, dict(recorded(visits, task.period)))
    scenario = msgspec.json.decode(task.scenario, type=Scenario)
    replay = Replay(visits, task.period, scenario)
    return TaskResult(task.number, len(replay.slots), dict(replay.run()))


def _prediction(
    snapshot: Snapshot,
    period: Period,
    scenarios: Sequence[Scenario | None],
    results: Iterable[TaskResult],
    queue: str | None,
    now: datetime,
) -> Prediction:
    found: dict[int, list[TaskResult]] = {number: [] for number in range(len(scenarios))}
    for result in results:
        found[result.number].append(result)
    minutes = sorted({at for all_ in found.values() for each in all_ for q in each.queues.values()
                      for at in q.backlog})  # fmt: skip
    step = max(1, -(-len(minutes) // MAX_POINTS))
    times = minutes[::step]
    outcomes = []
    for number, scenario in enumerate(scenarios):
        name = "recorded" if scenario is None else scenario.name
        outcomes.append(_outcome(name, found[number], times, queue))
    recording, replay, *others = outcomes
    recording = msgspec.structs.replace(recording, workers=replay.workers)
    return Prediction(
        version=VERSION,
        run=snapshot.number,
        made_at=now.replace(microsecond=0),
        first=moment(period.start),
        last=moment(period.end),
        queue=queue,
        at=[moment(at) for at in times],
        recorded=recording,
        replay=replay,
        error_p50=_error(replay.total.wait_p50, recording.total.wait_p50),
        error_p95=_error(replay.total.wait_p95, recording.total.wait_p95),
        scenarios=others,
    )


def moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _error(found: float | None, wanted: float | None) -> float | None:
    if found is None or wanted is None:
        return None
    return 0.0 if found == wanted else abs(found - wanted) / max(wanted, 1e-6)


def _outcome(
    name: str, results: Iterable[TaskResult], times: Sequence[int], queue: str | None
) -> ScenarioOutcome:
    results = list(results)
    by_queue: dict[str, list[QueueResult]] = {}
    backlog: Counter[int] = Counter()
    for each in results:
        for name_, result in each.queues.items():
            if queue is None or queue == name_:
                by_queue.setdefault(name_, []).append(result)
                backlog.update(result.backlog)
    rows = [_queue(name_, found) for name_, found in by_queue.items()]
    rows.sort(key=lambda row: (-row.started, row.queue))
    return ScenarioOutcome(
        name=name,
        workers=sum(each.workers for each in results),
        total=_queue("", [each for found in by_queue.values() for each in found]),
        queues=rows,
        backlog=[backlog[at] for at in times],
    )


def _queue(name: str, results: Sequence[QueueResult]) -> QueueOutcome:
    """The sum of results of several servers or queues."""
    buckets = merged(Bucket(at, *row) for each in results for at, row in each.waits.items())
    waits = [us / _SECOND for us in percentiles(buckets, (50, 95, 99))]
    p50, p95, p99 = waits or (None, None, None)
    backlog: Counter[int] = Counter()
    for each in results:
        backlog.update(each.backlog)
    return QueueOutcome(
        queue=name,
        started=sum(each.started for each in results),
        failures=sum(each.failures for each in results),
        unserved=sum(each.unserved for each in results),
        busy=sum(each.busy for each in results) / _SECOND,
        wait_p50=p50,
        wait_p95=p95,
        wait_p99=p99,
        wait_max=max(each.max_us for each in buckets) / _SECOND if buckets else None,
        peak_backlog=max(backlog.values(), default=0),
    )
