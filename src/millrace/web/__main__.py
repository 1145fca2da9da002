"""`python -m millrace.web`: started by the server, with its settings on standard input."""

import asyncio
import logging
import os
import signal
import socket
import sys
from typing import Final

import uvicorn
import uvloop

from . import settings
from .app import application
from .room import Room

#: The queues come first.
NICE: Final = 5
#: Streams to browsers do not end by themselves.
END_WITHIN: Final = 1


class Lines(logging.Formatter):
    """`LEVEL text` on one line, which the server puts into its log."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += " | " + self.formatException(record.exc_info)
        return f"{record.levelname} {' | '.join(text.splitlines())}"


def main() -> int:
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    os.nice(NICE)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(Lines())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    for noisy in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    uvloop.run(_serve(settings.decode(line)))
    return 0


async def _serve(told: settings.Settings) -> None:
    room = Room(told)
    config = uvicorn.Config(
        application(room),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=told.cert or None,
        ssl_keyfile=told.key or None,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=END_WITHIN,
        h11_max_incomplete_event_size=65_536,
        limit_concurrency=1000,
    )
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    rest = bytearray()

    def heard() -> None:
        """New settings, or the end of the server."""
        data = os.read(0, 65_536)
        if not data:
            loop.remove_reader(0)
            server.should_exit = True
            room.close()
            return
        rest.extend(data)
        while (end := rest.find(b"\n")) >= 0:
            room.settings = settings.decode(bytes(rest[:end]))
            del rest[: end + 1]

    os.set_blocking(0, False)
    loop.add_reader(0, heard)
    sockets = [socket.socket(fileno=number) for number in told.sockets]
    await server.serve(sockets)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the server's to hear
    sys.exit(main())
