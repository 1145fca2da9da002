"""CPU time per cycle of the sources, the compiled modules and, if wanted, an older version.

    .venv/bin/python bench/builds.py [--baseline FOLDER]

FOLDER contains the package of the older version: `git archive v1 src | tar x -C /tmp/v1` and
`--baseline /tmp/v1/src`. The builds run one after another in each round, and in reversed order in
the next, so that the load of the machine affects all of them.
"""

import argparse
import statistics
import sys

from load import Load, run
from machine import describe
from millrace import compiled
from servers import choose, running, scratch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--baseline", default="", metavar="FOLDER", help="an older version")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured per run (4)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each build (3)")
    parser.add_argument("--only", default="millrace-memory,millrace-fsync", metavar="NAME,...")
    options = parser.parse_args()
    if not compiled.fresh_modules():
        parser.error("the compiled modules are missing or older than the sources: run `make build`")
    builds = {"sources": {"MILLRACE_PURE": "1"}, "compiled": {}}
    if options.baseline:
        builds = {"baseline": {"PYTHONPATH": options.baseline}, **builds}
    found: dict[tuple[str, str], list[float]] = {}
    with scratch("") as folder:
        for number in range(options.rounds):
            order = list(builds.items())[:: 1 if number % 2 == 0 else -1]
            for server in choose(options.only):
                for name, settings in order:
                    place = folder / f"{server.name}-{name}-{number}"
                    with running(server, place, settings) as started:
                        load = Load(server.mode, started.port, seconds=options.seconds)
                        outcome = run(load, started.cpu_seconds)
                    spent = 1e6 / outcome.cycles_per_cpu_second
                    found.setdefault((server.name, name), []).append(spent)
                    print(f"{server.name} {name}: {spent:.1f} us", file=sys.stderr)
        for fact, value in describe(folder).items():
            print(f"{fact}: {value}")
    print("server, build: CPU us per cycle, best / median")
    for (server_name, name), all_spent in found.items():
        print(f"{server_name}, {name}: {min(all_spent):.1f} / {statistics.median(all_spent):.1f}")


if __name__ == "__main__":
    main()
