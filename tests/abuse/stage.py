"""One abuser, one control client, one server, and the effect of the abuser on the control client.

Method: the control client works at the same moderate rate all the time: before, during and after
the abuse. Each of its commands is timed. The compared value is the median of the 99th percentiles
of windows of one second, because machines that run tests have other load, and a single delay of the
machine must not count as the server's. Values below FLOOR count as FLOOR: where a reply takes 1 ms
undisturbed, 6 ms are harmless, and the scheduler of a busy machine causes as much.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from server_process import ServerProcess

HERE = Path(__file__).parent
#: Seconds. See above.
FLOOR = 0.005
WINDOW = 1.0
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> float:
    """Resident memory in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / (1 << 20)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


class Child:
    """A script of this folder that runs until its input is closed."""

    def __init__(self, script: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, HERE / script, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line != "ready\n":
            raise AssertionError(f"{line!r}; {self._end()}")

    def stop(self, timeout: float = 90.0) -> str:
        """Close its input. Returns its output."""
        out, err = self._process.communicate(timeout=timeout)
        if self._process.returncode:
            raise AssertionError(f"{self._process.args}: {err}")
        return out

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _end(self) -> str:
        self._process.kill()
        return self._process.communicate()[1]


class Memory(threading.Thread):
    """Samples the server's memory and keeps the maximum."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self.peak = resident(pid)

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while not self._over.wait(0.02):
                self.peak = max(self.peak, resident(self._pid))

    def stop(self) -> None:
        self._over.set()
        self.join()


@dataclass
class Latencies:
    """The latencies of one phase of a run in seconds, with the send time of each command."""

    samples: list[tuple[float, float]]

    def quantile(self, share: float) -> float:
        took = sorted(each for _, each in self.samples)
        return took[min(len(took) - 1, int(share * len(took)))]

    @property
    def typical_p99(self) -> float:
        """The median of the windows' 99th percentiles."""
        windows: dict[int, list[tuple[float, float]]] = {}
        began = self.samples[0][0]
        for sent, took in self.samples:
            windows.setdefault(int((sent - began) / WINDOW), []).append((sent, took))
        return statistics.median(Latencies(each).quantile(0.99) for each in windows.values())

    @property
    def worst(self) -> float:
        return max(took for _, took in self.samples)


@dataclass
class Outcome:
    """The result of a scenario."""

    name: str
    undisturbed: Latencies
    disturbed: Latencies
    #: The counts of the abuser.
    met: dict[str, int]
    #: The server's memory in MiB: before, maximum, and after the abuser has disconnected.
    rss: tuple[float, float, float]
    #: The server's CPU seconds per second during the abuse.
    cpu: float
    fields: dict[str, object] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        before = max(FLOOR, self.undisturbed.typical_p99)
        return max(FLOOR, self.disturbed.typical_p99) / before

    def row(self) -> list[str]:
        calm, harm = self.undisturbed, self.disturbed
        return [
            self.name,
            f"{calm.quantile(0.5) * 1000:.1f} / {calm.quantile(0.99) * 1000:.1f}",
            f"{harm.quantile(0.5) * 1000:.1f} / {harm.quantile(0.99) * 1000:.1f}",
            f"{harm.worst * 1000:.0f}",
            f"{self.ratio:.2f}",
            " / ".join(f"{each:.0f}" for each in self.rss),
            f"{self.cpu * 100:.0f} %",
        ]


@contextlib.contextmanager
def control_client(port: int, rate: float) -> Iterator[Child]:
    control = Child("control.py", port, rate)
    try:
        yield control
    finally:
        control.kill()


def play(
    server: ServerProcess, name: str, size: int, *, calm: float, harm: float, rate: float = 50.0
) -> Outcome:
    """Run an abuser for `harm` seconds, between two phases of `calm` seconds."""
    with control_client(server.port, rate) as control:
        control.wait_ready()
        before, memory = resident(server.pid), Memory(server.pid)
        memory.start()
        began = time.monotonic()
        time.sleep(calm)
        abuser = Child("abusers.py", name, size, json.dumps(server.ports))
        try:
            abuser.wait_ready()
            harmed, cpu = time.monotonic(), cpu_seconds(server.pid)
            time.sleep(harm)
            ended, cpu = time.monotonic(), cpu_seconds(server.pid) - cpu
            met = json.loads(abuser.stop())
        finally:
            abuser.kill()
        time.sleep(0.3)  # until the server has closed all of its connections
        calmed = time.monotonic()
        time.sleep(calm)
        lines = control.stop().splitlines()
        memory.stop()
        after = resident(server.pid)
    samples = [(float(sent), float(took)) for sent, took in map(str.split, lines)]
    return Outcome(
        name,
        Latencies([s for s in samples if began <= s[0] < harmed - 1 or s[0] > calmed]),
        Latencies([s for s in samples if harmed <= s[0] < ended]),
        met,
        (before, memory.peak, after),
        cpu / (ended - harmed),
    )
