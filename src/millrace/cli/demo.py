"""`millrace demo`: a server with a shop's workload over all protocols and the SDK."""

import json as jsonlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millrace.cli.options import Json
from millrace.extras import is_installed

if TYPE_CHECKING:
    from millrace.client import Millrace

#: The queues of the shop, in the order in which the workers serve them.
QUEUES: Final = ("checkout", "mail", "images", "warehouse", "stock", "labels", "analytics")
FAILURE_RATE: Final = 0.08
#: Jobs of the queue `images` that run at once.
IMAGE_LIMIT: Final = 2
#: Default interval of the pipeline in seconds, and the interval at which events are shipped.
PIPELINE_INTERVAL: Final = 60.0
SHIP_INTERVAL: Final = "5s"
#: Seconds between two reports.
REPORT_INTERVAL: Final = 15
STOP_TIMEOUT: Final = 30.0
REPLY_BYTES: Final = 4096
MAX_ORDER: Final = 1_000_000


def demo_command(
    rate: Annotated[float, typer.Option(min=0.1, max=1000, help="Orders per second.")] = 5,
    seconds: Annotated[
        float, typer.Option("--for", min=0, help="Seconds to run; 0 runs until Ctrl-C.")
    ] = 0,
    web_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the pages.")] = 7420,
    pipeline: Annotated[
        float,
        typer.Option(min=0, help="Seconds between two runs of the Spark pipeline; 0 runs none."),
    ] = PIPELINE_INTERVAL,
    *,
    json: Json = False,
) -> None:
    """Run a server with sample jobs of a web shop, to explore the pages.

    Each order pushes jobs with the SDK, with dependencies, priorities, tags and schedules, and over
    Workq, Masenko, Qless and Go Job Queue. Workers run them; some jobs fail and are retried. One
    queue has a limit, and recurring jobs check the stock and write reports.
    If the extra `spark` is installed, the pipeline analyzes the jobs every minute; see the
    Analytics page. The data is in a temporary folder that Ctrl-C or SIGTERM removes.

    Examples:
    - `millrace demo`
    - `millrace demo --rate 50 --for 60`
    - `millrace demo --web-port 0 --json | jq .pages`

    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop the server, as Ctrl-C does
    folder = Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    server = _start_server(folder, web_port, pipeline)
    try:
        raise typer.Exit(_run(server, rate, seconds, json=json))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    finally:
        server.terminate()
        try:
            server.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _start_server(folder: Path, web_port: int, pipeline: float) -> "subprocess.Popen[str]":
    environment = dict(os.environ)
    if pipeline and all(map(is_installed, ("deltalake", "pyspark"))):
        environment["MILLRACE_PIPELINE_EVERY"] = f"{pipeline:g}s"
        environment["MILLRACE_LAKE_SHIP_EVERY"] = SHIP_INTERVAL
    ports = [f"--{name}-port=0" for name in ("faktory", "workq", "masenko", "qless", "goqueue")]
    code = "import sys; from millrace.cli import main; sys.exit(main())"
    return subprocess.Popen(  # noqa: S603 - fixed arguments
        [
            sys.executable,
            "-c",
            code,
            "serve",
            "--data",
            str(folder / "data"),
            f"--web-port={web_port}",
            *ports,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,  # Ctrl-C stops the workload first, then the server
    )


def _run(server: "subprocess.Popen[str]", rate: float, seconds: float, *, json: bool) -> int:
    from millrace.client import Worker, WorkerOptions  # noqa: PLC0415

    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        sys.stderr.write("The server did not start. Is the port of the pages in use?\n")
        return 1
    ready = jsonlib.loads(line)
    ports: dict[str, int] = ready.get("ports", ready)
    app, shop = make_shop(f"tcp://127.0.0.1:{ports['faktory']}")
    worker = Worker(app, WorkerOptions(queues=QUEUES, concurrency=8, heartbeat_interval=5))
    thread = threading.Thread(target=worker.run, kwargs={"handle_signals": False})
    thread.start()
    pages = f"http://127.0.0.1:{ports['web']}"
    if json:
        sys.stdout.write(jsonlib.dumps({"pages": pages, "ports": ports}) + "\n")
    else:
        sys.stdout.write(f"Pages: {pages}  (press Ctrl-C to stop)\n")
    sys.stdout.flush()
    producers = Producers(ports)
    until = time.monotonic() + seconds if seconds else float("inf")
    orders = 0
    try:
        app.limit("images", IMAGE_LIMIT)
        app.recur("analytics", app.tasks["report"].job(0), every=REPORT_INTERVAL)
        producers.add_recurring()
        while time.monotonic() < until and server.poll() is None:
            orders += 1
            shop.place(orders)
            producers.place(orders)
            time.sleep(1 / rate)
    finally:
        worker.stop()
        thread.join()
        app.close()
        text = jsonlib.dumps({"orders": orders}) if json else f"{orders:,} orders were placed."
        sys.stdout.write(f"{text}\n")
    return 0


class Shop:
    """The tasks of the shop, and an order as a producer with the SDK pushes it."""

    def __init__(self, app: "Millrace") -> None:
        tasks = app.tasks
        self._charge, self._receipt = tasks["charge"], tasks["receipt"]
        self._resize, self._report = tasks["resize"], tasks["report"]

    def place(self, order: int) -> None:
        express = order % 10 == 0
        tags = ["express"] if express else ["standard"]
        charge = self._charge.options(priority=9 if express else 0, tags=tags).push(order)
        self._receipt.options(depends_on=[charge], tags=tags).push(order)
        if order % 3 == 0:
            self._resize.push(f"product-{order}.jpg")
        if order % 20 == 0:
            self._report.options(delay=30).push(order)


def make_shop(url: str) -> "tuple[Millrace, Shop]":
    from millrace.client import Millrace  # noqa: PLC0415

    app = Millrace(url)
    chance = random.Random(1)

    def work(longest: float, subject: object) -> None:
        time.sleep(chance.uniform(0.005, longest))
        if chance.random() < FAILURE_RATE:
            errors = (TimeoutError("no reply"), ValueError(f"no data for {subject}"))
            raise chance.choice(errors)

    @app.task(name="charge", queue="checkout", timeout=20)
    def charge(order: int) -> dict[str, int]:
        work(0.05, order)
        return {"order": order, "cents": 100 * order % 9973}

    @app.task(name="receipt", queue="mail", retries=5)
    def receipt(order: int) -> None:
        work(0.03, order)

    @app.task(name="resize", queue="images", timeout=30)
    def resize(name: str) -> None:
        work(0.3, name)

    @app.task(name="report", queue="analytics")
    def report(order: int) -> None:
        work(0.2, order)

    # Jobs of other protocols arrive with their JSON as the argument.
    for name in ("pick", "warehouse", "restock", "labels"):
        app.task(name=name)(_foreign_task(work))
    return app, Shop(app)


def _foreign_task(work: Any) -> Any:
    def run(order: Any) -> None:
        work(0.05, order)

    return run


class Producers:
    """Pushes over the other protocols, each with a few lines on its socket."""

    def __init__(self, ports: dict[str, int]) -> None:
        import socket  # noqa: PLC0415

        from millrace.client import GoJobQueue  # noqa: PLC0415

        self._sockets = {
            name: socket.create_connection(("127.0.0.1", ports[name]), timeout=10)
            for name in ("workq", "masenko", "qless")
        }
        self._goqueue = GoJobQueue(port=ports["goqueue"]).connect()

    def place(self, order: int) -> None:
        body = jsonlib.dumps([order % MAX_ORDER])
        if order % 2 == 0:
            line = f"add {uuid.uuid4()} warehouse 60000 600000 {len(body)}\r\n{body}\r\n"
            self._send("workq", line.encode())
        if order % 4 == 0:
            task = {"name": "pick", "queue": "warehouse", "payload": [order]}
            self._send("masenko", f"PUSH {jsonlib.dumps(task)}\n".encode())
        if order % 5 == 0:
            self._goqueue.add("labels", body.encode())
        if order % 6 == 0:
            self._send(
                "qless", _resp("QLESS.PUT", 1, "stock", f"restock-{order}", "restock", body,
                               int(time.time()), 0)
            )  # fmt: skip

    def add_recurring(self) -> None:
        """A stock check every ten seconds."""
        now = int(time.time())
        self._send(
            "qless",
            _resp("QLESS.RECUR", 0, "on", "stock", "stock-check", "restock", "[0]", now,
                  "interval", 10, 0),
        )  # fmt: skip

    def _send(self, protocol: str, data: bytes) -> None:
        connection = self._sockets[protocol]
        connection.sendall(data)
        reply = connection.recv(REPLY_BYTES)
        if reply.startswith((b"-", b"ERR")):
            raise RuntimeError(f"{protocol}: {reply.decode(errors='replace')}")


def _resp(*words: object) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)
