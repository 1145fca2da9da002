"""`make abuse`: the longest callback of each command against 1,000,000 jobs, in seconds of CPU.

python tests/abuse/slices_full.py --jobs 1000000 --queues 100000 --dependents 100000
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "crash"))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "bench"))

import expensive_rows
from measured_server import LargeWorld, Sizes
from test_longest_slices import EXCEPTIONS

from machine import describe

MAX_SECONDS = 0.010


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--dependents", type=int, default=100_000)
    parser.add_argument("--only", nargs="+", default=[""], help="commands with these prefixes")
    options = parser.parse_args()
    sizes = Sizes(options.jobs, options.queues, options.dependents)
    for name, fact in describe(Path("/dev/shm")).items():
        print(f"{name + ':':<13}{fact}")
    expensive_rows.use(sizes)
    world = LargeWorld(sizes)
    print(f"{len(world.engine.jobs):,} jobs, {len(world.engine.queues):,} queues", flush=True)
    found = []
    for name, prepare in expensive_rows.rows():
        if name.startswith(tuple(options.only)) and not name.startswith("T "):
            longest = world.measure(prepare, units=False)
            found.append((longest.cost, longest.slices, name))
            print(f"{longest.cost * 1000:9.1f} ms {longest.slices:7} callbacks  {name}", flush=True)
    over = sorted((row for row in found if row[0] > MAX_SECONDS), reverse=True)
    print(f"\n{len(found)} forms, {len(over)} above {MAX_SECONDS * 1000:g} ms:")
    for cost, _, name in over:
        known = "known" if name in EXCEPTIONS else "new"
        print(f"{cost * 1000:9.1f} ms  {known:5}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
