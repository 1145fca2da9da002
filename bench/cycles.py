"""Job cycles per second, latency and CPU per cycle of Millrace, beanstalkd and redis-server.

Run as `make bench` or `.venv/bin/python bench/cycles.py`; bench/README.md explains the figures.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from load import Load, LoadError, Outcome, run
from machine import describe, stop_on_sigterm
from modes import RefusedError
from servers import NotInstalledError, Server, StartError, choose, running, scratch

WARMUP = 1.0


@dataclasses.dataclass(frozen=True)
class Ratio:
    """One of the expectations: a figure of Millrace over the same figure of another server."""

    text: str
    ours: str
    theirs: str
    figure: str
    expected: float


RATIOS = (
    Ratio("durable cycles/s over beanstalkd -f0", "millrace-fsync", "beanstalkd-f0", "rate", 10),
    Ratio(
        "durable cycles per CPU-second over beanstalkd in memory",
        "millrace-fsync",
        "beanstalkd-memory",
        "cycles_per_cpu_second",
        0.35,
    ),
    Ratio(
        "cycles per CPU-second without durability over beanstalkd in memory",
        "millrace-memory",
        "beanstalkd-memory",
        "cycles_per_cpu_second",
        0.6,
    ),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="measured per run (8)")
    parser.add_argument("--connections", type=int, default=64, help="in all processes (64)")
    parser.add_argument("--processes", type=int, default=2, help="of the generator (2)")
    parser.add_argument("--repeat", type=int, default=2, help="runs per server, interleaved (2)")
    parser.add_argument(
        "--only", default="", metavar="NAME,...", help="e.g. beanstalkd,millrace-os"
    )
    parser.add_argument("--dir", default="", help="where the servers keep their data (./data)")
    parser.add_argument("--json", default="", metavar="FILE", help="write every run there as well")
    options = parser.parse_args()
    if options.seconds <= 0 or options.repeat < 1 or options.processes < 1:
        parser.error("--seconds, --repeat and --processes must be above 0")
    if options.connections < options.processes:
        parser.error("every process needs a connection")
    return options


class Bench:
    """One invocation: its servers, its runs and its report."""

    def __init__(self, options: argparse.Namespace, console: Console, folder: Path) -> None:
        self.options = options
        self.console = console
        self.folder = folder
        self.runs: dict[str, list[Outcome]] = {}
        self.failures: list[str] = []

    def installed(self, servers: list[Server]) -> dict[Server, str]:
        """The installed servers with their versions. Prints the required package for each other
        server.
        """
        found = {}
        for server in servers:
            try:
                server.find()
                found[server] = server.version()
            except NotInstalledError as missing:
                self.console.print(f"left out: {missing}", style="yellow")
        return found

    def measure(self, servers: list[Server]) -> None:
        """Measure all servers in each round, so that other load affects all of them."""
        rounds = self.options.repeat
        each = WARMUP + self.options.seconds
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=self.console,
            auto_refresh=False,  # no refresh thread, because the generator forks
            transient=True,
        )
        with bar:
            task = bar.add_task("", total=each * rounds * len(servers))
            done = 0
            for number in range(rounds):
                order = servers if number % 2 == 0 else servers[::-1]
                for server in order:
                    bar.update(
                        task, description=f"{server.name} {number + 1}/{rounds}", refresh=True
                    )
                    self.measure_one(server, number, bar, task, done * each)
                    done += 1
                    bar.update(task, completed=done * each, refresh=True)

    def measure_one(
        self, server: Server, number: int, bar: Progress, task: TaskID, before: float
    ) -> None:
        options = self.options
        title = f"{server.name} {number + 1}/{options.repeat}"

        def watch(elapsed: float) -> None:
            bar.update(task, completed=before + elapsed, refresh=True)

        try:
            with running(server, self.folder / f"{server.name}-{number}") as started:
                load = Load(
                    mode=server.mode,
                    port=started.port,
                    connections=options.connections,
                    processes=options.processes,
                    seconds=options.seconds,
                    warmup=WARMUP,
                    preload=max(200, options.connections),
                )
                outcome = run(load, started.cpu_seconds, watch)
        except (StartError, LoadError, RefusedError, OSError) as error:
            self.failures.append(f"{title}: {error}")
            bar.console.print(f"{title}: failed: {error}", style="red", markup=False)
            return
        self.runs.setdefault(server.name, []).append(outcome)
        bar.console.print(f"{title:<22} {outcome.rate:>9,.0f} cycles/s", highlight=False)

    def best(self, name: str) -> Outcome | None:
        """The run with the most cycles, because other load can only reduce a result."""
        return max(self.runs.get(name, []), key=lambda outcome: outcome.rate, default=None)

    def ratio(self, ratio: Ratio) -> float | None:
        ours, theirs = self.best(ratio.ours), self.best(ratio.theirs)
        if ours is None or theirs is None or not getattr(theirs, ratio.figure):
            return None
        return float(getattr(ours, ratio.figure) / getattr(theirs, ratio.figure))

    def show(self, servers: list[Server]) -> None:
        rounds = self.options.repeat
        self.console.print()
        self.console.print(self.throughput(servers, f"best of {rounds} runs by cycles/s"))
        self.console.print(self.latencies(servers, "milliseconds, p50 / p99, of the same run"))
        for ratio in RATIOS:
            value = self.ratio(ratio)
            if value is None:
                result = "not measured in this run"
            else:
                verdict = "reached" if value >= ratio.expected else "not reached"
                result = f"{value:.2f} (expected at least {ratio.expected:g}: {verdict})"
            self.console.print(f"{ratio.text}: {result}", highlight=False)
        for failure in self.failures:
            self.console.print(f"failed: {failure}", style="red", markup=False)

    def throughput(self, servers: list[Server], title: str) -> Table:
        table = Table(title=title, title_justify="left")
        table.add_column("server")
        table.add_column("survives")
        for head in (
            "cycles/s",
            "lowest",
            "CPU µs/cycle",
            "cycles/CPU-s",
            "server CPU",
            "gen. CPU",
        ):
            table.add_column(head, justify="right")
        for server in servers:
            outcome = self.best(server.name)
            if outcome is None:
                continue
            table.add_row(
                server.name,
                server.keeps,
                f"{outcome.rate:,.0f}",
                f"{min(each.rate for each in self.runs[server.name]):,.0f}",
                f"{outcome.cpu_per_cycle * 1e6:,.1f}",
                f"{outcome.cycles_per_cpu_second:,.0f}",
                f"{outcome.server_cpu:.0%}",
                f"{outcome.generator_cpu:.0%}",
            )
        return table

    def latencies(self, servers: list[Server], title: str) -> Table:
        table = Table(title=title, title_justify="left")
        table.add_column("server")
        for head in ("store", "take", "finish", "whole cycle"):
            table.add_column(head, justify="right")
        for server in servers:
            outcome = self.best(server.name)
            if outcome is None:
                continue
            shown = [*outcome.commands.values(), outcome.cycle]
            table.add_row(server.name, *(f"{each.p50:.2f} / {each.p99:.2f}" for each in shown))
        return table

    def record(self, facts: dict[str, str], versions: dict[Server, str]) -> dict[str, Any]:
        return {
            "machine": facts,
            "settings": vars(self.options) | {"warmup": WARMUP},
            "versions": {server.name: version for server, version in versions.items()},
            "runs": {
                name: [
                    dataclasses.asdict(outcome)
                    | {
                        "cpu_per_cycle": outcome.cpu_per_cycle,
                        "cycles_per_cpu_second": outcome.cycles_per_cpu_second,
                    }
                    for outcome in outcomes
                ]
                for name, outcomes in self.runs.items()
            },
            "ratios": [
                {"text": each.text, "value": self.ratio(each), "expected": each.expected}
                for each in RATIOS
            ],
            "failures": self.failures,
        }


def main() -> int:
    options = arguments()
    stop_on_sigterm()
    console = Console(width=None if sys.stdout.isatty() else 120)
    with scratch(options.dir) as folder:
        bench = Bench(options, console, folder)
        try:
            chosen = choose(options.only)
        except NotInstalledError as unknown:
            console.print(str(unknown), style="red", markup=False)
            return 2
        facts = describe(folder)
        versions = bench.installed(chosen)
        for name, fact in facts.items():
            console.print(f"{name + ':':<13}{fact}", highlight=False, markup=False)
        shown = ", ".join(f"{server.name} {version}" for server, version in versions.items())
        console.print(f"{'servers:':<13}{shown}", highlight=False, markup=False)
        if facts["data on"].startswith("tmpfs"):
            console.print("tmpfs does not sync: durable figures are invalid here", style="yellow")
        console.print()
        servers = list(versions)
        bench.measure(servers)
        bench.show(servers)
        if options.json:
            Path(options.json).write_text(
                json.dumps(bench.record(facts, versions), indent=2) + "\n"
            )
    return 1 if bench.failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
