"""Service level objectives: the share of jobs that start within a time, the error budget and how
fast it burns.

`within` counts the leases with a wait of at most the objective, exactly. So a changed objective
applies to the past as well. The counts are from `latency_hour` for the last two days, and from
`latency_day` for the days before them. A row of these tables has the shortest and the longest of
its waits, and most rows are on one side of the objective. The events of an hour or a day are
counted only if it has a row on both sides, or if the last hour or the last six hours start or end
in it. Objectives of whole seconds up to a minute, whole minutes up to an hour and whole hours
rarely divide a row of `latency_day`.

The budget is the number of jobs that may start late in the period. Burn is the share of late jobs
of the last hours, divided by the share that the objective permits: 1 uses the budget exactly in
the period.
"""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from .errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .snapshot import Snapshot

VERSION: Final = 1
#: Days of the period of an objective.
DAYS: Final = 30
#: The last hours whose burn is computed, in descending order.
_BURN_HOURS: Final = (6, 1)
_FORM: Final = re.compile(
    r"\s*(?P<queue>.+?)\s*:\s*(?P<share>\d+(?:\.\d+)?)\s*%\s*within\s*"
    r"(?P<length>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h)\s*"
)
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Objective(msgspec.Struct, frozen=True):
    queue: str
    #: The share of jobs, between 0 and 1, that start within `seconds`.
    share: float
    seconds: float

    @property
    def text(self) -> str:
        return f"{self.share * 100:g} % within {self.seconds:g} s"


class ObjectiveDay(msgspec.Struct, kw_only=True, frozen=True):
    day: date
    started: int
    within: int


class ObjectiveStatus(msgspec.Struct, kw_only=True, frozen=True):
    """Shares are between 0 and 1, and null without started jobs."""

    queue: str
    objective: str
    share: float
    seconds: float
    started: int
    within: int
    attainment: float | None
    #: The share of the error budget that is used; more than 1: the objective is missed.
    budget_used: float | None
    burn_1h: float | None
    burn_6h: float | None
    #: Jobs that have waited longer than the objective and have not started.
    overdue: int
    days: list[ObjectiveDay]


class Slo(msgspec.Struct, kw_only=True, frozen=True):
    version: int
    run: int
    first: date
    last: date
    #: The time at which the last hours end.
    at: datetime
    objectives: list[ObjectiveStatus]


def parse_objectives(text: str) -> list[Objective]:
    """Read `mail: 95% within 30s, thumbs: 99% within 2m`; lines or commas separate objectives."""
    found: dict[str, Objective] = {}
    for part in re.split(r"[,\n]", text):
        if not part.strip():
            continue
        match = _FORM.fullmatch(part)
        share = float(match["share"]) / 100 if match else 0.0
        if match is None or not 0 < share < 1:
            raise PipelineError(
                f"Invalid objective {part.strip()!r}. Write QUEUE: 95% within 30s, with a share "
                "below 100% and a time in ms, s, m or h."
            )
        queue = match["queue"]
        if queue in found:
            raise PipelineError(f"The queue {queue!r} has two objectives.")
        found[queue] = Objective(queue, share, float(match["length"]) * _UNITS[match["unit"]])
    return list(found.values())


def slo(
    spark: "SparkSession",
    snapshot: "Snapshot",
    objectives: Sequence[Objective],
    *,
    at: datetime,
    days: int = DAYS,
) -> Slo:
    """Compute the status of each objective for the days up to `at`."""
    from .views import create_views  # noqa: PLC0415 - the HTTP API uses this module without pyarrow

    create_views(spark, snapshot)
    last = at.astimezone(UTC).date()
    first = last - timedelta(days=days - 1)
    limits = [(each.queue, round(each.seconds * 1e6)) for each in objectives]
    spark.createDataFrame(limits, "queue STRING, limit_us BIGINT").createOrReplaceTempView(
        "objectives"
    )
    moment = _literal(at)
    rows = _counts(spark, first, at)
    late = spark.sql(f"""
        SELECT j.queue, count(*) AS n FROM jobs_current AS j JOIN objectives AS o
            ON j.queue = o.queue
        WHERE state = 'ready' AND unix_micros({moment}) - unix_micros(ready_at) > limit_us
        GROUP BY j.queue
    """).collect()
    overdue = {row.queue: row.n for row in late}
    return Slo(
        version=VERSION,
        run=snapshot.number,
        first=first,
        last=last,
        at=at.astimezone(UTC).replace(microsecond=0),
        objectives=[
            _status(each, [row for row in rows if row.queue == each.queue], overdue, at)
            for each in objectives
        ],
    )


