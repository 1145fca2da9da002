"""Cost: the time of workers by queue, kind and tag, and the part that failed attempts took."""

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .snapshot import Snapshot

VERSION: Final = 1
_HOUR: Final = 3_600_000_000
_SUMS: Final = ", ".join(
    f"sum({name}) AS {name}"
    for name in ("started", "completed", "failures", "died", "run_us", "lost_us")
)


class CostRow(msgspec.Struct, kw_only=True, frozen=True):
    """Times are in hours. `tag` is null for a row of a queue and kind."""

    queue: str | None
    kind: str | None
    tag: str | None
    started: int
    completed: int
    failures: int
    died: int
    run_hours: float
    #: The time of failed attempts.
    lost_hours: float
    #: The share of the time of all workers.
    share: float
    #: The time of all attempts per completed job, in seconds; null without completed jobs.
    seconds_per_job: float | None
    #: Null without a price.
    cost: float | None


class Cost(msgspec.Struct, kw_only=True, frozen=True):
    version: int
    run: int
    first: date
    last: date
    #: The price of an hour of a worker.
    price: float | None
    total: CostRow
    queues: list[CostRow]
    kinds: list[CostRow]
    tags: list[CostRow]


def cost(
    spark: "SparkSession",
    snapshot: "Snapshot",
    first: date,
    last: date,
    *,
    queue: str | None = None,
    price: float | None = None,
) -> Cost:
    """Add the costs of the days from `first` to `last`. A job counts for each of its tags."""
    from .views import create_views  # noqa: PLC0415 - the HTTP API uses this module without pyarrow

    create_views(spark, snapshot)
    days = f"day BETWEEN DATE'{first}' AND DATE'{last}'"
    arguments = {} if queue is None else {"queue": queue}
    if queue is not None:
        days += " AND queue = :queue"

    def rows(columns: str, table: str) -> list[dict[str, Any]]:
        by = f"GROUP BY {columns}" if columns else ""
        names = f"{columns}, " if columns else ""
        sql = f"SELECT {names}{_SUMS} FROM {table} WHERE {days} {by}"
        return [row.asDict() for row in spark.sql(sql, args=arguments).collect()]

    (whole,) = rows("", "cost_day")
    total = (whole["run_us"] or 0.0) + (whole["lost_us"] or 0.0)
    return Cost(
        version=VERSION,
        run=snapshot.number,
        first=first,
        last=last,
        price=price,
        total=_row(whole, total, price),
        queues=_rows(rows("queue", "cost_day"), total, price),
        kinds=_rows(rows("queue, kind", "cost_day"), total, price),
        tags=_rows(rows("tag", "tag_day"), total, price),
    )


def _rows(rows: Sequence[dict[str, Any]], total: float, price: float | None) -> list[CostRow]:
    found = [_row(row, total, price) for row in rows if row["started"]]
    return sorted(
        found, key=lambda row: (-row.share, row.queue or "", row.kind or "", row.tag or "")
    )


def _row(row: dict[str, Any], total: float, price: float | None) -> CostRow:
    run, lost = row["run_us"] or 0.0, row["lost_us"] or 0.0
    completed = row["completed"] or 0
    return CostRow(
        queue=row.get("queue"),
        kind=row.get("kind"),
        tag=row.get("tag"),
        started=row["started"] or 0,
        completed=completed,
        failures=row["failures"] or 0,
        died=row["died"] or 0,
        run_hours=run / _HOUR,
        lost_hours=lost / _HOUR,
        share=(run + lost) / total if total else 0.0,
        seconds_per_job=(run + lost) / 1e6 / completed if completed else None,
        cost=None if price is None else (run + lost) / _HOUR * price,
    )
