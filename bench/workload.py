"""A believable workload: producers and workers of all five protocols, with bursts, failures,
retries, slow jobs, priorities, jobs for later, and workers that die.

    python bench/workload.py --seconds 20 --rate 500 [--out seen.json]
    python bench/workload.py --serve DIR ...

Without `--serve` it uses the server on this machine's usual ports (or those that the variables
MILLRACE_FAKTORY_PORT and the like say); with it, one of its own whose data is in DIR, which is
stopped in the end. The server should have no other work in queues of the same names, and gets short
Qless leases in `imports`.

What everybody saw is kept exactly (witness.py), so that whatever is later told of this time can be
held against it.
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

from crew import SECOND, Operator, Place, Producer, now, perform_script, workers
from machine import stop_on_sigterm
from millrace.config import keys
from plans import SOON, plans
from server_process import running_server
from speakers import SPEAKERS
from witness import Witness

#: Leases that somebody died with are over by then, and their jobs were done by others.
DRAIN = 2.5 * SOON
#: The longest time to wait for the first attempts of all jobs on a slow machine.
DRAIN_TIMEOUT = 300.0
Tell = Callable[[int, int], None]


class Load(msgspec.Struct):
    """How much, and for how long."""

    seconds: float = 20.0
    rate: float = 200.0
    #: Of each protocol.
    workers: int = 3
    seed: int = 1
    drain: float = DRAIN


def run(host: str, ports: dict[str, int], load: Load, tell: Tell = lambda *_: None) -> Witness:
    """Let everybody work until all jobs have had an attempt and `drain` seconds have passed since
    the last push; return what they saw.

    `tell` hears four times a second how much was pushed and leased.
    """
    place = Place(host, ports, plans(load.seed, load.seconds, load.rate), load.seed)
    mistakes: list[BaseException] = []

    def play(role: Callable[[], None]) -> None:
        try:
            role()
        except BaseException as mistake:
            mistakes.append(mistake)
            place.over.set()

    operator = Operator(place, load.seconds)
    perform_script(place)
    producers = [operator, *(Producer(place, each) for each in SPEAKERS)]
    pushing = [threading.Thread(target=play, args=(each.work,)) for each in producers]
    working = [threading.Thread(target=play, args=(w.work,)) for w in workers(place, load.workers)]
    for thread in (*pushing, *working):
        thread.start()
    try:
        _watch(place, pushing, load.drain, tell)
    finally:
        place.over.set()
        for thread in (*pushing, *working):
            thread.join()
    if mistakes:
        raise mistakes[0]
    return place.notebook.close(now())


def _watch(place: Place, pushing: list[threading.Thread], drain: float, tell: Tell) -> None:
    pushed_at = 0.0
    while not place.over.wait(0.25):
        tell(*place.notebook.counts)
        if not pushed_at and not any(thread.is_alive() for thread in pushing):
            pushed_at = time.monotonic()
        passed = time.monotonic() - pushed_at if pushed_at else 0.0
        if passed > DRAIN_TIMEOUT or (passed > drain and not place.notebook.waiting):
            return


def usual_ports() -> dict[str, int]:
    ports = {key.section: key for key in keys().values() if key.name == "port"}
    return {
        protocol: int(os.environ.get(ports[protocol].variable, ports[protocol].default))
        for protocol in SPEAKERS
    }


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[dict[str, int]]:
    """A server of our own, which ends properly: it ships what there is to ship."""
    folder.mkdir(parents=True, exist_ok=True)
    with running_server(folder, MILLRACE_LAKE_SHIP_EVERY=None) as server:
        yield server.ports
        server.stop(timeout=60)


def show(console: Console, witness: Witness) -> None:
    seconds = (witness.ended - witness.began) / SECOND
    console.print(f"{len(witness.jobs):,} jobs in {seconds:.1f} s, seed {witness.seed}")
    for name, counted in witness.totals().items():
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
    parser.add_argument("--out", metavar="FILE", help="write down there what was seen, as JSON")
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
        ports = stack.enter_context(serving(Path(serve))) if serve else usual_ports()
        with bar:
            task = bar.add_task("working", total=total, counts="")

            def tell(pushed: int, leased: int) -> None:
                counts = f"{pushed:,} pushed, {leased:,} leased"
                bar.update(task, completed=min(total, time.monotonic() - began), counts=counts)

            witness = run(options.host, ports, load, tell)
    if options.out:
        Path(options.out).write_bytes(msgspec.json.encode(witness))
    show(console, witness)
    return 0


if __name__ == "__main__":
    sys.exit(main())
