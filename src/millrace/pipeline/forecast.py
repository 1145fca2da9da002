"""Forecast of arrivals and backlog by queue and hour, with the error of a back-test.

The forecast of an hour is the level of the queue times the share of that hour of the week. The
share is the median over the last weeks; the level is the mean of the weeks, in which newer weeks
count more. The back-test repeats the forecast for each of the last weeks with the data before it.
Its weighted absolute percentage error (WAPE) is a part of the result, beside the error of the
seasonal naive forecast: the same hour of the week before. Its quantiles give the band.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from .errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from .snapshot import Snapshot

VERSION: Final = 1
#: Hours of a week, the season.
WEEK: Final = 168
#: Weeks of history, and weeks of the back-test.
MAX_WEEKS: Final = 8
MAX_TESTED: Final = 4
MIN_WEEKS: Final = 2
#: Weight of a week relative to the week after it.
_DECAY: Final = 0.6
#: The share of the time that workers are busy, for the number of workers.
TARGET_LOAD: Final = 0.8
_BAND: Final = (0.1, 0.9)
_HOUR: Final = 3_600_000_000


class HourForecast(msgspec.Struct, kw_only=True, frozen=True):
    """`low` and `high` contain 80 % of the errors of the back-test."""

    at: datetime
    value: float
    low: float
    high: float


class QueueForecast(msgspec.Struct, kw_only=True, frozen=True):
    queue: str
    #: `arrivals`: jobs per hour; `backlog`: ready jobs at the end of the hour.
    metric: str
    weeks: int
    #: Error of the back-test, and of the seasonal naive forecast; null without jobs.
    error: float | None
    naive_error: float | None
    hours: list[HourForecast]
    #: Number of workers at the busiest hour, for arrivals with known run times.
    workers: int | None


class Forecast(msgspec.Struct, kw_only=True, frozen=True):
    version: int
    run: int
    first: datetime
    last: datetime
    queues: list[QueueForecast]
    #: Queues with less than two weeks of history.
    too_short: list[str]


class Series(NamedTuple):
    """Values of consecutive hours; the last one ends at `end`, in hours since 1970."""

    queue: str
    metric: str
    end: int
    values: list[float]
    #: Mean time of an attempt in seconds.
    run: float


class SeriesForecast(NamedTuple):
    series: Series
    values: list[float]
    low: float
    high: float
    error: float | None
    naive_error: float | None


def predicted(values: Sequence[float], hours: int) -> list[float]:
    """The forecast of the hours after a series of at least one week."""
    weeks = len(values) // WEEK
    recent = values[len(values) - weeks * WEEK :]
    parts = [recent[number * WEEK : (number + 1) * WEEK] for number in range(weeks)]
    levels = [sum(part) / WEEK for part in parts]
    weights = [_DECAY ** (weeks - 1 - number) for number in range(weeks)]
    level = sum(map(float.__mul__, weights, map(float, levels))) / sum(weights)
    shares = [
        median(part[hour] / mean for part, mean in zip(parts, levels, strict=True) if mean)
        if any(levels)
        else 0.0
        for hour in range(WEEK)
    ]
    whole = sum(shares) / WEEK
    scale = level / whole if whole else 0.0
    return [scale * shares[hour % WEEK] for hour in range(hours)]


def forecast_series(series: Series, hours: int) -> SeriesForecast:
    """The forecast of one series with the errors of its back-test."""
    values = series.values
    weeks = len(values) // WEEK
    found, naive, actual = [], [], []
    for back in range(min(MAX_TESTED, weeks - 1), 0, -1):
        at = len(values) - back * WEEK
        found += predicted(values[:at], WEEK)
        naive += values[at - WEEK : at]
        actual += values[at : at + WEEK]
    ratios = sorted(
        (true - guess) / guess for true, guess in zip(actual, found, strict=True) if guess
    )
    low, high = (_quantile(ratios, share) for share in _BAND)
    return SeriesForecast(
        series,
        predicted(values, hours),
        min(0.0, low),
        max(0.0, high),
        wape(actual, found),
        wape(actual, naive),
    )


def wape(actual: Sequence[float], found: Sequence[float]) -> float | None:
    """The sum of the absolute errors, divided by the sum of the values."""
    total = sum(actual)
    errors = sum(abs(true - guess) for true, guess in zip(actual, found, strict=True))
    return errors / total if total else None


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def forecast(
    spark: "SparkSession",
    snapshot: "Snapshot",
    end: datetime,
    *,
    hours: int = WEEK,
    queue: str | None = None,
) -> Forecast:
    """Forecast the hours after `end`, a whole hour, with one Spark task per queue and metric."""
    from .views import create_views  # noqa: PLC0415 - the HTTP API uses this module without pyarrow

    create_views(spark, snapshot)
    last = round(end.timestamp()) // 3600
    series = list(_series(spark, last, queue))
    known = [each for each in series if len(each.values) >= MIN_WEEKS * WEEK]
    too_short = sorted({each.queue for each in series} - {each.queue for each in known})
    if not known:
        raise PipelineError(
            f"A forecast needs at least {MIN_WEEKS} weeks of history before {end:%Y-%m-%d %H:%M}."
        )
    context = spark.sparkContext
    made = context.parallelize(known, min(len(known), 64)).map(
        lambda each: forecast_series(each, hours)
    ).collect()  # fmt: skip
    made.sort(key=lambda each: (-sum(each.series.values), each.series.queue, each.series.metric))
    return Forecast(
        version=VERSION,
        run=snapshot.number,
        first=end,
        last=end + timedelta(hours=hours),
        queues=[_queue(each, end) for each in made],
        too_short=too_short,
    )


def _series(spark: "SparkSession", last: int, queue: str | None) -> Iterable[Series]:
    """Arrivals and backlogs of each queue by hour, with zeros for hours without events."""
    where = "WHERE queue = :queue" if queue is not None else ""
    arguments = {} if queue is None else {"queue": queue}
    rows = spark.sql(
        f"""
        SELECT queue, unix_micros(minute) DIV {_HOUR} AS hour, sum(pushed) AS pushed,
            sum(ready) AS ready, sum(completed) AS completed, sum(run_us) AS run_us
        FROM queue_minute {where} GROUP BY queue, hour HAVING hour < {last}
        """,
        args=arguments,
    ).collect()
    by_queue: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_queue.setdefault(row.queue, {})[row.hour] = row
    for name, by_hour in sorted(by_queue.items()):
        start = max(min(by_hour), last - MAX_WEEKS * WEEK)
        depth = float(sum(row.ready for hour, row in by_hour.items() if hour < start))
        arrivals, backlog = [], []
        for hour in range(start, last):
            of_hour = by_hour.get(hour)
            depth += of_hour.ready if of_hour else 0
            arrivals.append(float(of_hour.pushed) if of_hour else 0.0)
            backlog.append(max(0.0, depth))
        completed = sum(row.completed for row in by_hour.values())
        run = sum(row.run_us for row in by_hour.values()) / 1e6 / completed if completed else 0.0
        yield Series(name, "arrivals", last, arrivals, run)
        yield Series(name, "backlog", last, backlog, 0.0)


def _queue(made: SeriesForecast, end: datetime) -> QueueForecast:
    peak = max(made.values, default=0.0)
    needed = peak * (1 + made.high) * made.series.run / 3600 / TARGET_LOAD
    return QueueForecast(
        queue=made.series.queue,
        metric=made.series.metric,
        weeks=len(made.series.values) // WEEK,
        error=made.error,
        naive_error=made.naive_error,
        hours=[
            HourForecast(
                at=end + timedelta(hours=number),
                value=value,
                low=max(0.0, value * (1 + made.low)),
                high=value * (1 + made.high),
            )
            for number, value in enumerate(made.values)
        ],
        workers=-int(-needed // 1) if made.series.run else None,
    )
