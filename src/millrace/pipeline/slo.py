"""Service level objectives: the share of jobs that start within a time, the error budget and how
fast it burns.

`within` counts the leases with a wait of at most the objective, exactly. So a changed objective
applies to the past as well. A row of `latency_day` has the shortest and the longest of its waits,
and most rows are on one side of the objective. Only if a row is on both sides, the events of its
day are counted. Objectives of whole seconds up to a minute, whole minutes up to an hour and whole
hours rarely need it. The events of the last hours are always counted.

The budget is the number of jobs that may start late in the period. Burn is the share of late jobs
of the last hours, divided by the share that the objective permits: 1 uses the budget exactly in
the period.
"""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .snapshot import Snapshot

VERSION: Final = 1
#: Days of the period of an objective.
DAYS: Final = 30
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
    if not objectives:
        raise PipelineError(
            'No objectives. Set them in the configuration: [slo] objectives = "mail: 95% within '
            '30s".'
        )
    from .views import create_views  # noqa: PLC0415 - the HTTP API uses this module without pyarrow

    create_views(spark, snapshot)
    last = at.astimezone(UTC).date()
    first = last - timedelta(days=days - 1)
    limits = [(each.queue, round(each.seconds * 1e6)) for each in objectives]
    spark.createDataFrame(limits, "queue STRING, limit_us BIGINT").createOrReplaceTempView(
        "objectives"
    )
    moment = f"TIMESTAMP'{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}+00:00'"

    def within(hours: int) -> str:
        return f"time >= {moment} - INTERVAL {hours} HOURS"

    # The days before the last hours.
    recent = (at.astimezone(UTC) - timedelta(hours=6)).date()
    complete = spark.sql(f"""
        SELECT l.queue, l.day, sum(n) AS started, sum(if(max_us <= limit_us, n, 0)) AS within,
            0 AS started_1, 0 AS within_1, 0 AS started_6, 0 AS within_6,
            bool_or(min_us <= limit_us AND max_us > limit_us) AS divided
        FROM latency_day AS l JOIN objectives AS o ON l.queue = o.queue
        WHERE metric = 'wait' AND day >= DATE'{first}' AND day < DATE'{recent}'
        GROUP BY l.queue, l.day
    """).collect()
    divided = sorted({row.day for row in complete if row.divided})
    scanned = " OR ".join([f"day >= DATE'{recent}'", *(f"day = DATE'{day}'" for day in divided)])
    counted = spark.sql(f"""
        SELECT e.queue, e.day, count(*) AS started, count_if(wait_us <= limit_us) AS within,
            count_if({within(1)}) AS started_1, count_if({within(1)} AND wait_us <= limit_us)
                AS within_1,
            count_if({within(6)}) AS started_6, count_if({within(6)} AND wait_us <= limit_us)
                AS within_6
        FROM (SELECT queue, day, time, coalesce(wait_us, 0) AS wait_us FROM events
            WHERE type = 'leased' AND day BETWEEN DATE'{first}' AND DATE'{last}' AND ({scanned})
                AND time < {moment}
        ) AS e JOIN objectives AS o ON e.queue = o.queue
        GROUP BY e.queue, e.day
    """).collect()
    rows = {(row.queue, row.day): row.asDict() for row in (*complete, *counted)}
    late = spark.sql(f"""
        SELECT j.queue, count(*) AS n FROM jobs_current AS j JOIN objectives AS o
            ON j.queue = o.queue
        WHERE state = 'ready' AND unix_micros({moment}) - unix_micros(ready_at) > limit_us
        GROUP BY j.queue
    """).collect()
    overdue = {row.queue: row.n for row in late}
    by_queue: dict[str, list[dict[str, Any]]] = {each.queue: [] for each in objectives}
    for (queue, _), row in rows.items():
        by_queue[queue].append(row)
    return Slo(
        version=VERSION,
        run=0 if snapshot.run is None else snapshot.run.run,
        first=first,
        last=last,
        at=at.astimezone(UTC).replace(microsecond=0),
        objectives=[
            _status(each, by_queue[each.queue], overdue.get(each.queue, 0)) for each in objectives
        ],
    )


def _status(objective: Objective, rows: list[dict[str, Any]], overdue: int) -> ObjectiveStatus:
    started, within = (sum(row[name] for row in rows) for name in ("started", "within"))
    permitted = 1 - objective.share

    def burn(hours: int) -> float | None:
        count = sum(row[f"started_{hours}"] for row in rows)
        good = sum(row[f"within_{hours}"] for row in rows)
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
        overdue=overdue,
        days=sorted(
            (
                ObjectiveDay(day=row["day"], started=row["started"], within=row["within"])
                for row in rows
            ),
            key=lambda each: each.day,
        ),
    )
