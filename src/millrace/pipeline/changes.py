"""What changed: compares two periods, and finds the queues, kinds, tags, workers and error groups
that explain the difference.

Each measure is a sum, so the change of a measure is the sum of the changes of the members of a
dimension. A member explains a change if its own change is large, and larger than chance: more than
three standard deviations of a count with this mean. Periods have whole hours.
"""

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from . import tables as d
from .errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .snapshot import Snapshot

VERSION: Final = 1
HOUR: Final = timedelta(hours=1)
MEASURES: Final = ("pushed", "completed", "failures", "died", "wait", "run")
#: Measures that are durations in microseconds.
_TIMES: Final = frozenset({"wait", "run"})
#: Minimum number of events, relative change, and share of the total change of an explanation.
MIN_EVENTS: Final = 20
MIN_CHANGE: Final = 0.2
MIN_SHARE: Final = 0.1
MAX_ROWS: Final = 10
_DEVIATIONS: Final = 3.0


class MeasureChange(msgspec.Struct, kw_only=True, frozen=True):
    """Values are per hour; `wait` and `run` are the seconds per hour of all jobs together."""

    measure: str
    before: float
    after: float
    #: Relative to `before`; null if that is 0.
    change: float | None


class Explanation(msgspec.Struct, kw_only=True, frozen=True):
    measure: str
    #: `queue`, `kind`, `tag`, `worker` or `error`.
    dimension: str
    member: str
    before: float
    after: float
    #: The part of the change of the measure; more than 1 if other members changed the other way.
    share: float
    is_new: bool
    is_gone: bool


class Changes(msgspec.Struct, kw_only=True, frozen=True):
    version: int
    run: int
    before_first: datetime
    before_last: datetime
    first: datetime
    last: datetime
    queue: str | None
    measures: list[MeasureChange]
    explanations: list[Explanation]


def whole_hours(when: datetime) -> datetime:
    return when.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def changes(
    spark: "SparkSession",
    snapshot: "Snapshot",
    before: tuple[datetime, datetime],
    after: tuple[datetime, datetime],
    *,
    queue: str | None = None,
) -> Changes:
    """Compare two periods of whole hours."""
    if before[1] <= before[0] or after[1] <= after[0]:
        raise PipelineError("A period must have at least one hour.")
    from .views import create_views  # noqa: PLC0415 - the HTTP API uses this module without pyarrow

    create_views(spark, snapshot)
    arguments = {} if queue is None else {"queue": queue}
    rows = [
        row.asDict()
        for row in spark.sql(_sql(before, after, queue is not None), args=arguments).collect()
    ]
    hours = (before[1] - before[0]) / HOUR, (after[1] - after[0]) / HOUR
    measures = [_measure(name, rows, hours) for name in MEASURES]
    explanations = [found for measure in measures for found in _explanations(measure, rows, hours)]
    return Changes(
        version=VERSION,
        run=snapshot.number,
        before_first=before[0],
        before_last=before[1],
        first=after[0],
        last=after[1],
        queue=queue,
        measures=measures,
        explanations=explanations,
    )


def _sql(
    before: tuple[datetime, datetime], after: tuple[datetime, datetime], of_queue: bool
) -> str:
    """Sums of the measures by dimension, member and period."""

    def rows(dimension: str, member: str, table: str, time: str, sums: dict[str, str]) -> str:
        side = f"CASE WHEN {_in(time, before)} THEN 'before' ELSE 'after' END"
        where = f"({_in(time, before)} OR {_in(time, after)}) AND {_days(before, after)}"
        where += " AND queue = :queue" if of_queue else ""
        named = ", ".join(
            f"CAST({sums.get(name, '0')} AS DOUBLE) AS {name}" for name in (*MEASURES, "events")
        )
        return (
            f"SELECT '{dimension}' AS dimension, {member} AS member, {side} AS side, {named} "
            f"FROM {table} WHERE {where} GROUP BY ALL"
        )

    counts = {
        "pushed": "sum(pushed)", "completed": "sum(completed)", "failures": "sum(failures)",
        "died": "sum(died)", "wait": "sum(wait_us)", "run": "sum(run_us + lost_us)",
        "events": "sum(started)",
    }  # fmt: skip
    ended = {
        "completed": "count_if(outcome IN ('completed', 'advanced'))",
        "failures": "count_if(outcome IN ('failed', 'expired'))",
        "died": "count_if(outcome IN ('failed', 'expired') AND state IN ('dead', 'gone'))",
        "wait": "sum(wait_us)", "run": "sum(run_us)", "events": "count(*)",
    }  # fmt: skip
    tagged = {
        "pushed": "count_if(type = 'pushed')",
        "completed": f"count_if({d.COMPLETION})",
        "failures": f"count_if({d.FAILURE})",
        "died": f"count_if({d.DEATH})",
        "wait": "sum(if(type = 'leased', coalesce(wait_us, 0), 0))",
        "run": f"sum(if({d.COMPLETION} OR {d.FAILURE}, coalesce(run_us, 0), 0))",
        "events": "count_if(type = 'leased')",
    }
    errors = {name: ended[name] for name in ("failures", "died", "events")}
    failed = "attempts WHERE fingerprint IS NOT NULL"
    return " UNION ALL ".join(
        (
            rows("total", "''", "kind_hour", "hour", counts),
            rows("queue", "queue", "kind_hour", "hour", counts),
            rows("kind", "concat(queue, ' ', kind)", "kind_hour", "hour", counts),
            rows("tag", "tag", "(SELECT *, explode(array_distinct(tags)) AS tag FROM events "
                 "WHERE size(tags) > 0)", "time", tagged),
            rows("worker", "concat(holder, ' ', coalesce(worker, ''))", "attempts", "ended_at",
                 ended),
            rows("error", "concat(fingerprint, ' ', coalesce(error_group, ''))",
                 f"(SELECT * FROM {failed})", "ended_at", errors),
        )
    )  # fmt: skip


