"""Run the pipeline on a Spark cluster with a master and two workers in separate processes, and run
the same events on this machine. All tables must be equal.

    python bench/cluster.py [--seconds 5] [--rate 200]

The events are from a workload over all five protocols. All ports are free ports on loopback, and
all processes and files are removed at the end.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from machine import stop_on_sigterm
from millrace.pipeline import java
from support.oracle import TableOracle
from workload import Load, run, serving

MILLRACE = Path(sys.executable).with_name("millrace")
SPARK = Path(pyspark.__file__).parent
CLASSES = "org.apache.spark.deploy"
WORKERS = 2
WAIT_TIMEOUT = 120.0


class Standalone:
    """A master and its workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.master = f"spark://127.0.0.1:{port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._env = {
            **{name: value for name, value in os.environ.items() if name not in java.AMBIENT},
            "JAVA_HOME": str(java.ensure().home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOG_DIR": str(folder),
        }
        self._port = str(port)

    def start(self) -> None:
        """Start the processes and wait until the workers are registered."""
        where = ("--host", "127.0.0.1", "--webui-port", "0")
        self._start("master", "master.Master", *where, "--port", self._port)
        self._wait("master", "I have been elected leader")
        for number in range(1, WORKERS + 1):
            name = f"worker-{number}"
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / name))
            self._start(name, "worker.Worker", *where, *size, self.master)
        for number in range(1, WORKERS + 1):
            self._wait(f"worker-{number}", "Successfully registered with master")

    def _start(self, name: str, kind: str, *args: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [SPARK / "bin/spark-class", f"{CLASSES}.{kind}", *args],
                    env=self._env,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _wait(self, name: str, words: str) -> None:
        log, deadline = self._folder / f"{name}.log", time.monotonic() + WAIT_TIMEOUT
        while words not in log.read_text(errors="replace"):
            if time.monotonic() > deadline or any(p.poll() is not None for p in self._processes):
                raise SystemExit(f"cluster: the {name} does not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)

    def close(self) -> None:
        """Stop the workers first: they end their executors."""
        for process in reversed(self._processes):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    cluster = Standalone(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def pipeline(lake: Path, master: str) -> float:
    """Run the pipeline and its audit. Returns the seconds that both took."""
    began = time.monotonic()
    where = ("--lake", str(lake), "--master", master)
    # Otherwise the driver listens on the address of this machine's host name.
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    for command in (("run",), ("audit", "--no-live")):
        ran = subprocess.run(
            [MILLRACE, "pipeline", *command, *where],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if ran.returncode:
            raise SystemExit(f"cluster: {command[0]} failed on {master}:\n{ran.stdout}")
    return time.monotonic() - began


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5, help="how long the workload lasts (5)")
    parser.add_argument("--rate", type=float, default=200, help="its jobs a second (200)")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    stop_on_sigterm()
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="millrace-cluster-") as name:
        folder = Path(name)
        console.print(f"cluster: a workload of {options.seconds:g} s")
        with serving(folder / "data") as ports:
            run("127.0.0.1", ports, Load(options.seconds, options.rate))
        for copy in ("here", "there"):
            shutil.copytree(folder / "data/lake/events", folder / copy / "events")
        console.print("cluster: the pipeline on this machine")
        here = pipeline(folder / "here", "local[2]")
        console.print(f"cluster: it took {here:.0f} s; a master and {WORKERS} workers start")
        (folder / "spark").mkdir()
        with standalone(folder / "spark") as cluster:
            console.print(f"cluster: the pipeline on {cluster.master}")
            there = pipeline(folder / "there", cluster.master)
        used = {path.parents[1].name for path in (folder / "spark").glob("worker-*/app-*/*")}
        console.print(f"cluster: it took {there:.0f} s, on {len(used)} workers")
        wrong = [
            line
            for lake in ("here", "there")
            for line in TableOracle(folder / lake).all_differences()
        ]
        for line in wrong:
            console.print(f"cluster: {line}")
    if wrong or len(used) != WORKERS:
        return 1
    console.print("cluster: all tables are correct on both")
    return 0


if __name__ == "__main__":
    sys.exit(main())
