"""Spark as the configuration wants it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from millrace.pipeline import session
from millrace.server.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIB: Final = 1 << 20
#: Below, what Java's better compiler wins is less than what it costs.
QUICK: Final = 1_000_000


def start(config: Config, *, events: int = 0) -> "SparkSession":
    """A session for work on so many events."""
    return session.start(
        config.pipeline.master,
        memory=f"{config.pipeline.memory // _MIB}m",
        quick=events < QUICK,
    )


@contextmanager
def started(config: Config, *, events: int = 0) -> Iterator["SparkSession"]:
    """The same, stopped at the end."""
    spark = start(config, events=events)
    try:
        yield spark
    finally:
        spark.stop()
