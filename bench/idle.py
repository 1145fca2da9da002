"""Memory and CPU of a server with 10,000 workers that wait for jobs.

Run as `.venv/bin/python bench/idle.py`. It measures the same connections in four phases:

- connected: each connection has sent HELLO and no command;
- waiting: all have sent FETCH on an empty queue, and the server holds every one of them for 2 s;
- silent: the server has replied `$-1` to each FETCH, and no connection sends another one;
- asking: each sends FETCH again as soon as it gets `$-1`, as real workers do.
"""

import argparse
import json
import resource
import select
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from faktory_client import FaktoryClient
from machine import describe, stop_on_sigterm
from modes import Faktory, RefusedError, connect, send_hello
from servers import NotInstalledError, Running, Server, StartError, choose, running, scratch

MIB = 1024 * 1024
FETCH = b"FETCH idle\r\n"
NULL_BULK = b"$-1\r\n"
HOLD = 2.0  # time that the server holds a FETCH on an empty queue
QUIET = (0.6, 1.8)  # the part of HOLD between the last FETCH and the first reply
PER_WORKER = 100  # connections that share a wid, like the connections of one worker process
SPARE_DESCRIPTORS = 100
MAX_SECONDS = 20.0  # no BEATs are sent, and the server may disconnect a worker after 60 s
EXPECTED = 200  # MiB


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--connections", type=int, default=10_000, help="number of connections (10000)"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of silent and of asking (10)")
    parser.add_argument("--durability", default="fsync", choices=("fsync", "os", "memory"))
    parser.add_argument("--dir", default="", help="where the server keeps its data (./data)")
    parser.add_argument(
        "--json", default="", metavar="FILE", help="write the figures there as well"
    )
    options = parser.parse_args()
    if options.connections < 1:
        parser.error("--connections must be above 0")
    if not 0 < options.seconds <= MAX_SECONDS:
        parser.error(f"--seconds must be above 0 and at most {MAX_SECONDS:g}")
    return options


