"""Where the server is, for the commands that move jobs between it and Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from millrace.cli.faktory import OrderFailedError, target
from millrace.cli.pipeline.starting import told_in_a_sentence
from millrace.config import Config
from millrace.pipeline import session
from millrace.pipeline.errors import PipelineError
from pyspark_millrace.wire import Address, Connection, Refused, parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS: Final = ("parquet", "json", "csv")
#: A task that fails, as when its connection is cut, is tried again; Spark does so only on clusters.
_HERE: Final = "local[*,4]"


def options(config: Config, url: str | None) -> dict[str, str]:
    """The data source's options for the server that is meant."""
    if url is not None:
        return {"url": url, "password": "" if "@" in url else config.faktory.password}
    try:
        server = target(config, host=None, port=None, tls=False)
    except OrderFailedError as error:
        raise PipelineError(f"{error}".replace("--port", "--url")) from error
    found = {"url": f"tcp{'+tls' if server.tls else ''}://{server}", "password": server.password}
    return {**found, "ca": server.certificate} if server.certificate else found


def address(given: dict[str, str]) -> Address:
    try:
        return parse(given["url"], given["password"], given.get("ca", ""))
    except ValueError as error:
        raise PipelineError(str(error)) from error


@contextmanager
def talking(given: dict[str, str]) -> Iterator[Connection]:
    """A connection to the server; what goes wrong with it is told in one sentence."""
    where = address(given)
    try:
        with Connection(where) as wire:
            yield wire
    except Refused as error:
        raise PipelineError(f"the server at {where!r} answers: {error}") from error
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or error
        raise PipelineError(
            f"cannot talk to a server at {where!r}: {reason}. Is it running there? --url says "
            "where else to look."
        ) from error


@contextmanager
def spark(config: Config) -> Iterator["SparkSession"]:
    """A session whose errors are told by us, in one sentence."""
    chosen = config.pipeline
    memory = f"{chosen.memory >> 20}m"
    started = session.start(chosen.master or _HERE, memory=memory, quick=True)
    with told_in_a_sentence():
        try:
            started.sparkContext.setLogLevel("OFF")
            yield started
        finally:
            started.stop()


def check_format(form: str) -> None:
    if form not in FORMATS:
        raise PipelineError(f"--format must be one of {', '.join(FORMATS)}, not {form}")