def _in(time: str, period: tuple[datetime, datetime]) -> str:
    first, last = (f"TIMESTAMP'{each.astimezone(UTC):%Y-%m-%d %H:%M:%S}+00:00'" for each in period)
    return f"({time} >= {first} AND {time} < {last})"


def _days(*periods: tuple[datetime, datetime]) -> str:
    first, last = min(each[0] for each in periods), max(each[1] for each in periods)
    return f"day BETWEEN DATE'{first:%Y-%m-%d}' AND DATE'{last:%Y-%m-%d}'"


def _measure(
    name: str, rows: Iterable[dict[str, Any]], hours: tuple[float, float]
) -> MeasureChange:
    sums = {"before": 0.0, "after": 0.0}
    for row in rows:
        if row["dimension"] == "total":
            sums[row["side"]] += row[name] or 0.0
    unit = 1e6 if name in _TIMES else 1.0
    before, after = sums["before"] / hours[0] / unit, sums["after"] / hours[1] / unit
    change = (after - before) / before if before else None
    return MeasureChange(measure=name, before=before, after=after, change=change)


def _explanations(
    measure: MeasureChange, rows: Iterable[dict[str, Any]], hours: tuple[float, float]
) -> list[Explanation]:
    """The members with the largest part of a change, in order."""
    whole = measure.after - measure.before
    if not whole or (measure.change is not None and abs(measure.change) < MIN_CHANGE / 4):
        return []
    name = measure.measure
    unit = 1e6 if name in _TIMES else 1.0
    members: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for row in rows:
        if row["dimension"] != "total" and row["member"] is not None:
            value = row[name] or 0.0
            count = (row["events"] or 0.0) if name in _TIMES else value
            members.setdefault((row["dimension"], row["member"]), {})[row["side"]] = value, count
    found = []
    for (dimension, member), sides in members.items():
        before, count_before = sides.get("before", (0.0, 0.0))
        after, count_after = sides.get("after", (0.0, 0.0))
        rates = before / hours[0] / unit, after / hours[1] / unit
        share = (rates[1] - rates[0]) / whole
        if share < MIN_SHARE or not _is_significant(
            rates, (count_before / hours[0], count_after / hours[1]), hours
        ):
            continue
        found.append(
            Explanation(
                measure=name,
                dimension=dimension,
                member=member,
                before=rates[0],
                after=rates[1],
                share=share,
                is_new=not count_before,
                is_gone=not count_after,
            )
        )
    found.sort(key=lambda each: (-each.share, each.dimension, each.member))
    return found[:MAX_ROWS]


def _is_significant(
    rates: tuple[float, float], counts: tuple[float, float], hours: tuple[float, float]
) -> bool:
    events = counts[0] * hours[0] + counts[1] * hours[1]
    if events < MIN_EVENTS:
        return False
    if abs(rates[1] - rates[0]) < MIN_CHANGE * max(rates):
        return False
    deviation = math.sqrt(counts[0] / hours[0] + counts[1] / hours[1])
    relative = abs(rates[1] - rates[0]) / max(rates)
    return relative * max(counts) > _DEVIATIONS * deviation or counts[0] == 0 or counts[1] == 0
