"""A realistic workload: producers and workers of all five protocols, with bursts, failures,
retries, slow jobs, priorities, scheduled jobs, and workers that disconnect.

    python bench/workload.py --seconds 20 --rate 500 [--out seen.json]
    python bench/workload.py --serve DIR ...

Without `--serve` it uses the server on this machine's default ports (or the ports from the
variables MILLRACE_FAKTORY_PORT and similar). With it, it starts its own server with the data in DIR
and stops it at the end. The server should have no other jobs in queues of the same names. It gets
short Qless leases in `imports`.

Producers and workers record their observations exactly (observations.py), so that tests can compare
the server's tables with them.
"""

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from actors import CLOCK, SECOND, Context, Operator, Producer, now, perform_script, workers
from machine import stop_on_sigterm
from millrace.config import keys
from observations import Observations
from plans import SHORT_LEASE, plans
from server_process import running_server
from speakers import SPEAKERS

#: By then the leases of disconnected workers have expired and other workers have done their jobs.
DRAIN = 2.5 * SHORT_LEASE
#: Maximum time to wait for the first attempts of all jobs on a slow machine.
DRAIN_TIMEOUT = 300.0
CountCallback = Callable[[int, int], None]


class Load(msgspec.Struct):
    """The size and duration of a workload."""

    seconds: float = 20.0
    rate: float = 200.0
    #: Of each protocol.
    workers: int = 3
    seed: int = 1
    drain: float = DRAIN


def run(
    host: str, ports: dict[str, int], load: Load, on_count: CountCallback = lambda *_: None
) -> Observations:
    """Run all actors until all jobs have had an attempt and `drain` seconds have passed since the
    last push. Returns their observations.

    `on_count` is called four times per second with the number of pushes and leases.
    """
    context = Context(host, ports, plans(load.seed, load.seconds, load.rate), load.seed)
    errors: list[BaseException] = []

    def play(role: Callable[[], None]) -> None:
        try:
            role()
        except BaseException as mistake:
            errors.append(mistake)
            context.over.set()

    operator = Operator(context, load.seconds)
    perform_script(context)
    producers = [operator, *(Producer(context, each) for each in SPEAKERS)]
    pushing = [threading.Thread(target=play, args=(each.work,)) for each in producers]
    working = [
        threading.Thread(target=play, args=(w.work,)) for w in workers(context, load.workers)
    ]
    for thread in (*pushing, *working):
        thread.start()
    try:
        _watch(context, pushing, load.drain, on_count)
    finally:
        context.over.set()
        for thread in (*pushing, *working):
            thread.join()
    if errors:
        raise errors[0]
    return context.recorder.close(now(), CLOCK.drift)


def _watch(
    context: Context, pushing: list[threading.Thread], drain: float, on_count: CountCallback
) -> None:
    pushed_at = 0.0
    while not context.over.wait(0.25):
        on_count(*context.recorder.counts)
        if not pushed_at and not any(thread.is_alive() for thread in pushing):
            pushed_at = time.monotonic()
        passed = time.monotonic() - pushed_at if pushed_at else 0.0
        if passed > DRAIN_TIMEOUT or (passed > drain and not context.recorder.waiting):
            return


def default_ports() -> dict[str, int]:
    ports = {key.section: key for key in keys().values() if key.name == "port"}
    return {
        protocol: int(os.environ.get(ports[protocol].variable, ports[protocol].default))
        for protocol in SPEAKERS
    }


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[dict[str, int]]:
    """Start a server that stops cleanly: it ships all remaining events."""
    folder.mkdir(parents=True, exist_ok=True)
    with running_server(folder, MILLRACE_LAKE_SHIP_EVERY=None) as server:
        yield server.ports
        server.stop(timeout=60)


def show(console: Console, observations: Observations) -> None:
    seconds = (observations.ended - observations.began) / SECOND
    console.print(f"{len(observations.jobs):,} jobs in {seconds:.1f} s, seed {observations.seed}")
    for name, counted in observations.totals().items():
        if not isinstance(counted, dict):
            console.print(f"{name}: {counted:,}")
            continue
        table = Table(title=name, title_justify="left", show_header=False, box=None)
        for key, count in counted.items():
            table.add_row(key, f"{count:,}")
        console.print(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20, help="how long jobs are pushed (20)")
    parser.add_argument("--rate", type=float, default=200, help="jobs a second, on average (200)")
    parser.add_argument("--workers", type=int, default=3, help="of each protocol (3)")
    parser.add_argument("--seed", type=int, default=1, help="another one, other jobs (1)")
    parser.add_argument("--host", default="127.0.0.1", help="where the server is (127.0.0.1)")
    parser.add_argument("--serve", metavar="DIR", help="start a server there, and stop it")
    parser.add_argument(
        "--out", metavar="FILE", help="write the observations to this file, as JSON"
    )
    options = parser.parse_args()
    if min(options.seconds, options.rate, options.workers) <= 0:
        parser.error("--seconds, --rate and --workers must be above 0")
    return options


def main() -> int:
    options = arguments()
    stop_on_sigterm()
    console = Console()
    load = Load(options.seconds, options.rate, options.workers, options.seed)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeRemainingColumn(),
        console=console,
    )
    total = load.seconds + load.drain
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        serve = options.serve
        ports = stack.enter_context(serving(Path(serve))) if serve else default_ports()
        with bar:
            task = bar.add_task("working", total=total, counts="")

            def on_count(pushed: int, leased: int) -> None:
                counts = f"{pushed:,} pushed, {leased:,} leased"
                bar.update(task, completed=min(total, time.monotonic() - began), counts=counts)

            observations = run(options.host, ports, load, on_count)
    if options.out:
        Path(options.out).write_bytes(msgspec.json.encode(observations))
    show(console, observations)
    return 0


if __name__ == "__main__":
    sys.exit(main())
