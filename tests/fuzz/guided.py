"""Coverage-guided fuzzing of all targets in parallel, or of the named ones.

    guided.py [TARGET ...] --time 60     search for inputs that violate an invariant
    guided.py TARGET --replay FILE       run one input again; works without atheris

Inputs that reach new code are stored in .fuzz/corpus and reused in the next run; inputs that
violate an invariant are stored in .fuzz/crashes.
"""

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent
ROOT = TESTS.parent
KEPT = ROOT / ".fuzz"
sys.path[:0] = [str(TESTS / folder) for folder in (".", "fuzz", "protocols", "engine")]
sys.path.insert(0, str(ROOT / "src"))

#: Longer inputs take more time without finding more.
MAX_INPUT = 2048
#: An input that takes this number of seconds is a finding.
MAX_SECONDS = 20
MAX_MEGABYTES = 1024


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the parsers.")
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--time", type=int, default=60, help="seconds for each target")
    parser.add_argument("--replay", metavar="FILE", type=Path, help="play one input again")
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.within:
        return fuzz(given.targets[0], given.time)

    from targets import TARGETS

    unknown = sorted(set(given.targets) - set(TARGETS))
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}. There are {', '.join(TARGETS)}")
    if given.replay is not None:
        TARGETS[given.targets[0]].check(given.replay.read_bytes())
        print(f"{given.targets[0]}: all that must hold holds")
        return 0
    return supervise(given.targets or list(TARGETS), given.time)


def supervise(targets: list[str], seconds: int) -> int:
    """Run one target per processor at a time. Returns 1 if a target has findings."""
    import seeds

    for name in targets:
        seeds.write_seeds(name, KEPT / "corpus" / name)
        (KEPT / "crashes" / name).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as side_by_side:
        ends = list(side_by_side.map(lambda name: run(name, seconds), targets))
    return 1 if any(ends) else 0


def run(name: str, seconds: int) -> int:
    print(f"{name}: {seconds} s", flush=True)
    command = [sys.executable, __file__, name, "--within", f"--time={seconds}"]
    with (KEPT / f"{name}.log").open("wb") as log:
        end = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    tell(name)
    return end


def tell(name: str) -> None:
    """Print the result of a target, and the command to replay its findings."""
    log = (KEPT / f"{name}.log").read_text(errors="replace")
    done = re.search(r"^Done .*", log, re.MULTILINE)
    print(f"{name}: {done[0] if done else f'see .fuzz/{name}.log'}", flush=True)
    for crash in sorted((KEPT / "crashes" / name).iterdir()):
        print(f"{name}: found something. To play it again:", flush=True)
        print(
            f"    .venv/bin/python tests/fuzz/guided.py {name} --replay {crash.relative_to(ROOT)}"
        )


def fuzz(name: str, seconds: int) -> int:
    """Run one target in its own process until it fails or the time is over."""
    import atheris

    with atheris.instrument_imports(include=["millrace"]):
        from targets import TARGETS

    check = TARGETS[name].check
    corpus, crashes = KEPT / "corpus" / name, KEPT / "crashes" / name
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT}",
        f"-timeout={MAX_SECONDS}",
        f"-rss_limit_mb={MAX_MEGABYTES}",
        f"-artifact_prefix={crashes}/",
        f"-dict={KEPT / 'corpus'}/{name}.dict",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *options], check)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
