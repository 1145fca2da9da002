"""A description of the machine and the command for the report."""

import datetime as dt
import os
import platform
import shlex
import signal
import sys
import time
from pathlib import Path

FSYNC_SECONDS = 0.5
BLOCK = b"x" * 4096
PROBE_BLOCKS = 256


def describe(folder: Path) -> dict[str, str]:
    """Facts for the reader, in display order."""
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
        "CPU": f"{cpu_model()}, {os.cpu_count()} cores",
        "load before": f"{os.getloadavg()[0]:.2f} (1 min)",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": platform.python_version(),
        "data on": f"{filesystem(folder)}, {fsyncs(folder):,.0f} fdatasync/s of 4 KiB in place",
    }


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def filesystem(folder: Path) -> str:
    """The type of the file system that holds this folder."""
    inside = folder.resolve()
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, this_kind, *_ = line.split(" ")
        if inside.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, this_kind
    return kind


def fsyncs(folder: Path) -> float:
    """Syncs per second of this disk: the limit of a server that syncs once per command.

    The blocks are preallocated, as in server logs: a file that grows with every write adds the cost
    of the file system's own journal.
    """
    path = folder / "fsync-probe"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.write(handle, BLOCK * PROBE_BLOCKS)
        os.fsync(handle)
        count, began = 0, time.monotonic()
        while time.monotonic() - began < FSYNC_SECONDS:
            os.pwrite(handle, BLOCK, count % PROBE_BLOCKS * len(BLOCK))
            os.fdatasync(handle)
            count += 1
        return count / (time.monotonic() - began)
    finally:
        os.close(handle)
        path.unlink()


def stop_on_sigterm() -> None:
    """Exit through the `with` blocks, so that every server is stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
