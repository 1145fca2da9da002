"""Runs simulations: one seed, a range, or one after the other until it is interrupted.

.venv/bin/python tests/simulation/run.py --seed 1234
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from fault_plan import Plan  # noqa: E402
from plants import PLANTS  # noqa: E402

from disk.recording import is_preloaded, missing, preloaded  # noqa: E402
from simulation import Outcome, simulate  # noqa: E402

#: Interval of progress messages in seconds.
REPORT_INTERVAL = 15.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and print its steps")
    parser.add_argument("--seeds", metavar="A-B", help="run these")
    parser.add_argument("--from", dest="begin", type=int, help="run all from this one on")
    parser.add_argument("--first", action="store_true", help="end at the first that fails")
    parser.add_argument("--plant", choices=PLANTS, help="put this mistake into the server")
    parser.add_argument("--steps", type=int, default=60, help="number of last steps to print")
    options = parser.parse_args()
    _be_repeatable()
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    elif options.seeds:
        first, _, last = options.seeds.partition("-")
        seeds = range(int(first), int(last or first) + 1)
    else:
        seeds = range(options.begin or int(time.time()), 1 << 62)
    runs = Runs(options.steps, alone=options.seed is not None, first=options.first)
    if options.plant:
        runs.focus = PLANTS[options.plant]()
    return runs.run(seeds)


def _be_repeatable() -> None:
    """Start again with a fixed hash seed, so that sets have the same order in each run, and with
    the recorded disk.
    """
    environment = dict(os.environ)
    if not missing() and not is_preloaded():
        environment = preloaded(environment)
    environment["PYTHONHASHSEED"] = "0"
    if environment != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


class Runs:
    def __init__(self, steps: int, *, alone: bool, first: bool) -> None:
        self.focus: Callable[[Plan], None] | None = None
        self._steps = steps
        self._check_exclusive = alone
        self._first = first
        self._done = 0
        self._failed: list[int] = []
        self._seconds = 0.0
        self._counts: Counter[str] = Counter()
        self._began = self._reported_at = time.monotonic()

    def run(self, seeds: range) -> int:
        memory = Path("/dev/shm")
        root = Path(tempfile.mkdtemp(prefix="simulation-", dir=memory if memory.is_dir() else None))
        try:
            for seed in seeds:
                outcome = simulate(seed, root / "run", self._steps, self.focus)
                if not self._done and outcome.limits:
                    print(f"note: {outcome.limits}", flush=True)
                self._count(outcome)
                self._report_progress()
                if outcome.problem:
                    self._report(outcome)
                    if self._first:
                        break
                elif self._check_exclusive:
                    self._show(outcome)
                    print(f"ok, trace {outcome.hash}")
        except KeyboardInterrupt:
            print()
        finally:
            shutil.rmtree(root, ignore_errors=True)
        self._sum_up()
        return 1 if self._failed else 0

    def _report_progress(self) -> None:
        if time.monotonic() - self._reported_at > REPORT_INTERVAL:
            self._reported_at = time.monotonic()
            print(f"{self._done} seeds, {len(self._failed)} failed", flush=True)

    def _count(self, outcome: Outcome) -> None:
        self._done += 1
        self._seconds += outcome.seconds
        self._counts += outcome.counts
        if outcome.problem:
            self._failed.append(outcome.seed)

    def _show(self, outcome: Outcome) -> None:
        print(f"\nseed {outcome.seed}: {outcome.plan}")
        for line in outcome.last:
            print("   ", line)

    def _report(self, outcome: Outcome) -> None:
        self._show(outcome)
        if outcome.error is not None:
            traceback.print_exception(outcome.error)
        print(f"FAILED  {outcome.problem}")
        print(f"trace {outcome.hash}; to see it again:")
        print(f"    .venv/bin/python tests/simulation/run.py --seed {outcome.seed}", flush=True)

    def _sum_up(self) -> None:
        counts = self._counts
        took = time.monotonic() - self._began
        print(
            f"{self._done} seeds in {took:.0f} s, {self._seconds / 3600:.1f} simulated hours: "
            f"{counts['jobs']:,} jobs, {counts['commands']:,} commands, {counts['steps']:,} steps, "
            f"{counts['commit']:,} commits, {counts['undone']:,} undone"
        )
        for prefix in ("fault: ", "crash: "):
            some = {k.removeprefix(prefix): n for k, n in counts.items() if k.startswith(prefix)}
            shown = ", ".join(f"{n} {kind}" for kind, n in sorted(some.items()))
            print(f"{prefix}{shown or 'none'}")
        if self._failed:
            print(f"failed seeds: {' '.join(map(str, self._failed))}")


if __name__ == "__main__":
    sys.exit(main())