def _literal(time: datetime) -> str:
    return f"TIMESTAMP'{time.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00:00'"


class _Count(NamedTuple):
    """The leases of a queue in the hour or on the day from `start`."""

    queue: str
    start: datetime
    started: int
    within: int


def _counts(spark: "SparkSession", first: date, at: datetime) -> list[_Count]:
    """Count the leases by hour from the day of the last hours on, and by day before it. Events are
    counted up to the next of `edges`, so that a period is on one side of each of them.
    """
    edges = [at - timedelta(hours=hours) for hours in (*_BURN_HOURS, 0)]
    recent = edges[0].astimezone(UTC).date()
    last = at.astimezone(UTC).date()
    rows = spark.sql(f"""
        SELECT queue, start, hours, sum(n) AS started, sum(if(max_us <= limit_us, n, 0)) AS within,
            bool_or(min_us <= limit_us AND max_us > limit_us) AS divided
        FROM (
            SELECT queue, metric, timestamp(day) AS start, 24 AS hours, n, min_us, max_us
            FROM latency_day WHERE day >= DATE'{first}' AND day < DATE'{recent}'
            UNION ALL SELECT queue, metric, hour AS start, 1 AS hours, n, min_us, max_us
            FROM latency_hour WHERE day BETWEEN greatest(DATE'{first}', DATE'{recent}')
                AND DATE'{last}' AND hour < {_literal(at)}
        ) JOIN objectives USING (queue) WHERE metric = 'wait' GROUP BY queue, start, hours
    """).collect()
    found, parts = [], []
    for row in rows:
        start = row.start.astimezone(UTC)
        end = start + timedelta(hours=row.hours)
        inner = sorted(edge for edge in edges if start < edge < end)
        if row.divided or inner:
            parts += [(row.queue, *part) for part in pairwise([start, *inner, min(end, at)])]
        else:
            found.append(_Count(row.queue, start, row.started, row.within))
    return [*found, *_counted(spark, [part for part in parts if part[1] < part[2]])]


def _counted(spark: "SparkSession", parts: list[tuple[str, datetime, datetime]]) -> list[_Count]:
    """Count the events of parts of the time: queue, start and end."""
    if not parts:
        return []
    days = ", ".join(sorted({f"DATE'{start:%Y-%m-%d}'" for _, start, _ in parts}))
    first, last = min(part[1] for part in parts), max(part[2] for part in parts)
    rows = spark.sql(
        f"""
        SELECT queue, start, count(*) AS started,
            count_if(coalesce(wait_us, 0) <= limit_us) AS within
        FROM events JOIN objectives USING (queue) JOIN {{parts}} USING (queue)
        WHERE type = 'leased' AND day IN ({days}) AND time >= start AND time < end
            AND time >= {_literal(first)} AND time < {_literal(last)}
        GROUP BY queue, start
        """,
        parts=spark.createDataFrame(parts, "queue STRING, start TIMESTAMP, end TIMESTAMP"),
    ).collect()
    return [_Count(row.queue, row.start.astimezone(UTC), row.started, row.within) for row in rows]


def _status(
    objective: Objective, rows: list[_Count], overdue: dict[str, int], at: datetime
) -> ObjectiveStatus:
    permitted = 1 - objective.share
    started, within = _totals(rows)
    days = []
    for day in sorted({row.start.date() for row in rows}):
        of_day = _totals([row for row in rows if row.start.date() == day])
        days.append(ObjectiveDay(day=day, started=of_day[0], within=of_day[1]))

    def burn(hours: int) -> float | None:
        count, good = _totals([row for row in rows if row.start >= at - timedelta(hours=hours)])
        return (count - good) / count / permitted if count else None

    return ObjectiveStatus(
        queue=objective.queue,
        objective=objective.text,
        share=objective.share,
        seconds=objective.seconds,
        started=started,
        within=within,
        attainment=within / started if started else None,
        budget_used=(started - within) / (permitted * started) if started else None,
        burn_1h=burn(1),
        burn_6h=burn(6),
        overdue=overdue.get(objective.queue, 0),
        days=days,
    )


def _totals(rows: list[_Count]) -> tuple[int, int]:
    return sum(row.started for row in rows), sum(row.within for row in rows)
