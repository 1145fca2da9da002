"""Resource usage of a running server, sampled once per second, and its growth."""

import json
import os
import statistics
from pathlib import Path

from millrace.admin.client import request
from millrace.server.control_socket import control_socket_path, short_address
from server_process import ServerProcess

MIB = 1 << 20
#: Sizes that must not grow: the tolerated absolute and relative difference.
BOUNDED = {
    "RSS MiB": (16.0, 0.05),  # the page cache of SQLite grows for a while, up to 32 MiB
    "descriptors": (12, 0.0),
    "database MiB": (16.0, 0.25),
    "log MiB": (12.0, 0.0),
    "jobs": (1000, 0.5),
    "queues": (5, 0.0),
    "timers": (1000, 0.5),
    "stale timers": (2048, 0.0),
    "stale ready entries": (500, 0.0),
}
PAGE = os.sysconf("SC_PAGE_SIZE")


def sizes(folder: Path) -> dict[str, float]:
    """Sizes reported by the server."""
    with short_address(control_socket_path(folder)) as name:
        (answer,) = request(name, {"sizes": True}, 60)
    found: dict[str, float] = json.loads(bytes(answer))
    return found


def sample(server: ServerProcess) -> dict[str, float]:
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    database = server.data / "millrace.db"
    return {
        "RSS MiB": pages * PAGE / MIB,
        "descriptors": len(os.listdir(f"/proc/{server.pid}/fd")),
        "database MiB": database.stat().st_size / MIB,
        "log MiB": database.with_name("millrace.db-wal").stat().st_size / MIB,
        **sizes(server.data),
    }


class Record:
    """The samples of a run, and their changes."""

    def __init__(self) -> None:
        self.samples: list[dict[str, float]] = []
        #: Number of actions by kind.
        self.done: dict[str, int] = {}

    def add(self, sample: dict[str, float]) -> None:
        self.samples.append(sample)

    def change(self, name: str) -> tuple[float, float]:
        """The size after the warm-up and at the end: medians over a fifth of the time each, so that
        a single sample does not matter.
        """
        seen = [sample[name] for sample in self.samples[len(self.samples) // 3 :]]
        part = max(1, len(seen) // 5)
        return statistics.median(seen[:part]), statistics.median(seen[-part:])

    def grown(self) -> list[str]:
        reported = []
        for name, (slack, share) in BOUNDED.items():
            before, after = self.change(name)
            if after > before * (1 + share) + slack:
                reported.append(f"{name} grew from {before:,.1f} to {after:,.1f}")
        return reported

    def table(self) -> str:
        lines = [f"{'':<28}{'warm':>10}{'at the end':>12}{'most':>10}"]
        for name in self.samples[-1]:
            before, after = self.change(name)
            most = max(sample[name] for sample in self.samples)
            lines.append(f"{name:<28}{before:>10,.1f}{after:>12,.1f}{most:>10,.1f}")
        return "\n".join(lines)
