"""Measure the pipeline in one run: refreshes with Spark, and the same tables with DuckDB and
DataFusion, by number of events.

    python bench/pipeline/table_bench.py -n 2M -n 8M -n 16M
    python bench/pipeline/table_bench.py -n 100M --memory 2g --step all --step warm

Every step runs in its own process. It generates events in a temporary lake, about 60 bytes of disk
each with the tables. CPU-seconds include Java and its compiler.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from generate import Generator, Plan, plan
from measure import FEW_EVENTS, SEED, STEPS, Cost, ship_more

from millrace.pipeline import class_archive

sys.path.insert(0, str(Path(__file__).parents[1]))
from machine import describe

_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_TIMES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
MIN_EVENTS: Final = 10_000


def amount(text: str) -> int:
    """A number such as `200k` or `50M`."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a number of events such as 200k or 50M.")
    number = int(float(match[1]) * _TIMES[match[2].lower()])
    if number < MIN_EVENTS:
        raise typer.BadParameter(f"{text!r} is too few: the minimum is {MIN_EVENTS:,} events.")
    return number


def as_line(size: int, name: str, cost: Cost) -> str:
    million = f"{cost.per_million:8.2f}" if cost.events > MIN_EVENTS * 2 else f"{'':8}"
    return (
        f"{size / 1e6:6.1f} M  {name:10} {cost.name:22} {cost.events:12,} events {cost.cpu:8.2f} "
        f"CPU s {million} per M {cost.seconds:8.2f} s {cost.peak / (1 << 30):5.2f} GiB "
        f"{cost.jobs:3} jobs"
    )


def measure(
    number: int, memory: str, steps: Sequence[str], scratch: Path
) -> Iterator[tuple[str, Cost]]:
    """Generate a lake, and run the steps on it."""
    planned, lake = plan(number), scratch / "lake"
    Generator(planned, SEED).ship(lake, range(planned.files), lambda *_: None)
    for step in STEPS:
        if step not in steps:
            continue
        environ = dict(os.environ)
        if step in {"cold", "archive"}:
            planned = ship_more(lake, planned, FEW_EVENTS)
            if step == "archive":
                class_archive.create()
            else:
                environ[class_archive.VARIABLE] = ""
        yield step, _step(step, lake, memory, planned, environ)


def _step(name: str, lake: Path, memory: str, planned: Plan, environ: dict[str, str]) -> Cost:
    """Run a step in its own process."""
    code = Path(__file__).with_name("measure.py")
    command = [sys.executable, code, name, lake, memory, msgspec.json.encode(planned)]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Cost)


def main(
    events: Annotated[
        list[str], typer.Option("-n", "--events", help="Number of events. May be repeated.")
    ],
    memory: Annotated[str, typer.Option(help="Heap size of Spark.")] = "2g",
    step: Annotated[
        list[str] | None, typer.Option(help=f"Only these steps: {', '.join(STEPS)}.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Where the lake is generated.")] = None,
) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="millrace-bench-", dir=folder))
    try:
        for name, fact in describe(scratch).items():
            typer.echo(f"{name:12} {fact}")
        for text in events:
            for name, cost in measure(amount(text), memory, step or list(STEPS), scratch):
                typer.echo(as_line(amount(text), name, cost))
                sys.stdout.flush()
            shutil.rmtree(scratch / "lake")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    typer.run(main)
