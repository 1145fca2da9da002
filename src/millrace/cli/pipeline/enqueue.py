"""`millrace pipeline enqueue`: every row of some files becomes a job."""

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import typer

from millrace.cli.progress import Bar
from millrace.config import Config
from millrace.pipeline.errors import PipelineError

from . import wiring

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: How often it is looked how far it is, in seconds.
LOOK: Final = 0.5


class Rows(NamedTuple):
    """Which rows, and what they mean."""

    files: list[str]
    form: str
    kind: str | None
    queue: str | None
    jid: str | None
    args: str | None
    load: str | None


def enqueue(config: Config, rows: Rows, url: str | None) -> int:
    wiring.check_format(rows.form)
    given = wiring.options(config, url)
    load = rows.load or f"enqueue-{uuid.uuid4()}"
    before = known(
        given, load
    )  # and before Spark is started, which takes longer, is the server up?
    if before is not None and before["state"] == "released":
        typer.echo(f"The load {load} was released before: nothing was added.")
        return 0
    began = time.monotonic()
    try:
        with wiring.spark(config) as spark:
            frame = _read(spark, rows)
            total = frame.count() if rows.form == "parquet" else 0
            named = {"kind": rows.kind, "queue": rows.queue, "jid": rows.jid, "args": rows.args}
            writer = frame.write.format("millrace").mode("append").options(**given, load=load)
            writer = writer.options(**{key: value for key, value in named.items() if value})
            with Watch(given, load, total):
                writer.save()
    except PipelineError as error:
        raise PipelineError(_unfinished(given, load, error)) from error
    after = known(given, load)
    seconds = time.monotonic() - began
    count = 0 if after is None else after["total"]
    typer.echo(f"{count:,} jobs enqueued in {seconds:.1f} s, as the load {load}.")
    return 0


def _unfinished(given: dict[str, str], load: str, error: PipelineError) -> str:
    """What became of a load that did not come to its end: all, some or none of it may be there."""
    try:
        left = known(given, load)
    except PipelineError:
        left = {"state": "unknown"}  # the server is away
    if left is None or left["state"] == "open":
        return f"no job was enqueued: {error}"
    return (
        f"the load {load} is not whole yet: {error}. `millrace pipeline loads` shows it, and "
        f"`millrace pipeline loads --release {load}` goes on; enqueue the rows again only with "
        f"`--load {load}`, or jobs come twice."
    )


def _read(spark: "SparkSession", rows: Rows) -> "DataFrame":
    reader = spark.read.format(rows.form)
    if rows.form == "csv":
        reader = reader.options(header="true", inferSchema="true")
    return reader.load(rows.files)


def known(given: dict[str, str], load: str) -> dict[str, Any] | None:
    """What the server knows of a load."""
    with wiring.talking(given) as wire:
        found = wire.ask({"loads": True})["loads"]
    return next((each for each in found if each["load"] == load), None)


class Watch:
    """Shows how many jobs are staged, and then how many are released, while Spark works."""

    def __init__(self, given: dict[str, str], load: str, total: int) -> None:
        self._given, self._load, self._total = given, load, total
        self._bar = Bar("enqueue")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._bar.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._bar.__exit__()

    def _look(self) -> None:
        while not self._over.wait(LOOK):
            try:
                load = known(self._given, self._load)
            except PipelineError:
                continue  # whoever does the work will tell
            if load is None:
                continue
            # Each job is moved twice: to the server, and then to its queue.
            released = 0 if load["state"] == "open" else load["total"] - load["staged"]
            self._bar(load["total"] + released, 2 * max(self._total, load["total"]))
