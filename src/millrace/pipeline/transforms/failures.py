"""Failures with the same fingerprint and the first one of each day as a sample.

The fingerprint is the same for errors that differ only in numbers and names.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.pipeline.tables import FAILURE_GROUPS

from .conform import conform
from .meanings import count_of, is_death, is_failure, is_type

_GROUP = ("server", "day", "fingerprint", "queue", "kind")


def failure_groups(events: DataFrame) -> DataFrame:
    failed = events.filter(F.col("fingerprint").isNotNull() & (is_failure() | is_type("doomed")))
    # Group by job first, so that the aggregation state contains only numbers and no text is sorted.
    by_job = failed.groupBy(*_GROUP, "seq").agg(
        F.count(F.lit(1)).alias("n"),
        count_of(is_death()).alias("died"),
        F.min("time").alias("first_seen"),
        F.max("time").alias("last_seen"),
        F.min("event_id").alias("sample_event"),
    )
    groups = by_job.groupBy(*_GROUP).agg(
        F.sum("n").alias("n"),
        F.count(F.lit(1)).alias("jobs"),
        F.sum("died").alias("died"),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
        F.min("sample_event").alias("sample_event"),
    )
    samples = failed.select(
        "server",
        F.col("event_id").alias("sample_event"),
        "error_group",
        F.col("seq").alias("sample_seq"),
        F.col("jid").alias("sample_jid"),
        F.col("error_message").alias("sample_message"),
    )
    return conform(groups.join(samples, ["server", "sample_event"], "inner"), FAILURE_GROUPS)
