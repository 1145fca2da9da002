"""`make abuse`: every scenario at full size, and a table of the control client's latencies.

    python tests/abuse/full.py [--calm 8] [--harm 15] [--dir FOLDER] [--only NAME]

It fails if the control client got an error, or if its typical 99th percentile was more than five
times the undisturbed one.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "bench"))

from rich.console import Console
from rich.table import Table
from scenarios import MEMORY_DISK, SCENARIOS, serving
from stage import play

from machine import describe, stop_on_sigterm

MAX_RATIO = 5.0
COLUMNS = (
    "scenario",
    "undisturbed p50 / p99 ms",
    "disturbed p50 / p99 ms",
    "worst ms",
    "ratio",
    "RSS before / peak / after MiB",
    "server CPU",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calm", type=float, default=8.0, help="seconds before, and after (8)")
    parser.add_argument("--harm", type=float, default=15.0, help="seconds of abuse (15)")
    parser.add_argument("--dir", type=Path, default=None, help="where the data is (in memory)")
    parser.add_argument("--only", default="", help="play only this scenario")
    options = parser.parse_args()
    if min(options.calm, options.harm) < 1:
        parser.error("--calm and --harm must be at least a second")
    return options


def main() -> int:
    options = arguments()
    stop_on_sigterm()
    console = Console(width=None if sys.stdout.isatty() else 160)
    for name, fact in describe(options.dir or MEMORY_DISK).items():
        console.print(f"{name + ':':<13}{fact}", highlight=False, markup=False)
    table = Table(*COLUMNS)
    problems: list[str] = []
    for scenario in SCENARIOS:
        if options.only not in {"", scenario.name}:
            continue
        title = f"{scenario.name} ({scenario.full:,})"
        console.print(title, highlight=False)
        with serving(scenario, options.dir) as server:
            outcome = play(
                server, scenario.name, scenario.full, calm=options.calm, harm=options.harm
            )
        table.add_row(title, *outcome.row()[1:])
        console.print(f"  {outcome.met}, ratio {outcome.ratio:.2f}", highlight=False)
        if not scenario.expected(outcome, scenario.full):
            problems.append(f"{title}: it met with {outcome.met}")
        if outcome.ratio > MAX_RATIO:
            summary = f"{title}: {outcome.ratio:.1f} times the undisturbed p99"
            if scenario.judged:
                problems.append(summary)
            else:
                console.print(f"  {summary}: {scenario.why}", highlight=False)
    console.print(table)
    for problem in problems:
        console.print(f"failed: {problem}", style="red", markup=False)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
