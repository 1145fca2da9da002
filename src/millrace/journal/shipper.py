"""The shipper: a process of its own, started by the server, that turns its outbox into Parquet.

    python -m millrace.journal.shipper DATA LAKE MOST_EVENTS

It is told on its standard input what to ship (see telling.py), and goes when that ends, as it does
when the server has died. It may be killed at any moment. Its priority is low: it can wait.
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

from .crashing import reached
from .shipment import FAILURES, Shipment, words
from .telling import Told, decode_order, encode

NICE: Final = 10
_PR_SET_PDEATHSIG: Final = 1


def main(folder: Path, lake: Path, most_events: int, begun: int) -> int:
    _be_humble()
    server = ""
    try:
        with Shipment(folder, lake, most_events, begun) as shipment:
            server = shipment.server
            _tell(Told(server, shipment.next))
            for line in sys.stdin.buffer:
                for sealed in shipment.ship(decode_order(line).until):
                    _tell(Told(server, shipment.next, files=1, missing=sealed.missing))
                    reached("told")
                _tell(Told(server, shipment.next, done=True))
    except (*FAILURES, StoreError) as error:
        with suppress(BrokenPipeError):
            _tell(Told(server, 0, error=words(error)))
        return 1
    return 0


def _tell(told: Told) -> None:
    sys.stdout.buffer.write(encode(told) + b"\n")
    sys.stdout.buffer.flush()


def _be_humble() -> None:
    """Take what others leave, and end with whoever started us."""
    os.nice(NICE)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # pyarrow looks for this at every call, which is a tenth of the work where it is not installed.
    sys.modules.setdefault("dateutil", None)  # type: ignore[arg-type]
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    # Rows come by the ten thousand, and none leads to another.
    gc.freeze()
    gc.disable()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
