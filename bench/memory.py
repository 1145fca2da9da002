"""The cost of a million waiting jobs: memory per job, disk, and the time of a restart.

Run as `.venv/bin/python bench/memory.py`; the jobs are pushed with PUSHB over the Faktory port.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from faktory_client import FaktoryClient
from machine import describe, stop_on_sigterm
from modes import PAYLOAD_SIZE, Faktory, RefusedError
from servers import NotInstalledError, Running, Server, StartError, choose, running, scratch

MIB = 1024 * 1024
SETTLE_SECONDS = 1.0  # time to free the buffers of the last batch and to finish a checkpoint
EXPECTED = 700  # bytes a job beyond its payload
RESTART_CPU = 3  # seconds per 1,000,000 jobs


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="number of jobs (1000000)")
    parser.add_argument("--batch", type=int, default=1000, help="jobs in one PUSHB (1000)")
    parser.add_argument("--durability", default="fsync", choices=("fsync", "os", "memory"))
    parser.add_argument("--dir", default="", help="where the server keeps its data (./data)")
    parser.add_argument(
        "--json", default="", metavar="FILE", help="write the figures there as well"
    )
    options = parser.parse_args()
    if options.jobs < 1 or options.batch < 1:
        parser.error("--jobs and --batch must be above 0")
    return options


def push_all(port: int, jobs: int, batch: int, console: Console) -> float:
    """Push the jobs in batches on one connection. Returns the elapsed seconds."""
    client = FaktoryClient(port)
    job = b'{"jid":"memory-%010d' + Faktory.JOB_TAIL
    bar = Progress(
        TextColumn("pushing"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    began = time.monotonic()
    with bar:
        task = bar.add_task("", total=jobs)
        for start in range(0, jobs, batch):
            numbers = range(start, min(start + batch, jobs))
            refused = client.request(b"PUSHB [" + b",".join([job % n for n in numbers]) + b"]\r\n")
            if refused != b"{}":
                raise RefusedError(f"PUSHB refused {refused[:200]!r}")
            bar.update(task, advance=len(numbers))
    client.close()
    return time.monotonic() - began


def count_waiting(port: int) -> int:
    client = FaktoryClient(port)
    waiting = int(client.info()["queues"].get("default", 0))
    client.close()
    return waiting


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def settled_memory(server: Running) -> dict[str, int]:
    time.sleep(SETTLE_SECONDS)
    return server.memory()


def beyond_payload(before: dict[str, int], after: dict[str, int], jobs: int, kind: str) -> float:
    return (after[kind] - before[kind]) / jobs - PAYLOAD_SIZE


def measure(options: argparse.Namespace, server: Server, folder: Path, console: Console) -> None:
    jobs = options.jobs
    figures: dict[str, float] = {}

    def report(name: str, value: float, unit: str, note: str = "") -> None:
        figures[name] = value
        digits = 2 if value < 100 else 0
        console.print(f"{name + ':':<34}{value:>12,.{digits}f} {unit} {note}", highlight=False)

    facts = describe(folder)
    for name, fact in facts.items():
        console.print(f"{name + ':':<13}{fact}", highlight=False, markup=False)
    console.print()

    home = folder / server.name
    with running(server, home) as started:
        report("start on an empty folder", started.started, "s")
        before = settled_memory(started)
        report("RSS before", before["VmRSS"] / MIB, "MiB")
        seconds = push_all(started.port, jobs, options.batch, console)
        report("pushed", jobs / seconds, "jobs/s", f"({jobs:,} in {seconds:.1f} s, one connection)")
        waiting = count_waiting(started.port)
        after = settled_memory(started)
        report("waiting", waiting, "jobs", lost(waiting, jobs))
        report("RSS after", after["VmRSS"] / MIB, "MiB", f"(peak {after['VmHWM'] / MIB:,.0f} MiB)")
        report(
            "RSS per job beyond the payload",
            beyond_payload(before, after, jobs, "VmRSS"),
            "bytes",
            f"(aim: below {EXPECTED})",
        )
        report(
            "  of that not backed by a file",
            beyond_payload(before, after, jobs, "RssAnon"),
            "bytes",
        )
        report("disk", disk_bytes(home / "data") / MIB, "MiB")
        stopping = time.monotonic()
    report("stop on SIGTERM", time.monotonic() - stopping, "s")

    if server.durability != "memory":
        with running(server, home) as again:
            report("restart until ready", again.started, "s")
            report("CPU of the restart", again.cpu_seconds(), "s", f"(aim: below {RESTART_CPU})")
            peak = again.memory()["VmHWM"]
            note = f"({100 * peak / after['VmHWM']:.0f} % of the peak before; aim: below 100)"
            report("peak RSS of the restart", peak / MIB, "MiB", note)
            waiting = count_waiting(again.port)
            report("waiting after the restart", waiting, "jobs", lost(waiting, jobs))
            report("RSS after the restart", settled_memory(again)["VmRSS"] / MIB, "MiB")

    if options.json:
        record = {"machine": facts, "settings": vars(options), "figures": figures}
        Path(options.json).write_text(json.dumps(record, indent=2) + "\n")


def lost(waiting: int, jobs: int) -> str:
    return "" if waiting == jobs else f"- expected {jobs:,}"


def main() -> int:
    options = arguments()
    stop_on_sigterm()
    console = Console(width=None if sys.stdout.isatty() else 100)
    server = choose(f"millrace-{options.durability}")[0]
    with scratch(options.dir) as folder:
        try:
            measure(options, server, folder, console)
        except (NotInstalledError, StartError, RefusedError, OSError) as error:
            console.print(f"failed: {error}", style="red", markup=False)
            return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
