"""The control client: pushes, leases and completes one job after the other, at a moderate rate.

It is a separate process, so that only the server can delay it:

    python control.py PORT [CYCLES_A_SECOND]

It continues until its standard input ends. Then it prints its measurements: a line for each command
with the send time (on the monotonic clock, which all processes share) and the latency. It fails on
an unexpected reply.
"""

import select
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from raw_faktory import RawFaktory

QUEUE = "control"
#: The first commands include the start-up of this process, and are not counted.
WARM_UP = 10


class Control:
    def __init__(self, port: int) -> None:
        self._client = RawFaktory(port, wid="control", timeout=60.0)
        self._number = 0
        self.samples: list[tuple[float, float]] = []

    def cycle(self) -> None:
        self._number += 1
        jid = f"control-{self._number:08}"
        unit = {"jid": jid, "jobtype": "Control", "queue": QUEUE, "args": [self._number]}
        pushed = self._timed("PUSH", unit)
        leased = self._timed(f"FETCH {QUEUE}")
        completed = self._timed("ACK", {"jid": jid})
        if pushed != "OK" or completed != "OK" or jid.encode() not in (leased or b""):
            raise AssertionError(f"{jid}: {pushed!r}, {leased!r}, {completed!r}")

    def _timed(self, verb: str, argument: Any = None) -> Any:
        sent = time.monotonic()
        reply = self._client.command(verb, argument)
        self.samples.append((sent, time.monotonic() - sent))
        return reply


def main() -> None:
    control = Control(int(sys.argv[1]))
    every = 1 / float(sys.argv[2] if len(sys.argv) > 2 else "50")
    for _ in range(WARM_UP):
        control.cycle()
    control.samples.clear()
    print("ready", flush=True)
    due = time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
        # After a stall the missed cycles are skipped: the rate stays moderate.
        due = max(due + every, time.monotonic())
        control.cycle()
    sys.stdout.writelines(f"{sent:.6f} {took:.6f}\n" for sent, took in control.samples)


if __name__ == "__main__":
    main()
