"""Measure the time to build each table with Spark and with DuckDB from the same files.

    python bench/pipeline/table_bench.py -n 1M
    python bench/pipeline/table_bench.py -n 50M --memory 2GiB --tables ingest,queue_day

It generates events in a separate lake, about 100 bytes of disk each, and builds each table from a
quarter, half and all of them. Without DuckDB it measures only Spark.
"""

import re
import shutil
import tempfile
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from measure import STEPS, Benched, bench

from millrace.cli.pipeline import ConfigFile, Master, Memory, run_command, settings
from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.pipeline.session import tables_session
from millrace.config import Config
from millrace.pipeline.errors import PipelineError

_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_TIMES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_LEAST: Final = 10_000


def amount(text: str) -> int:
    """A number as `200k` or `50M`."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise PipelineError(f"{text!r} is no number of events: say it as 200k or 50M")
    number = int(float(match[1]) * _TIMES[match[2].lower()])
    if number < _LEAST:
        raise PipelineError(f"{text!r} is too few: from {_LEAST:,} events on it says something")
    return number


def run(
    config: Config, events: str, tables: Sequence[str], keep: Path | None, *, as_json: bool
) -> int:
    """Measure, and say what came of it."""
    number = amount(events)
    chosen = [name for each in tables for name in each.split(",")] or STEPS
    scratch = keep or Path(tempfile.mkdtemp(prefix="millrace-bench-"))
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise PipelineError(f"{keep} is not empty: name a folder that is, or is not there yet")
    if not util.find_spec("duckdb"):
        typer.echo(
            "DuckDB is not installed: only Spark is measured. `pip install duckdb`", err=True
        )
    try:
        with StepProgress() as steps:
            steps("start Spark", 0, 0)
            with tables_session(config, events=number) as spark:
                found = bench(spark, scratch, number, steps, tables=chosen)
    except KeyboardInterrupt:
        return 130
    finally:
        if keep is None:
            shutil.rmtree(scratch, ignore_errors=True)
    typer.echo(as_document(found) if as_json else as_text(found))
    return 0


def as_document(found: Benched) -> str:
    return msgspec.json.format(msgspec.json.encode(found)).decode()


_HEAD: Final = (
    ("", "Spark, M ev/s", "", "", "DuckDB", "", "CPU s/M", "", "peak GiB", "", "cost"),
    ("", "N/4", "N/2", "N", "N", "ratio", "Spark", "DuckDB", "Java", "DuckDB", "/event"),
)
_ABOUT: Final = """
ratio: how many times as long as DuckDB Spark takes. cost/event: Spark's with all events,
relative to a quarter of them: about 1 is linear. DuckDB's ingest only divides by day;
Spark's also checks every row."""


def as_text(found: Benched) -> str:
    """A line for each table: how fast at each size, and what the largest cost."""
    names = dict.fromkeys(each.table for each in found.measured)
    rate = found.events / found.generated.seconds / 1e6
    rows = [_HEAD[1], *(_cells(found, name) for name in names)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEAD[1]))]
    return "\n".join(
        (
            f"N = {found.events:,} events, made at {rate:.2f} M/s; {found.cores} cores",
            "",
            _spanned(_HEAD[0], widths),
            *(_aligned(row, widths) for row in rows),
            _ABOUT,
        )
    )


def _cells(found: Benched, name: str) -> tuple[str, ...]:
    sizes = found.of(name)
    last = sizes[-1]
    millions, duckdb = last.events / 1e6, last.duckdb
    return (
        name,
        *(f"{each.events / each.spark.seconds / 1e6:.2f}" for each in sizes),
        "" if duckdb is None else f"{millions / duckdb.seconds:.2f}",
        "" if duckdb is None else f"{last.ratio:.1f}",
        f"{last.spark.cpu / millions:.2f}",
        "" if duckdb is None else f"{duckdb.cpu / millions:.2f}",
        _gib(last.spark.peak),
        "" if duckdb is None else _gib(duckdb.peak),
        f"{found.growth(name):.2f}",
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}" if size else ""


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    return "  ".join((row[0].ljust(len(first)), *rest))


def _spanned(row: Sequence[str], widths: Sequence[int]) -> str:
    """A line whose titles stand over the columns until the next one."""
    line, begins = "", 0
    for cell, width in zip(row, widths, strict=True):
        if cell:
            line = line.ljust(begins) + cell
        begins += width + 2
    return line


def main(
    events: Annotated[str, typer.Option("--events", "-n", help="Number of events.")] = "10M",
    tables: Annotated[
        list[str] | None, typer.Option(help="Only these tables, such as `ingest,queue_day`.")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Folder for the lake, which is kept. Default: a temporary folder."),
    ] = None,
    config: ConfigFile = None,
    master: Master = None,
    memory: Memory = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the time to build each table with Spark and with DuckDB."""
    chosen = settings(config, master=master, memory=memory)
    run_command(lambda: run(chosen, events, tables or (), keep, as_json=as_json))


if __name__ == "__main__":
    typer.run(main)
