"""One Spark session for all tests of the pipeline: starting it takes longer than most of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from millrace.pipeline import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}
    started = session.start("local[1,4]", memory="1g", quick=True, conf=conf)
    yield started
    started.stop()
