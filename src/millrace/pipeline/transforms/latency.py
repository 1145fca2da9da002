"""Histograms of wait and run times, with buckets that can be added."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.pipeline.buckets import bucket
from millrace.pipeline.tables import LATENCY_HIST

from .conform import conform
from .meanings import is_completion, is_type


def latency_hist(events: DataFrame) -> DataFrame:
    is_lease = is_type("leased")
    us = F.col("us")
    spans = events.filter(is_lease | is_completion()).select(
        "server",
        "day",
        "queue",
        "kind",
        F.when(is_lease, "wait").otherwise("run").alias("metric"),
        F.when(is_lease, F.col("wait_us")).otherwise(F.col("run_us")).alias("us"),
    )
    counted = (
        spans.filter(us.isNotNull())
        .groupBy("server", "day", "queue", "kind", "metric", bucket(us).alias("bucket"))
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.sum(us.cast("DOUBLE")).alias("sum_us"),
            F.sum(us.cast("DOUBLE") * us.cast("DOUBLE")).alias("sumsq"),
            F.min(us).alias("min_us"),
            F.max(us).alias("max_us"),
        )
    )
    return conform(counted, LATENCY_HIST)
