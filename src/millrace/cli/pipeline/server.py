"""The server as source and target of jobs: its address and a connection to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from millrace.cli.workers import SignalFailed, target
from millrace.config import Config
from millrace.pipeline.errors import PipelineError
from pyspark_millrace.connection import Refused, ServerAddress, ServerConnection, parse

FORMATS: Final = ("parquet", "json", "csv")


def options(config: Config, url: str | None) -> dict[str, str]:
    """The options of the Spark data source for this server."""
    if url is not None:
        return {"url": url, "password": "" if "@" in url else config.faktory.password}
    try:
        server = target(config, host=None, port=None, tls=False)
    except SignalFailed as error:
        raise PipelineError(f"{error}".replace("--port", "--url")) from error
    found = {"url": f"tcp{'+tls' if server.tls else ''}://{server}", "password": server.password}
    return {**found, "ca": server.certificate} if server.certificate else found


def address(given: dict[str, str]) -> ServerAddress:
    try:
        return parse(given["url"], given["password"], given.get("ca", ""))
    except ValueError as error:
        raise PipelineError(str(error)) from error


@contextmanager
def connected(given: dict[str, str]) -> Iterator[ServerConnection]:
    """A connection to the server. Its errors become PipelineError."""
    where = address(given)
    try:
        with ServerConnection(where) as wire:
            yield wire
    except Refused as error:
        raise PipelineError(f"The server at {where!r} refused the request: {error}") from error
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or error
        raise PipelineError(
            f"Cannot connect to a server at {where!r}: {reason}. Check that it is running, or set "
            "--url."
        ) from error


def check_format(form: str) -> None:
    if form not in FORMATS:
        raise PipelineError(f"--format must be one of {', '.join(FORMATS)}, not {form}.")
