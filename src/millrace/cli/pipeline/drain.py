"""`millrace pipeline drain`: jobs with their results and failures, as files."""

import time
from typing import TYPE_CHECKING

import typer

from millrace.config import Config

from . import wiring

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def drain(
    config: Config, to: str, form: str, queue: str | None, state: str | None, url: str | None
) -> int:
    wiring.check_format(form)
    given = wiring.options(config, url)
    with wiring.talking(given):
        pass  # the server is there; Spark takes longer to say that it is not
    began = time.monotonic()
    chosen = {key: value for key, value in (("queue", queue), ("state", state)) if value}
    with wiring.spark(config) as spark:
        from pyspark.sql import Observation, functions  # noqa: PLC0415 - it costs half a second

        cores = str(spark.sparkContext.defaultParallelism)
        reader = spark.read.format("millrace").options(**given, parts=cores)
        seen = Observation("jobs")
        frame = reader.options(**chosen).load().observe(seen, functions.count("*").alias("rows"))
        _flat(frame, form).write.format(form).options(**_written(form)).save(to)
        rows = seen.get["rows"]
    seconds = time.monotonic() - began
    typer.echo(f"{rows:,} jobs written to {to} in {seconds:.1f} s. They are still on the server.")
    return 0


def _written(form: str) -> dict[str, str]:
    """How text is written: moments to the microsecond, and quotes as most readers of CSV want."""
    moments = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
    return {"csv": {**moments, "header": "true", "escape": '"'}, "json": moments}.get(form, {})


def _flat(frame: "DataFrame", form: str) -> "DataFrame":
    """Lists as JSON text, where a file cannot have lists."""
    if form != "csv":
        return frame
    from pyspark.sql import functions  # noqa: PLC0415 - it costs half a second

    lists = [name for name, kind in frame.dtypes if kind.startswith("array")]
    return frame.withColumns({name: functions.to_json(name) for name in lists})
