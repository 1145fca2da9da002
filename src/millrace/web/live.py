"""The live stream: server-sent events with current figures.

An event is the overview in the form of the HTTP API. The first one of a stream has the samples of
the last ten minutes, each later one only the newest sample and the current day.

While there are listeners, the process sends one request per second to the server, independent of
the number of listeners.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import cached_property
from typing import Any, Final

import msgspec

from millrace.admin.client import AdminClient
from millrace.admin.errors import AdminError
from millrace.records import Overview
from millrace.records.forms import to_http

EVERY: Final = 1.0
#: Maximum events queued for a listener. If the queue is full, the oldest event is dropped.
MAX_BUFFERED: Final = 4
MAX_LISTENERS: Final = 500
#: Maximum seconds of a stream. The client then reconnects and authenticates again.
LASTS: Final = 600.0


_encode = msgspec.json.Encoder().encode


class LiveEvent:
    """The overview at one time, or the reason why it is unknown."""

    def __init__(self, overview: Overview | None, error: str = "") -> None:
        self._overview, self._error = overview, error

    @cached_property
    def complete(self) -> bytes:
        """The event for a listener that has received no overview yet."""
        if self._overview is None:
            return _event("away", self._error)
        return _event("overview", to_http(self._overview))

    @cached_property
    def update(self) -> bytes:
        """The event for the other listeners."""
        overview = self._overview
        if overview is None:
            return self.complete
        samples, days = overview.samples[-1:], overview.days[-1:]
        newest = msgspec.structs.replace(overview, samples=samples, days=days)
        return _event("overview", to_http(newest))

    @property
    def has_overview(self) -> bool:
        return self._overview is not None


def _event(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(data))


class LiveStream:
    def __init__(self, control: AdminClient) -> None:
        self._control = control
        self._listeners: set[asyncio.Queue[LiveEvent | None]] = set()
        self._asking: asyncio.Task[None] | None = None
        self._last: LiveEvent | None = None

    @property
    def is_full(self) -> bool:
        return len(self._listeners) >= MAX_LISTENERS

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events for one listener."""
        queue: asyncio.Queue[LiveEvent | None] = asyncio.Queue(MAX_BUFFERED)
        loop = asyncio.get_running_loop()
        until, last = loop.time() + LASTS, self._last
        self._listeners.add(queue)
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        try:
            yield b"retry: 2000\n\n" + (b"" if last is None else last.complete)
            is_new = last is None or not last.has_overview
            while (event := await queue.get()) and loop.time() < until:
                yield event.complete if is_new else event.update
                is_new = is_new and not event.has_overview
        finally:
            self._listeners.discard(queue)
            if not self._listeners and self._asking is not None:
                self._asking.cancel()
                self._asking = None

    def close(self) -> None:
        """End all streams."""
        for queue in self._listeners:
            _put(queue, None)

    async def _ask(self) -> None:
        while True:
            try:
                self._last = LiveEvent(await self._control.ask(Overview, overview=True))
            except (AdminError, msgspec.DecodeError) as error:
                self._last = LiveEvent(None, str(error))
            for queue in self._listeners:
                _put(queue, self._last)
            await asyncio.sleep(EVERY)


def _put(queue: asyncio.Queue[LiveEvent | None], event: LiveEvent | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(event)
