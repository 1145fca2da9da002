"""Times as integer microseconds since 1970: exact, and faster than Spark's time functions."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


def micros(moment: Column) -> Column:
    return F.unix_micros(moment)


def begin(moment: Column, unit: int) -> Column:
    """Return the start of the minute, hour or day of a time, also for times before 1970."""
    return moment - F.pmod(moment, F.lit(unit))


def day_of(moment: Column) -> Column:
    return F.to_date(F.timestamp_micros(moment))


def span(start: Column, end: Column) -> Column:
    """Return the duration in microseconds; 0 if the end is before the start."""
    return F.greatest(F.lit(0), micros(end) - micros(start))
