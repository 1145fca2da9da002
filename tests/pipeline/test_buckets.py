"""Percentiles of buckets: by nearest rank, within 1 % of the true ones, however rows are divided."""

import math
from random import Random

import pytest
from pyspark.sql import SparkSession

from millrace.pipeline import buckets
from millrace.pipeline.buckets import Bucket, bucket_of, merged, middle, percentiles

PERCENTS = (1, 50, 90, 95, 99, 100)


def rows_of(spans: list[int]) -> list[Bucket]:
    return merged(Bucket(bucket_of(us), 1, us, us) for us in spans)


def spans(seed: int, count: int) -> list[int]:
    random = Random(seed)
    return [int(10 ** random.uniform(0, 13)) for _ in range(count)]


def nearest_rank(values: list[int], percent: int) -> int:
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]


@pytest.mark.parametrize("count", [1, 2, 7, 100, 1001])
def test_percentiles_are_within_one_percent(count):
    values = spans(count, count)
    rows = rows_of(values)
    for percent, found in zip(PERCENTS, percentiles(rows, PERCENTS), strict=True):
        assert found == pytest.approx(nearest_rank(values, percent), rel=0.01)


def test_rows_can_be_added():
    values = spans(1, 500)
    parts = [*rows_of(values[:100]), *rows_of(values[100:101]), *rows_of(values[101:])]
    assert merged(parts) == rows_of(values)


def test_a_percentile_is_within_the_observed_range():
    assert percentiles([Bucket(bucket_of(1000), 3, 1000, 1000)], [50]) == [1000]
    assert percentiles([], [50]) == []


def test_a_time_of_zero_is_in_the_first_bucket():
    assert bucket_of(0) == bucket_of(1) == bucket_of(-5) == 0
    assert middle(0) == pytest.approx(math.sqrt(1.02))


def test_sql_gives_the_same_result(spark: SparkSession) -> None:
    values = [0, 1, 2, 49, 50, 51, *spans(3, 100), (1 << 63) - 1]
    frame = spark.createDataFrame([(us,) for us in values], "us BIGINT")
    number = buckets.bucket_sql("us")
    duration = buckets.value_sql(number, "0", f"{1 << 62}L")
    for us, bucket, value in frame.selectExpr("us", number, duration).collect():
        assert bucket == bucket_of(us)
        assert value == pytest.approx(min(middle(bucket), 1 << 62))
