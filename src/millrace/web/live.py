"""The live stream: server-sent events with current figures.

While there are listeners, the process sends one request per second to the server, independent of
the number of listeners.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from millrace.admin.client import AdminClient
from millrace.admin.errors import AdminError

EVERY: Final = 1.0
#: Maximum events queued for a listener. If the queue is full, the oldest event is dropped.
MAX_BUFFERED: Final = 4
MAX_LISTENERS: Final = 500
#: Maximum seconds of a stream. The client then reconnects and authenticates again.
LASTS: Final = 600.0


class LiveStream:
    def __init__(self, control: AdminClient) -> None:
        self._control = control
        self._listeners: set[asyncio.Queue[bytes]] = set()
        self._asking: asyncio.Task[None] | None = None
        self._last = b""

    @property
    def is_full(self) -> bool:
        return len(self._listeners) >= MAX_LISTENERS

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events for one listener."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_BUFFERED)
        loop = asyncio.get_running_loop()
        until = loop.time() + LASTS
        self._listeners.add(queue)
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        try:
            yield b"retry: 2000\n\n" + self._last
            while (event := await queue.get()) and loop.time() < until:
                yield event
        finally:
            self._listeners.discard(queue)
            if not self._listeners and self._asking is not None:
                self._asking.cancel()
                self._asking = None

    def close(self) -> None:
        """End all streams."""
        for queue in self._listeners:
            _put(queue, b"")

    async def _ask(self) -> None:
        while True:
            try:
                line = await self._control.raw(overview=True)  # unchanged: JSON on one line
                self._last = b"event: overview\ndata: %b\n" % line
            except AdminError as error:
                self._last = b"event: away\ndata: %b\n\n" % msgspec.json.encode(str(error))
            for queue in self._listeners:
                _put(queue, self._last)
            await asyncio.sleep(EVERY)


def _put(queue: asyncio.Queue[bytes], event: bytes) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(event)
