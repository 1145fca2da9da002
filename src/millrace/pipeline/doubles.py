"""Checks landing files that do not match their names or that overlap with other files.

Each row is compared with the name of its file, with the other rows, and with earlier events. If
several rows have the same event number, one row of the file with the lowest name is used.
Events that were ingested earlier have priority.
"""

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from millrace.journal import schema

from . import events
from .given import frame
from .inspection import Inspected
from .lake import Lake
from .reasons import CONFLICT, DUPLICATE, OUTSIDE, STRANGER
from .rules import Rule, reasons, rules

_NAMED = "file STRING, named STRING, first BIGINT, last BIGINT"
_KEY = ("server", "event_id")


def judged(spark: SparkSession, lake: Lake, rows: DataFrame, files: list[Inspected]) -> DataFrame:
    """Return the rows with the reasons for rejecting them; the list is empty for events."""
    names = [(each.name, *each.landed) for each in files]
    named = rows.join(F.broadcast(frame(spark, _NAMED, names)), "file", "left")
    checked = named.withColumn("alone", reasons([*rules(), *_of_its_file()]))
    first = Window.partitionBy(*_KEY, F.size("alone") == 0).orderBy("file", "content")
    ranked = (
        checked.withColumn("content", _content())
        .withColumn("place", F.row_number().over(first))
        .withColumn("kept", F.first("content").over(first))
        .join(_before(spark, lake, files), list(_KEY), "left")
    )
    there = F.coalesce("earlier", F.when(F.col("place") > 1, F.col("kept")))
    again = [
        Rule(DUPLICATE, there.eqNullSafe(F.col("content"))),
        Rule(CONFLICT, F.coalesce(there != F.col("content"), F.lit(False))),
    ]
    told = F.when(F.size("alone") > 0, F.col("alone")).otherwise(reasons(again))
    return ranked.select(*schema.NAMES, told.alias("reasons"), "file")


def _of_its_file() -> list[Rule]:
    number = F.col("event_id")
    outside = ~number.between(F.col("first"), F.col("last"))
    return [
        Rule(OUTSIDE, F.coalesce(outside, F.lit(False))),
        Rule(STRANGER, F.coalesce(F.col("server") != F.col("named"), F.lit(False))),
    ]


def _content() -> Column:
    """Return a hash of a row. The null flags are included because the hash function skips nulls."""
    nulls = (F.col(name).isNull() for name in schema.NAMES)
    return F.xxhash64(*schema.NAMES, *nulls)


def _before(spark: SparkSession, lake: Lake, files: list[Inspected]) -> DataFrame:
    """Return the content hashes of earlier events with the same servers and event numbers."""
    is_near = F.lit(False)
    for server, first, last in (each.landed for each in files):
        is_near |= (F.col("server") == server) & F.col("event_id").between(first, last)
    earlier = events.read(spark, lake).where(is_near)
    return earlier.select(*_KEY, _content().alias("earlier"))
