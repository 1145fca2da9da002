"""Coverage-guided fuzzing of the targets, all side by side or those that are named.

    guided.py [TARGET ...] --time 60     look for inputs that break a promise
    guided.py TARGET --replay FILE       play one of them again; needs no atheris

Inputs that reach new code are kept in .fuzz/corpus and go on from there the next time; those that
break a promise are kept in .fuzz/crashes.
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

#: Longer inputs find nothing that shorter ones do not, and take their time.
MOST_INPUT = 2048
#: A single input that takes so many seconds is a finding.
MOST_SECONDS = 20
MOST_MEGABYTES = 1024


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
    """As many at a time as there are processors; 1 if any of them has found something."""
    import seeds

    for name in targets:
        seeds.plant(name, KEPT / "corpus" / name)
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
    """What a target has come to, and how what it found is played again."""
    log = (KEPT / f"{name}.log").read_text(errors="replace")
    done = re.search(r"^Done .*", log, re.MULTILINE)
    print(f"{name}: {done[0] if done else f'see .fuzz/{name}.log'}", flush=True)
    for crash in sorted((KEPT / "crashes" / name).iterdir()):
        print(f"{name}: found something. To play it again:", flush=True)
        print(
            f"    .venv/bin/python tests/fuzz/guided.py {name} --replay {crash.relative_to(ROOT)}"
        )


def fuzz(name: str, seconds: int) -> int:
    """One target, in a process of its own, until something breaks or the time is over."""
    import atheris

    with atheris.instrument_imports(include=["millrace"]):
        from targets import TARGETS

    check = TARGETS[name].check
    corpus, crashes = KEPT / "corpus" / name, KEPT / "crashes" / name
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MOST_INPUT}",
        f"-timeout={MOST_SECONDS}",
        f"-rss_limit_mb={MOST_MEGABYTES}",
        f"-artifact_prefix={crashes}/",
        f"-dict={KEPT / 'corpus'}/{name}.dict",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *options], check)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
