"""Runs a command for the server at low priority, and ends it when the server ends.

python -m millrace.cli.background pipeline run ...
"""

import os
import signal
import sys
from threading import Thread
from typing import Final

NICENESS: Final = 10


def main() -> int:
    os.nice(NICENESS)
    Thread(target=_watch, name="watch", daemon=True).start()
    from millrace.cli import main as millrace  # noqa: PLC0415 - loaded after the watch starts

    return millrace()


def _watch() -> None:
    """End this process group when standard input closes: the server holds its other end."""
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
