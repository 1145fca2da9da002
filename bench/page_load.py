"""The cost of the web pages with a million jobs: the time of each page, and the effect on a client
of the queues.

Run as `make bench-pages`. One Faktory client pushes, fetches and acknowledges in its own queue, one
command at a time, first alone and then during page requests. The ratio of its p99s is the effect of
the pages on other clients.
"""

import argparse
import http.client
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles
from typing import TypeVar

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from machine import describe, stop_on_sigterm
from memory import push_all
from raw_faktory import RawFaktory
from server_process import running_server
from servers import scratch

#: Every kind of page, and the most expensive searches.
PAGES = (
    "/",
    "/queues",
    "/queues/default",
    "/queues/default?state=ready",
    "/jobs",
    "/jobs?q=queue:default",
    "/jobs?q=nothing-has-this",
    "/jobs/memory-0000500000",
    "/busy",
    "/retries",
    "/scheduled",
    "/morgue",
    "/failures",
    "/completed",
    "/tags",
    "/server",
    "/metrics",
    "/api/v1/overview",
    "/api/v1/jobs?limit=100",
)
T = TypeVar("T")
EXPECTED_MS = 200
EXPECTED_RATIO = 2.0


class Client(threading.Thread):
    """The control client: records its latencies until `over` is set."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.spans: list[float] = []
        self.over = threading.Event()
        self._faktory = RawFaktory(port, wid="control-client")

    def run(self) -> None:
        number = 0
        while not self.over.is_set():
            number += 1
            jid = f"control-{id(self)}-{number}"
            for command in (
                lambda jid=jid: self._faktory.push(
                    {"jid": jid, "jobtype": "c", "queue": "control", "args": []}
                ),
                lambda: self._faktory.fetch("control"),
                lambda jid=jid: self._faktory.ack(jid),
            ):
                began = time.perf_counter()
                command()
                self.spans.append(time.perf_counter() - began)
        self._faktory.close()


def p(spans: list[float], percent: int) -> float:
    """A percentile, in milliseconds."""
    return quantiles(spans, n=100, method="inclusive")[percent - 1] * 1000


def load_pages(port: int, seconds: float) -> dict[str, list[float]]:
    """Request one page after the other on one connection, as a browser does; each page at least
    once.
    """
    spans: dict[str, list[float]] = {}
    until = time.monotonic() + seconds
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while not spans or time.monotonic() < until:
        for path in PAGES:
            began = time.perf_counter()
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            spans.setdefault(path, []).append(time.perf_counter() - began)
            if response.status != 200:
                raise SystemExit(f"{path} was answered with {response.status}")
            time.sleep(0.05)  # the time to read and render a page
    connection.close()
    return spans


def with_client(port: int, action: Callable[[], T]) -> tuple[list[float], T]:
    """The latencies of a Faktory client during an action, and the result of the action."""
    client = Client(port)
    client.start()
    done = action()
    client.over.set()
    client.join()
    return client.spans, done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--jobs", type=int, default=1_000_000, help="number of waiting jobs (1000000)"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement (20)")
    parser.add_argument("--dir", default="", help="where the server keeps its data (./data)")
    parser.add_argument("--json", default="", metavar="FILE", help="write the figures there, too")
    given = parser.parse_args()
    console = Console()
    stop_on_sigterm()
    with scratch(given.dir) as folder:
        for name, fact in describe(folder).items():
            console.print(f"{name}: {fact}", highlight=False)
        with running_server(folder / "data") as server:
            push_all(server.port, given.jobs, 1000, console)
            web, seconds = server.ports["web"], given.seconds
            load_pages(web, 2)  # starts the web process and compiles the templates
            time.sleep(2)
            alone, _ = with_client(server.port, lambda: time.sleep(seconds))
            # In a separate process, because the client would wait for this interpreter.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as others:
                others.submit(load_pages, web, 0).result()
                during, pages = with_client(
                    server.port, lambda: others.submit(load_pages, web, seconds).result()
                )
    table = Table("page", "median ms", "most ms", f"within {EXPECTED_MS} ms")
    for path, spans in pages.items():
        within = "yes" if max(spans) * 1000 <= EXPECTED_MS else "NO"
        table.add_row(
            path, f"{sorted(spans)[len(spans) // 2] * 1000:.1f}", f"{max(spans) * 1000:.1f}", within
        )
    console.print(table)
    ratio = p(during, 99) / p(alone, 99)
    console.print(
        f"the client of the queues: alone p50 {p(alone, 50):.2f} ms, p99 {p(alone, 99):.2f} ms; "
        f"beside the pages p50 {p(during, 50):.2f} ms, p99 {p(during, 99):.2f} ms: "
        f"ratio of p99 {ratio:.2f} (expected at most {EXPECTED_RATIO})",
        highlight=False,
    )
    if given.json:
        figures = {
            "pages_ms": {path: [s * 1000 for s in spans] for path, spans in pages.items()},
            "alone_p99_ms": p(alone, 99),
            "beside_p99_ms": p(during, 99),
        }
        Path(given.json).write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
