"""Spark as the configuration wants it."""

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
#: Below, what Java's better compiler wins is less than what it costs.
QUICK: Final = 1_000_000
_PYTHON_SAYS: Final = re.compile(r"^[\w.]*(?:Error|Refused|Lost|Exception): (.+)$", re.MULTILINE)


def start(config: Config, *, events: int = 0) -> "SparkSession":
    """A session for work on so many events."""
    return session.start(
        config.pipeline.master,
        memory=f"{config.pipeline.memory // _MIB}m",
        quick=events < QUICK,
    )


@contextmanager
def started(config: Config, *, events: int = 0) -> Iterator["SparkSession"]:
    """The same, stopped at the end; what Spark cannot do is told in one sentence."""
    spark = start(config, events=events)
    with told_in_a_sentence():
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def told_in_a_sentence() -> Iterator[None]:
    """Turn errors of Spark into ours."""
    # Spark is loaded when somebody comes here.
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(_sentence(error)) from error


def _sentence(error: Exception) -> str:
    """What our own code said in a task, or else Spark's first line."""
    text = str(error)
    said: list[str] = _PYTHON_SAYS.findall(text)
    return said[-1].strip() if said else text.strip().splitlines()[0]
