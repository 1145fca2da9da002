"""Spark sessions of the commands, and errors of Spark as one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.config import Config
from millrace.pipeline import session
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.resident import Request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Below this number of events, Java's optimizing compiler costs more time than it saves.
QUICK_LIMIT: Final = 3_000_000
#: Spark retries failed tasks only on clusters; these commands retry a cut connection locally too.
_LOCAL_MASTER: Final = "local[*,4]"


@contextmanager
def tables_session(config: Config, *, events: int = 0) -> Iterator["SparkSession"]:
    """A session for work on this number of events."""
    memory = config.pipeline.memory
    spark = session.start(config.pipeline.master, memory=memory, quick=events < QUICK_LIMIT)
    with spark_errors():
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def transfer_session(config: Config) -> Iterator["SparkSession"]:
    """A session that moves jobs between files and the server."""
    memory = config.pipeline.memory
    spark = session.start(config.pipeline.master or _LOCAL_MASTER, memory=memory, quick=True)
    with spark_errors():
        try:
            spark.sparkContext.setLogLevel("OFF")
            yield spark
        finally:
            spark.stop()


@contextmanager
def spark_errors() -> Iterator[None]:
    """Convert errors of Spark to PipelineError."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415 - loads Spark

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(session.first_line(error)) from error


def resident_request(
    config: Config, operation: str, lake: Path, *, query: str = "", limit: int = 0
) -> Request:
    """A request to the resident Spark process of the data folder."""
    memory, master = str(config.pipeline.memory), config.pipeline.master
    return Request(operation, str(lake.absolute()), memory, master, query, limit)
