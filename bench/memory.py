"""The cost of a million waiting jobs: memory per job, disk, the rate of leases, and a restart.

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
WORKERS = 64  # connections that lease and complete jobs
RESTART_CPU = 3  # seconds per 1,000,000 jobs


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="number of jobs (1000000)")
    parser.add_argument("--batch", type=int, default=1000, help="jobs in one PUSHB (1000)")
    parser.add_argument("--durability", default="fsync", choices=("fsync", "os", "memory"))
    parser.add_argument("--payload", type=int, default=PAYLOAD_SIZE, help="bytes a job (200)")
    parser.add_argument(
        "--inline", type=int, default=-1, help="max_inline_payload of the server (its default)"
    )
    parser.add_argument("--max-memory", default="", help="max_memory of the server (its default)")
    parser.add_argument(
        "--lease", type=float, default=0, metavar="SECONDS", help="then lease and complete jobs"
    )
    parser.add_argument("--dir", default="", help="where the server keeps its data (./data)")
    parser.add_argument(
        "--json", default="", metavar="FILE", help="write the figures there as well"
    )
    options = parser.parse_args()
    if options.jobs < 1 or options.batch < 1:
        parser.error("--jobs and --batch must be above 0")
    if options.payload < 4:
        parser.error("--payload must be at least 4: two brackets and two quotes")
    return options


def settings(options: argparse.Namespace) -> dict[str, str]:
    chosen: dict[str, str] = {}
    if options.inline >= 0:
        chosen["MILLRACE_SERVER_MAX_INLINE_PAYLOAD"] = str(options.inline)
    if options.max_memory:
        chosen["MILLRACE_SERVER_MAX_MEMORY"] = options.max_memory
    return chosen


def push_all(port: int, jobs: int, batch: int, payload: int, console: Console) -> float:
    """Push the jobs in batches on one connection. Returns the elapsed seconds."""
    client = FaktoryClient(port)
    job = b'{"jid":"memory-%010d' + Faktory.JOB_HEAD + b'["' + b"x" * (payload - 4) + b'"]}'
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


def lease_and_complete(server: Running, seconds: float) -> tuple[int, float, float]:
    """Lease the first jobs and complete them, one job per connection at a time. Return their
    number, the elapsed seconds and the CPU seconds of the server.
    """
    workers = [FaktoryClient(server.port, f"worker-{number}") for number in range(WORKERS)]
    cpu, began, done = server.cpu_seconds(), time.monotonic(), 0
    while time.monotonic() - began < seconds:
        for worker in workers:
            worker.send(Faktory.FETCH)
        jids = [json.loads(worker.reply())["jid"] for worker in workers]
        for worker, jid in zip(workers, jids, strict=True):
            worker.send(b'ACK {"jid":"%b"}\r\n' % jid.encode())
        for worker in workers:
            worker.reply()
        done += WORKERS
    elapsed, used = time.monotonic() - began, server.cpu_seconds() - cpu
    for worker in workers:
        worker.close()
    return done, elapsed, used


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


def beyond_payload(
    before: dict[str, int], after: dict[str, int], options: argparse.Namespace, kind: str
) -> float:
    """The growth per job, without a payload that stays in memory."""
    stored = 0 <= options.inline < options.payload and options.durability != "memory"
    return (after[kind] - before[kind]) / options.jobs - (0 if stored else options.payload)


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
    with running(server, home, settings(options)) as started:
        report("start on an empty folder", started.started, "s")
        before = settled_memory(started)
        report("RSS before", before["VmRSS"] / MIB, "MiB")
        seconds = push_all(started.port, jobs, options.batch, options.payload, console)
        report("pushed", jobs / seconds, "jobs/s", f"({jobs:,} in {seconds:.1f} s, one connection)")
        waiting = count_waiting(started.port)
        after = settled_memory(started)
        report("waiting", waiting, "jobs", lost(waiting, jobs))
        report("CPU of the pushes", started.cpu_seconds(), "s")
        report("RSS after", after["VmRSS"] / MIB, "MiB", f"(peak {after['VmHWM'] / MIB:,.0f} MiB)")
        report("  of that not backed by a file", after["RssAnon"] / MIB, "MiB")
        report(
            "RSS per job beyond the payload",
            beyond_payload(before, after, options, "VmRSS"),
            "bytes",
            f"(aim: below {EXPECTED})",
        )
        report(
            "  of that not backed by a file ",
            beyond_payload(before, after, options, "RssAnon"),
            "bytes",
        )
        report("peak RSS", after["VmHWM"] / MIB, "MiB")
        report("disk", disk_bytes(home / "data") / MIB, "MiB")
        stopping = time.monotonic()
    report("stop on SIGTERM", time.monotonic() - stopping, "s")

    if server.durability != "memory":
        with running(server, home, settings(options)) as again:
            report("restart until ready", again.started, "s")
            aim = RESTART_CPU * max(jobs / 1_000_000, 1)
            report("CPU of the restart", again.cpu_seconds(), "s", f"(aim: below {aim:.0f})")
            peak = again.memory()["VmHWM"]
            note = f"({100 * peak / after['VmHWM']:.0f} % of the peak before; aim: below 100)"
            report("peak RSS of the restart", peak / MIB, "MiB", note)
            waiting = count_waiting(again.port)
            report("waiting after the restart", waiting, "jobs", lost(waiting, jobs))
            report("RSS after the restart", settled_memory(again)["VmRSS"] / MIB, "MiB")
            if options.lease:
                done, seconds, cpu = lease_and_complete(again, options.lease)
                report("leased and completed", done / seconds, "jobs/s", f"({WORKERS} connections)")
                report("CPU per job", cpu / done * 1e6, "us")
                report("RSS at the end", settled_memory(again)["VmRSS"] / MIB, "MiB")

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
