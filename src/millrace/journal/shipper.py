"""The shipper: a process that the server starts. It writes the outbox to the lake as Parquet files.

    python -m millrace.journal.shipper DATA LAKE MOST_EVENTS BEGUN

It reads requests from its standard input (see messages.py) and exits at the end of the input, which
is also the end of the server. It can be killed at any time. It runs with low priority.
"""

import ctypes
import gc
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from millrace.store.errors import StoreError

from .crash_points import crash_point
from .messages import ShipperReply, decode_request, encode
from .shipment import FAILURES, Shipment, describe

NICE: Final = 10
_PR_SET_PDEATHSIG: Final = 1


def main(folder: Path, lake: Path, most_events: int, begun: int) -> int:
    _lower_priority()
    server = ""
    try:
        with Shipment(folder, lake, most_events, begun) as shipment:
            server = shipment.server
            _tell(ShipperReply(server, shipment.next))
            for line in sys.stdin.buffer:
                for sealed in shipment.ship(decode_request(line).until):
                    _tell(ShipperReply(server, shipment.next, files=1, missing=sealed.missing))
                    crash_point("told")
                _tell(ShipperReply(server, shipment.next, done=True))
    except (*FAILURES, StoreError) as error:
        with suppress(BrokenPipeError):
            _tell(ShipperReply(server, 0, error=describe(error)))
        return 1
    return 0


def _tell(told: ShipperReply) -> None:
    sys.stdout.buffer.write(encode(told) + b"\n")
    sys.stdout.buffer.flush()


def _lower_priority() -> None:
    """Run with low priority, and end with the server."""
    os.nice(NICE)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # pyarrow searches for this module in every call: a tenth of the CPU time if it is missing.
    sys.modules.setdefault("dateutil", None)  # type: ignore[arg-type]
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    # Rows contain no reference cycles, and a file has tens of thousands of them.
    gc.freeze()
    gc.disable()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