def allow_descriptors(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise OSError(f"this needs {wanted} open files, and the hard limit (ulimit -Hn) is {hard}")
    if soft < wanted:
        # The server inherits the old limit or this one: it must raise its own either way.
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Workers:
    """The waiting connections. All sends and receives happen in one thread, by epoll."""

    def __init__(self) -> None:
        self.sockets: dict[int, socket.socket] = {}
        self.poll = select.epoll()
        self.sent: dict[int, float] = {}  # send time of each FETCH without a reply
        self.held: list[float] = []  # hold times of the FETCHes that returned no job

    def connect(self, port: int, count: int) -> None:
        for number in range(count):
            sock = connect(port)
            send_hello(sock, f"idle-{number // PER_WORKER:04d}")
            sock.setblocking(False)
            self.sockets[sock.fileno()] = sock
            self.poll.register(sock.fileno(), select.EPOLLIN)

    def fetch(self, descriptor: int) -> None:
        self.sent[descriptor] = time.monotonic()
        self.sockets[descriptor].send(FETCH)

    def replies(self, until: float) -> Iterator[tuple[int, bytes]]:
        """Every reply until that time. Each reply is short and arrives in one piece."""
        while (left := until - time.monotonic()) > 0:
            for descriptor, _ in self.poll.poll(left):
                received = self.sockets[descriptor].recv(4096)
                if not received:
                    raise RefusedError("the server closed a waiting connection")
                yield descriptor, received

    def nothing(self, descriptor: int, received: bytes) -> None:
        if received != NULL_BULK:
            raise RefusedError(f"FETCH was answered with {received[:200]!r}")
        self.held.append(time.monotonic() - self.sent.pop(descriptor))

    def close(self) -> None:
        for sock in self.sockets.values():
            sock.close()


class Idle:
    def __init__(self, server: Running, workers: Workers, console: Console) -> None:
        self.server = server
        self.workers = workers
        self.console = console
        self.figures: dict[str, float] = {}
        self.rss_before = server.memory()["VmRSS"]

    def report(self, name: str, value: float, unit: str, note: str = "") -> None:
        self.figures[name] = value
        digits = 2 if value < 100 else 0
        shown = f"{name + ':':<36}{value:>9,.{digits}f} {unit} {note}"
        self.console.print(shown, highlight=False, markup=False)

    def report_memory(self, name: str, note: str = "") -> None:
        grown = self.server.memory()["VmRSS"] - self.rss_before
        each = grown / len(self.workers.sockets)
        self.report(f"{name}, RSS growth", grown / MIB, "MiB", f"({each:,.0f} bytes each) {note}")

    def report_cpu(self, name: str, cpu: float, seconds: float) -> None:
        self.report(f"{name}, CPU", cpu / seconds * 100, "%", f"({cpu:.2f} s in {seconds:.1f} s)")

    def waiting(self) -> None:
        """Send FETCH on all connections and measure while all wait. A pushed job must reach a
        worker promptly.
        """
        workers, server = self.workers, self.server
        began, cpu = time.monotonic(), server.cpu_seconds()
        for descriptor in workers.sockets:
            workers.fetch(descriptor)
        self.report("sending all FETCHes", time.monotonic() - began, "s")
        quiet_from, quiet_to = (began + moment for moment in QUIET)
        early = list(workers.replies(quiet_from))
        quiet_cpu, quiet_from = server.cpu_seconds(), time.monotonic()
        early += list(workers.replies(quiet_to))
        if early:
            raise RefusedError(f"{len(early)} FETCHes on an empty queue were answered at once")
        self.report_cpu("waiting", server.cpu_seconds() - quiet_cpu, time.monotonic() - quiet_from)
        self.report_memory("waiting", f"(expected: under {EXPECTED} MiB)")
        for descriptor, received in workers.replies(began + HOLD + 10):
            workers.nothing(descriptor, received)
            if not workers.sent:
                break
        if workers.sent:
            raise RefusedError(f"{len(workers.sent)} FETCHes were not answered")
        whole = time.monotonic() - began
        self.report_cpu("asking once and being answered", server.cpu_seconds() - cpu, whole)
        self.report_held("asking once")

    def silent(self, seconds: float) -> None:
        began, cpu = time.monotonic(), self.server.cpu_seconds()
        for _, received in self.workers.replies(began + seconds):
            raise RefusedError(f"received {received[:200]!r} without a request")
        self.report_cpu("silent", self.server.cpu_seconds() - cpu, time.monotonic() - began)

    def asking(self, seconds: float) -> None:
        """Each worker sends FETCH again after every `$-1`. The first round is spread over the
        hold.
        """
        workers = self.workers
        began = time.monotonic()
        for number, descriptor in enumerate(workers.sockets):
            due = began + HOLD * number / len(workers.sockets)
            for answered, received in workers.replies(due):
                workers.nothing(answered, received)
                workers.fetch(answered)
            workers.fetch(descriptor)
        workers.held.clear()
        began, cpu = time.monotonic(), self.server.cpu_seconds()
        for answered, received in workers.replies(began + seconds):
            workers.nothing(answered, received)
            workers.fetch(answered)
        seconds = time.monotonic() - began
        self.report_cpu("asking", self.server.cpu_seconds() - cpu, seconds)
        self.report("asking, FETCHes answered", len(workers.held) / seconds, "per second")
        self.report_held("asking")
        self.report_memory("asking")

    def wake(self, control: FaktoryClient) -> None:
        """Push a job while all workers wait. One of them must receive it promptly."""
        workers = self.workers
        job = b'{"jid":"idle-00000001","queue":"idle","jobtype":"bench","args":' + Faktory.ARGS
        began = time.monotonic()
        control.request(b"PUSH " + job + b"}\r\n")
        for descriptor, received in workers.replies(began + HOLD):
            if received != NULL_BULK:
                self.report(
                    "a job reaches a waiting worker", (time.monotonic() - began) * 1000, "ms"
                )
                control.request(b'ACK {"jid":"idle-00000001"}\r\n')
                return
            workers.nothing(descriptor, received)
            workers.fetch(descriptor)
        raise RefusedError("no waiting worker got the job that was pushed")

    def report_held(self, name: str) -> None:
        held = sorted(self.workers.held)
        if held:
            self.report(f"{name}, a FETCH is held p50", held[len(held) // 2], "s")
            self.report(f"{name}, longest", held[-1], "s")
        self.workers.held.clear()


def measure(options: argparse.Namespace, server: Server, folder: Path, console: Console) -> None:
    facts = describe(folder)
    for name, fact in facts.items():
        console.print(f"{name + ':':<13}{fact}", highlight=False, markup=False)
    console.print()
    settings = {"MILLRACE_SERVER_MAX_CONNECTIONS": str(options.connections + SPARE_DESCRIPTORS)}
    with running(server, folder / server.name, settings) as started:
        # After the server's start, so that it cannot inherit the raised limit.
        allow_descriptors(options.connections + SPARE_DESCRIPTORS)
        control = FaktoryClient(started.port)
        workers = Workers()
        idle = Idle(started, workers, console)
        began, cpu = time.monotonic(), started.cpu_seconds()
        with console.status(f"connecting {options.connections:,}"):
            workers.connect(started.port, options.connections)
        seconds = time.monotonic() - began
        idle.report("connecting", options.connections / seconds, "per second", f"({seconds:.1f} s)")
        idle.report_cpu("connecting", started.cpu_seconds() - cpu, seconds)
        idle.report_memory("connected")
        idle.waiting()
        idle.silent(options.seconds)
        idle.asking(options.seconds)
        idle.wake(control)
        workers.close()
        control.close()
    if options.json:
        record = {"machine": facts, "settings": vars(options), "figures": idle.figures}
        Path(options.json).write_text(json.dumps(record, indent=2) + "\n")


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
