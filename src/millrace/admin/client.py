"""The client of the admin socket."""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final, TypeVar

import msgspec

from millrace.records import ErrorReply

from .errors import AdminError

T = TypeVar("T")

#: So many connections are kept for the next question.
KEPT: Final = 8
#: So many are open at once; those who want another one wait.
MOST: Final = 64
#: And so many for those who ask for what takes its time, as a job that is yet to come.
MOST_PATIENT: Final = 256
#: An answer may hold a large payload, in base64.
LONGEST: Final = 64 << 20
#: The server answers within milliseconds, unless something is wrong with it.
PATIENCE: Final = 15.0
#: Shipping everything that waits may take a while.
SHIPPED_WITHIN: Final = 120.0

_encode = msgspec.json.Encoder().encode
_decode_error = msgspec.json.Decoder(ErrorReply).decode


class Line:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, request: dict[str, Any]) -> None:
        self.writer.write(_encode(request) + b"\n")
        await self.writer.drain()

    async def hear(self) -> bytes:
        line = await self.reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the server has ended")
        if line.startswith(b'{"error":'):
            told = _decode_error(line)
            raise AdminError(told.error, told.code)
        return line

    def close(self) -> None:
        self.writer.close()


class AdminClient:
    def __init__(self, path: str) -> None:
        self._folder, self._name = os.path.split(path)
        self._idle: deque[Line] = deque()
        self._room = asyncio.Semaphore(MOST)
        self._waiting = asyncio.Semaphore(MOST_PATIENT)

    async def ask(self, type_: type[T], *, patience: float | None = PATIENCE, **request: Any) -> T:
        """The server's answer: `await control.ask(Queues, queues=AskedQueues(most=50))`"""
        return msgspec.json.decode(await self.raw(patience=patience, **request), type=type_)

    async def raw(self, *, patience: float | None = PATIENCE, **request: Any) -> bytes:
        """The same, as the line that it is."""
        patient = patience is None or patience > PATIENCE
        async with self._line(self._waiting if patient else self._room) as line:
            async with asyncio.timeout(patience):
                await line.say(request)
                return await line.hear()

    async def follow(self, type_: type[T], **request: Any) -> AsyncIterator[T]:
        """All that the server has to say to something long, as it comes; closing it stops that."""
        line = await self._open()
        try:
            await line.say(request)
            while True:
                yield msgspec.json.decode(await line.hear(), type=type_)
        except (OSError, EOFError) as error:
            raise _gone(error) from error
        finally:
            line.close()

    def close(self) -> None:
        while self._idle:
            self._idle.popleft().close()

    @contextlib.asynccontextmanager
    async def _line(self, room: asyncio.Semaphore) -> AsyncIterator[Line]:
        async with room:
            line = None
            while self._idle and line is None:
                line = self._idle.pop()
                if line.reader.at_eof() or line.writer.is_closing():
                    line = None
            if line is None:
                line = await self._open()
            clean = False
            try:
                yield line
                clean = True
            except AdminError:
                clean = True
                raise
            except (OSError, EOFError, TimeoutError) as error:
                raise _gone(error) from error
            finally:
                if clean and len(self._idle) < KEPT:
                    self._idle.append(line)
                else:
                    line.close()  # an answer may still be on its way

    async def _open(self) -> Line:
        try:
            # However deep the folder is, the name of a socket must be short.
            folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                path = f"/proc/self/fd/{folder}/{self._name}"
                return Line(*await asyncio.open_unix_connection(path, limit=LONGEST))
            finally:
                os.close(folder)
        except OSError as error:
            raise _gone(error) from error


def _gone(error: BaseException) -> AdminError:
    reason = "it does not answer" if isinstance(error, TimeoutError) else str(error)
    return AdminError(f"the server cannot be asked: {reason}", "unavailable")
