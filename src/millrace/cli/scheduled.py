"""What a server runs on a schedule: a command that takes what others leave of the processor, and
does not outlive the server.

    python -m millrace.cli.scheduled pipeline run ...
"""

import os
import signal
import sys
from threading import Thread
from typing import Final

NICE: Final = 10


def main() -> int:
    os.nice(NICE)
    Thread(target=_watch, name="watch", daemon=True).start()
    from millrace.cli import main as millrace  # noqa: PLC0415 - what it loads can wait

    return millrace()


def _watch() -> None:
    """The server holds the other end, and says nothing: if that closes, the server is gone."""
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
