"""`python -m millrace.web`: the server starts this process and sends settings on standard input."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from typing import Final

import uvloop

from . import settings
from .app import application
from .server import load_certificates, server
from .state import AppState

#: Niceness of the process. The queue server has priority.
NICE: Final = 5


class LogFormatter(logging.Formatter):
    """Formats a record as `LEVEL text` on one line. The server writes it to its log."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += " | " + self.formatException(record.exc_info)
        return f"{record.levelname} {' | '.join(text.splitlines())}"


def main() -> int:
    with open(0, "rb", buffering=0, closefd=False) as told:  # unbuffered: only one line
        line = told.readline()
    if not line:
        return 0
    os.nice(NICE)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(LogFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    # Do not log invalid requests.
    for noisy in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        uvloop.run(_serve(settings.decode(line)))
    except OSError as error:
        logging.getLogger(__name__).error("the web pages cannot be served: %s", error)  # noqa: TRY400 - no trace
        return 1
    return 0


async def _serve(told: settings.WebSettings) -> None:
    app_state = AppState(told)
    serving = server(application(app_state), told, app_state.close)
    loop = asyncio.get_running_loop()
    rest = bytearray()

    def heard() -> None:
        """Read new settings. End of file means that the server stops."""
        data = os.read(0, 65_536)
        if not data:
            loop.remove_reader(0)
            serving.should_exit = True
            app_state.close()
            return
        rest.extend(data)
        while (end := rest.find(b"\n")) >= 0:
            changed = settings.decode(bytes(rest[:end]))
            app_state.reload(changed)
            if serving.config.ssl is not None:
                # The server has checked the files; the next change follows if they changed again.
                with contextlib.suppress(OSError):
                    load_certificates(serving.config.ssl, changed)
            del rest[: end + 1]

    os.set_blocking(0, False)
    loop.add_reader(0, heard)
    sockets = [socket.socket(fileno=number) for number in told.sockets]
    await serving.serve(sockets)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C
    sys.exit(main())
