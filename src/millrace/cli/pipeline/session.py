"""Spark sessions of the commands, and errors of Spark as one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from millrace.config import Config
from millrace.pipeline import session
from millrace.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIB: Final = 1 << 20
#: Below this number of events, Java's optimizing compiler costs more time than it saves.
QUICK_LIMIT: Final = 1_000_000
#: Spark retries failed tasks only on clusters; these commands retry a cut connection locally too.
_LOCAL_MASTER: Final = "local[*,4]"
_PYTHON_ERROR: Final = re.compile(r"^[\w.]*(?:Error|Refused|Lost|Exception): (.+)$", re.MULTILINE)


@contextmanager
def tables_session(config: Config, *, events: int = 0) -> Iterator["SparkSession"]:
    """A session for work on this number of events."""
    memory = f"{config.pipeline.memory // _MIB}m"
    spark = session.start(config.pipeline.master, memory=memory, quick=events < QUICK_LIMIT)
    with spark_errors():
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def transfer_session(config: Config) -> Iterator["SparkSession"]:
    """A session that moves jobs between files and the server."""
    memory = f"{config.pipeline.memory // _MIB}m"
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
        raise PipelineError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    """The message of our own code in a task, otherwise Spark's first line."""
    text = str(error)
    messages: list[str] = _PYTHON_ERROR.findall(text)
    return messages[-1].strip() if messages else text.strip().splitlines()[0]
