"""What a running server takes, once a second; and whether any of it grows."""

import json
import os
import statistics
from pathlib import Path

from millrace.admin.client import request
from millrace.server.control_socket import beside, socket_of
from server_process import ServerProcess

MIB = 1 << 20
#: What must not grow: by so much it may differ by chance, and by this share of what it was.
BOUNDED = {
    "RSS MiB": (16.0, 0.05),  # SQLite's pages in memory become more for a while, up to 32 MiB
    "descriptors": (12, 0.0),
    "database MiB": (16.0, 0.25),
    "log MiB": (12.0, 0.0),
    "jobs": (1000, 0.5),
    "queues": (5, 0.0),
    "timers": (1000, 0.5),
    "timers that are over": (2048, 0.0),
    "ready jobs that are over": (500, 0.0),
}
PAGE = os.sysconf("SC_PAGE_SIZE")


def sizes(folder: Path) -> dict[str, float]:
    """What the server itself says."""
    with beside(socket_of(folder)) as name:
        (answer,) = request(name, {"sizes": True}, 60)
    found: dict[str, float] = json.loads(bytes(answer))
    return found


def look(server: ServerProcess) -> dict[str, float]:
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
    """What was seen, and what has become of it."""

    def __init__(self) -> None:
        self.looks: list[dict[str, float]] = []
        #: How often what was done.
        self.done: dict[str, int] = {}

    def add(self, look: dict[str, float]) -> None:
        self.looks.append(look)

    def change(self, name: str) -> tuple[float, float]:
        """How large it was after the warm-up, and at the end: medians of a fifth of the time each,
        so that it does not matter what was there at one moment.
        """
        seen = [look[name] for look in self.looks[len(self.looks) // 3 :]]
        part = max(1, len(seen) // 5)
        return statistics.median(seen[:part]), statistics.median(seen[-part:])

    def grown(self) -> list[str]:
        told = []
        for name, (slack, share) in BOUNDED.items():
            before, after = self.change(name)
            if after > before * (1 + share) + slack:
                told.append(f"{name} grew from {before:,.1f} to {after:,.1f}")
        return told

    def table(self) -> str:
        lines = [f"{'':<28}{'warm':>10}{'at the end':>12}{'most':>10}"]
        for name in self.looks[-1]:
            before, after = self.change(name)
            most = max(look[name] for look in self.looks)
            lines.append(f"{name:<28}{before:>10,.1f}{after:>12,.1f}{most:>10,.1f}")
        return "\n".join(lines)
