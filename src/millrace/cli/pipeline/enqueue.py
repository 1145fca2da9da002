"""`millrace pipeline enqueue`."""

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import typer

from millrace.cli.output import ProgressBar
from millrace.cli.tables import print_json
from millrace.config import Config
from millrace.pipeline.errors import PipelineError

from . import server
from .session import transfer_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Seconds between two updates of the progress bar.
PROGRESS_INTERVAL: Final = 0.5


class Rows(NamedTuple):
    """The rows to push and their interpretation."""

    files: list[str]
    form: str
    kind: str | None
    queue: str | None
    jid: str | None
    args: str | None
    load: str | None


def enqueue(config: Config, rows: Rows, url: str | None, *, json: bool = False) -> int:
    server.check_format(rows.form)
    given = server.options(config, url)
    load = rows.load or f"enqueue-{uuid.uuid4()}"
    before = known(given, load)  # fail fast: starting Spark takes longer
    if before is not None and before["state"] == "released":
        if json:
            print_json({"load": load, "jobs": 0, "seconds": 0})
        else:
            typer.echo(f"Load {load} was already released; no jobs added.")
        return 0
    began = time.monotonic()
    try:
        with transfer_session(config) as spark:
            frame = _read(spark, rows)
            total = frame.count() if rows.form == "parquet" else 0
            named = {"kind": rows.kind, "queue": rows.queue, "jid": rows.jid, "args": rows.args}
            writer = frame.write.format("millrace").mode("append").options(**given, load=load)
            writer = writer.options(**{key: value for key, value in named.items() if value})
            with LoadProgress(given, load, total):
                writer.save()
    except PipelineError as error:
        raise PipelineError(_unfinished(given, load, error)) from error
    after = known(given, load)
    seconds = time.monotonic() - began
    count = 0 if after is None else after["total"]
    if json:
        print_json({"load": load, "jobs": count, "seconds": seconds})
        return 0
    typer.echo(f"Pushed {count:,} jobs in {seconds:.1f} s as load {load}.")
    return 0


def _unfinished(given: dict[str, str], load: str, error: PipelineError) -> str:
    """Describe an unfinished load: all, some or none of its jobs may be on the server."""
    try:
        left = known(given, load)
    except PipelineError:
        left = {"state": "unknown"}  # the server is unreachable
    if left is None or left["state"] == "open":
        return f"No jobs pushed: {error}"
    return (
        f"Load {load} is incomplete: {error}. `millrace pipeline loads` shows it. Resume it with "
        f"`millrace pipeline loads --release {load}`. To push the rows again, use `--load {load}`; "
        "otherwise jobs are duplicated."
    )


def _read(spark: "SparkSession", rows: Rows) -> "DataFrame":
    reader = spark.read.format(rows.form)
    if rows.form == "csv":
        reader = reader.options(header="true", inferSchema="true")
    return reader.load(rows.files)


def known(given: dict[str, str], load: str) -> dict[str, Any] | None:
    """The state of a load on the server."""
    with server.connected(given) as wire:
        found = wire.ask({"loads": True})["loads"]
    return next((each for each in found if each["load"] == load), None)


class LoadProgress:
    """Shows the number of staged and released jobs while Spark runs."""

    def __init__(self, given: dict[str, str], load: str, total: int) -> None:
        self._given, self._load, self._total = given, load, total
        self._bar = ProgressBar("enqueue")
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
        while not self._over.wait(PROGRESS_INTERVAL):
            try:
                load = known(self._given, self._load)
            except PipelineError:
                continue  # the load itself reports the error
            if load is None:
                continue
            # Each job counts twice: when it is staged, and when it is released.
            released = 0 if load["state"] == "open" else load["total"] - load["staged"]
            self._bar(load["total"] + released, 2 * max(self._total, load["total"]))
