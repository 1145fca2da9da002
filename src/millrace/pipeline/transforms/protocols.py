"""Daily counts by the protocol that pushed the jobs and the protocol that acted on them."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.pipeline.tables import PROTOCOL_DAY

from .conform import conform
from .meanings import count_of, is_completion, is_death, is_failure, is_flush, is_type


def protocol_day(events: DataFrame) -> DataFrame:
    counted = (
        events.filter(~is_flush())
        .groupBy("server", "day", "origin", "actor")
        .agg(
            F.count(F.lit(1)).alias("events"),
            count_of(is_type("pushed")).alias("pushed"),
            count_of(is_type("leased")).alias("leased"),
            count_of(is_completion()).alias("completed"),
            count_of(is_failure()).alias("failures"),
            count_of(is_death()).alias("died"),
        )
    )
    return conform(counted, PROTOCOL_DAY)
