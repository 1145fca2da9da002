"""The cost of journal shipping: durable cycles per second with and without it, in one run.

Run as `make bench-shipping` or `.venv/bin/python bench/shipper.py`; see bench/README.md.
"""

import argparse
import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from load import Load, LoadError, Outcome, run
from machine import describe, stop_on_sigterm
from millrace.admin.client import request
from modes import RefusedError
from servers import CLOCK_TICKS, Running, StartError, choose, running, scratch

WARMUP = 2.0
EXPECTED = 0.9
OFF, ON = "off", "on"
#: About the time of 100,000 events at this rate. With the default, a run of 30 seconds would not
#: ship.
EVERY = "5s"


@dataclasses.dataclass(frozen=True)
class Measured:
    """One run, and the state of the lake at its end."""

    outcome: Outcome
    shipped: int
    waiting: int
    files: int
    #: CPU seconds of the shipper.
    cpu: float


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="measured per run (12)")
    parser.add_argument("--connections", type=int, default=64, help="in all processes (64)")
    parser.add_argument("--processes", type=int, default=2, help="of the generator (2)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, interleaved (3)")
    parser.add_argument("--events", type=int, default=0, help="ship_events, if not the default")
    parser.add_argument("--protocol", default="millrace", help="faktory's; or workq, qless, ...")
    parser.add_argument("--dir", default="", help="where the servers keep their data (./data)")
    parser.add_argument("--json", default="", metavar="FILE", help="write every run there as well")
    options = parser.parse_args()
    if options.seconds <= 0 or options.repeat < 1 or options.connections < options.processes:
        parser.error("--seconds and --repeat must be above 0, --connections at least --processes")
    return options


def measure(options: argparse.Namespace, folder: Path, kind: str) -> Measured:
    (server,) = choose(f"{options.protocol}-fsync")
    settings = {"MILLRACE_LAKE_SHIP_EVERY": "0" if kind == OFF else EVERY}
    if options.events:
        settings["MILLRACE_LAKE_SHIP_EVENTS"] = str(options.events)
    with running(server, folder, settings) as started:
        load = Load(
            mode=server.mode,
            port=started.port,
            connections=options.connections,
            processes=options.processes,
            seconds=options.seconds,
            warmup=WARMUP,
            preload=max(200, options.connections),
        )
        outcome = run(load, started.cpu_seconds)
        state = journal(folder / "data")
        cpu = shipper_cpu(started)
    if kind == ON and not state["files"]:
        raise LoadError(f"no events were shipped: {state['failing'] or 'it took too long'}")
    return Measured(outcome, state["next_shipped"] - 1, state["events"], state["files"], cpu)


def journal(data: Path) -> dict[str, Any]:
    """The shipping status of the server."""
    (reply,) = request(data / "control", {"journal": True})
    found: dict[str, Any] = json.loads(bytes(reply))
    return found


def shipper_cpu(started: Running) -> float:
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    total = 0
    for child in children:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / CLOCK_TICKS


def best(runs: list[Measured]) -> Measured:
    """The run with the most cycles, because other load can only reduce a result."""
    return max(runs, key=lambda each: each.outcome.rate)


def ratios(runs: dict[str, list[Measured]]) -> list[float]:
    """The ratio of each pair of neighbouring runs, because other load mostly affects both of a
    pair.
    """
    pairs = zip(runs[ON], runs[OFF], strict=True)
    return sorted(on.outcome.rate / off.outcome.rate for on, off in pairs)


def show(console: Console, runs: dict[str, list[Measured]]) -> None:
    table = Table(title="best run of each by cycles/s", title_justify="left")
    table.add_column("shipping")
    heads = (
        "cycles/s",
        "lowest",
        "server CPU µs/cycle",
        "shipped",
        "waiting",
        "files",
        "CPU µs/event",
    )
    for head in heads:
        table.add_column(head, justify="right")
    for kind, measured in runs.items():
        found = best(measured)
        each = f"{found.cpu / found.shipped * 1e6:.1f}" if found.shipped else ""
        table.add_row(
            kind,
            f"{found.outcome.rate:,.0f}",
            f"{min(run.outcome.rate for run in measured):,.0f}",
            f"{found.outcome.cpu_per_cycle * 1e6:,.1f}",
            f"{found.shipped:,}",
            f"{found.waiting:,}",
            f"{found.files:,}",
            each,
        )  # fmt: skip
    console.print()
    console.print(table)
    console.print(f"cycles/s with shipping over without: {verdict(runs)}", highlight=False)


def verdict(runs: dict[str, list[Measured]]) -> str:
    value = best(runs[ON]).outcome.rate / best(runs[OFF]).outcome.rate
    all_of_them = ", ".join(f"{each:.2f}" for each in ratios(runs))
    reached = "reached" if value >= EXPECTED else "not reached"
    return f"{value:.2f} of the best (pairs: {all_of_them}); expected {EXPECTED:g}: {reached}"


def record(
    facts: dict[str, str], options: argparse.Namespace, runs: dict[str, list[Measured]]
) -> dict[str, Any]:
    return {
        "machine": facts,
        "settings": vars(options) | {"warmup": WARMUP},
        "runs": {kind: [dataclasses.asdict(each) for each in runs[kind]] for kind in runs},
        "ratio": best(runs[ON]).outcome.rate / best(runs[OFF]).outcome.rate,
        "pairs": ratios(runs),
    }


def main() -> int:
    options = arguments()
    stop_on_sigterm()
    console = Console(width=None if sys.stdout.isatty() else 120)
    runs: dict[str, list[Measured]] = {OFF: [], ON: []}
    with scratch(options.dir) as folder:
        facts = describe(folder)
        for name, fact in facts.items():
            console.print(f"{name + ':':<13}{fact}", highlight=False, markup=False)
        for number in range(options.repeat):
            for kind in (OFF, ON) if number % 2 == 0 else (ON, OFF):
                try:
                    measured = measure(options, folder / f"{kind}-{number}", kind)
                except (StartError, LoadError, RefusedError, OSError) as error:
                    console.print(f"{kind}: failed: {error}", style="red", markup=False)
                    return 1
                runs[kind].append(measured)
                rate = measured.outcome.rate
                console.print(f"shipping {kind:<4}{rate:>9,.0f} cycles/s", highlight=False)
    show(console, runs)
    if options.json:
        Path(options.json).write_text(json.dumps(record(facts, options, runs), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
