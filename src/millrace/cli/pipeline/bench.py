"""`millrace pipeline bench`."""

import re
import shutil
import tempfile
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from typing import Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from millrace.cli.pipeline.progress import Steps
from millrace.cli.pipeline.starting import started
from millrace.pipeline.bench.measuring import STEPS, Benched, bench
from millrace.pipeline.errors import PipelineError
from millrace.server.config import Config

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
    number, chosen = amount(events), tuple(tables) or STEPS
    scratch = keep or Path(tempfile.mkdtemp(prefix="millrace-bench-"))
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise PipelineError(f"{keep} is not empty: name a folder that is, or is not there yet")
    if not util.find_spec("duckdb"):
        typer.echo(
            "DuckDB is not installed: only Spark is measured. `pip install duckdb`", err=True
        )
    try:
        with Steps() as steps:
            steps("start Spark", 0, 0)
            with started(config, events=number) as spark:
                found = bench(spark, scratch, number, steps, tables=chosen)
    finally:
        if keep is None:
            shutil.rmtree(scratch, ignore_errors=True)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        Console().print(told(found))
        typer.echo(summary(found))
    return 0


def told(found: Benched) -> Table:
    """A row for each table: events a second at each size, and what the largest cost."""
    first = found.of(found.measured[0].table)
    table = Table(title=f"{found.events:,} events, {found.cores} cores")
    table.add_column("table")
    for size in _sizes(found, first):
        table.add_column(f"Spark\nevents/s\nat {size}", justify="right")
    for title in ("DuckDB\nevents/s", "Spark/\nDuckDB", "Spark\nCPU s/M", "DuckDB\nCPU s/M",
                  "Java\npeak", "DuckDB\npeak", "cost per\nevent"):  # fmt: skip
        table.add_column(title, justify="right")
    for name in dict.fromkeys(each.table for each in found.measured):
        table.add_row(name, *_cells(found, name))
    return table


def _cells(found: Benched, name: str) -> list[str]:
    all_sizes = found.of(name)
    last = all_sizes[-1]
    millions = last.events / 1e6
    duckdb = last.duckdb
    return [
        *(f"{each.events / each.spark.seconds / 1e6:.2f} M" for each in all_sizes),
        "" if duckdb is None else f"{last.events / duckdb.seconds / 1e6:.2f} M",
        "" if last.ratio is None else f"{last.ratio:.1f}",
        f"{last.spark.cpu / millions:.2f}",
        "" if duckdb is None else f"{duckdb.cpu / millions:.2f}",
        _gib(last.spark.peak),
        "" if duckdb is None else _gib(duckdb.peak),
        f"\u00d7 {found.growth(name):.2f}",
    ]


def _sizes(found: Benched, measured: Sequence[object]) -> list[str]:
    shares = (4, 2, 1)[-len(measured) :]
    return [f"{found.events / share / 1e6:.3g} M" for share in shares]


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size else ""


def summary(found: Benched) -> str:
    rate = found.events / found.generated.seconds / 1e6
    return (
        f"Events were made at {rate:.2f} M/s. `cost per event` is Spark's at the full size,\n"
        "relative to a quarter of it: about 1 is linear. DuckDB's ingest only divides by\n"
        "day; Spark's also checks every row."
    )
