"""`millrace pipeline drain`."""

import time
from typing import TYPE_CHECKING

import typer

from millrace.cli.tables import print_json
from millrace.config import Config

from . import server
from .session import transfer_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def drain(
    config: Config,
    to: str,
    form: str,
    queue: str | None,
    state: str | None,
    url: str | None,
    *,
    json: bool = False,
) -> int:
    server.check_format(form)
    given = server.options(config, url)
    with server.connected(given):
        pass  # fail fast: Spark needs longer to report an unreachable server
    began = time.monotonic()
    chosen = {key: value for key, value in (("queue", queue), ("state", state)) if value}
    with transfer_session(config) as spark:
        from pyspark.sql import Observation, functions  # noqa: PLC0415 - takes half a second to load

        cores = str(spark.sparkContext.defaultParallelism)
        reader = spark.read.format("millrace").options(**given, parts=cores)
        seen = Observation("jobs")
        frame = reader.options(**chosen).load().observe(seen, functions.count("*").alias("rows"))
        _flat(frame, form).write.format(form).options(**_written(form)).save(to)
        rows = seen.get["rows"]
    seconds = time.monotonic() - began
    if json:
        print_json({"jobs": rows, "to": to, "seconds": seconds})
        return 0
    typer.echo(f"Wrote {rows:,} jobs to {to} in {seconds:.1f} s. They remain on the server.")
    return 0


def _written(form: str) -> dict[str, str]:
    """Writer options: times with microseconds, and doubled quotes in CSV."""
    times = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
    return {"csv": {**times, "header": "true", "escape": '"'}, "json": times}.get(form, {})


def _flat(frame: "DataFrame", form: str) -> "DataFrame":
    """Lists as JSON text if the format has no lists."""
    if form != "csv":
        return frame
    from pyspark.sql import functions  # noqa: PLC0415 - takes half a second to load

    lists = [name for name, kind in frame.dtypes if kind.startswith("array")]
    return frame.withColumns({name: functions.to_json(name) for name in lists})
