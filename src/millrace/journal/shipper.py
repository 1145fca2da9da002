"""The shipper: a process that the server starts. It ships the outbox to the lake.

    python -m millrace.journal.shipper DATA LAKE MAX_EVENTS BEGUN

It reads requests from its standard input (see messages.py) and exits at the end of the input, which
is also the end of the server. It can be killed at any time. It runs with low priority.
"""

import ctypes
import gc
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from millrace.store.errors import StoreError

from .crash_points import crash_point
from .location import LakeLocation, parse_location
from .messages import ShipperReply, decode_request, encode
from .shipment import FAILURES, Shipment, describe

log = logging.getLogger(__name__)

NICE: Final = 10
_PR_SET_PDEATHSIG: Final = 1


def main(folder: Path, lake: LakeLocation, max_events: int, begun: int) -> int:
    _lower_priority()
    server = ""
    try:
        with Shipment(folder, lake, max_events, begun) as shipment:
            server = shipment.server
            _send(ShipperReply(server, shipment.next))
            for line in sys.stdin.buffer:
                for shipped in shipment.ship(decode_request(line).until):
                    _send(
                        ShipperReply(
                            server, shipment.next, files=shipped.files, missing=shipped.missing
                        )
                    )
                    crash_point("reported")
                _send(ShipperReply(server, shipment.next, done=True))
                _maintain(shipment)
    except (*FAILURES, StoreError) as error:
        with suppress(BrokenPipeError):
            _send(ShipperReply(server, 0, error=describe(error)))
        return 1
    return 0


def _maintain(shipment: Shipment) -> None:
    """Maintenance must not prevent shipping."""
    try:
        shipment.maintain()
    except FAILURES as error:
        log.warning("The maintenance of the lake failed: %s", describe(error))


def _send(reply: ShipperReply) -> None:
    sys.stdout.buffer.write(encode(reply) + b"\n")
    sys.stdout.buffer.flush()


def _lower_priority() -> None:
    """Run with low priority, and end with the server."""
    os.nice(NICE)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Rows contain no reference cycles, and a commit has tens of thousands of them.
    gc.freeze()
    gc.disable()


if __name__ == "__main__":
    sys.exit(
        main(Path(sys.argv[1]), parse_location(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    )
