"""`make soak`: thirty days on a virtual clock, then mixed load on all five ports for a given time.

    python tests/soak/soak.py [--duration 3600] [--days 30] [--dir FOLDER]

Ctrl-C ends it early; the samples so far are evaluated. It fails if a bounded size grew, and prints
that size.
"""

import argparse
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from census import grown
from days import Days, lower_thresholds
from mixed_load import Load
from watch import Record, sample

from server_process import ServerProcess, running_server

SETTINGS = {
    # Low limits, so that bounded sizes reach their limits during the run.
    "MILLRACE_JOURNAL_OUTBOX_MAX": "8MiB",
    "MILLRACE_FAKTORY_DEAD_MAX": "200",
    "MILLRACE_GOQUEUE_MAX_DELIVERIES": "5",
}
QLESS = (
    b"QLESS.CONFIG 0 set jobs-history-count 200\r\nQLESS.CONFIG 0 set heartbeat 2\r\n"
    b"QLESS.CONFIG 0 set grace-period 1\r\n"
)


def configure(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.ports["qless"]), 10) as client:
        client.sendall(QLESS + b"QUIT\r\n")
        while client.recv(4096):
            pass


def soak(
    folder: Path, seconds: float, *, pause: float = 0.01, report_every: float = 60.0
) -> Record:
    """Run the load for this number of seconds and return the samples. Fails on unexpected
    replies.
    """
    record = Record()
    with running_server(folder / "data", **SETTINGS) as server:
        configure(server)
        load = Load(server.ports, seed=1, pause=pause)
        load.start()
        began = reported = time.monotonic()
        try:
            while (gone := time.monotonic() - began) < seconds:
                time.sleep(min(1.0, seconds / 20))
                record.add(sample(server))
                if time.monotonic() - reported >= report_every:
                    reported = time.monotonic()
                    seen = record.samples[-1]
                    print(
                        f"{gone:6.0f} s  {sum(load.done.values()):>9,} done  "
                        f"RSS {seen['RSS MiB']:.1f} MiB  {seen['descriptors']:.0f} descriptors  "
                        f"{seen['jobs']:.0f} jobs  {seen['timers']:.0f} timers",
                        flush=True,
                    )
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        load.stop()
        assert server.alive, server.stderr
        errors = [r for r in server.log_records() if r["level"] == "error"]
        assert errors == [], errors[:3]
    assert load.errors == [], load.errors[:5]
    record.done = dict(load.done)
    return record


def live_days(count: int, folder: Path) -> dict[str, tuple[int, int]]:
    """The containers that grew between day five and the last day."""
    lower_thresholds(setattr)  # only affects this process, which has no other store
    days = Days(1, folder)
    before = None
    for day in range(1, count + 1):
        for _ in range(24):
            days.hour()
        if day in {5, count}:
            days.rest()
            after = days.sizes()
            before = before or after
    days.close()
    return grown(before, after, 20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--duration", type=float, default=3600.0, help="seconds of load (3600)")
    parser.add_argument("--days", type=int, default=30, help="days on a virtual clock (30)")
    parser.add_argument("--dir", type=Path, default=None, help="folder for the data")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-soak-", dir=options.dir) as folder:
        if options.days:
            print(f"{options.days} days on a virtual clock", flush=True)
            changes = live_days(options.days, Path(folder) / "days")
            for name, (before, after) in changes.items():
                print(f"failed: {name} grew from {before:,} to {after:,}")
            if changes:
                return 1
        print(f"{options.duration:,.0f} s of load on all five ports", flush=True)
        record = soak(Path(folder), options.duration)
    print(record.table())
    print(", ".join(f"{count:,} {what}" for what, count in sorted(record.done.items())))
    for problem in record.grown():
        print(f"failed: {problem}")
    return 1 if record.grown() else 0


if __name__ == "__main__":
    sys.exit(main())
