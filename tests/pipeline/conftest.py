"""One Spark session for all tests of the pipeline, because its start takes longer than most of
them.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.pipeline import session

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "pipeline"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("PIPELINE") == "all":
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="it takes a minute; `make pipeline` does it"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}
    started = session.start("local[1,4]", memory="1g", quick=True, conf=conf)
    yield started
    started.stop()
