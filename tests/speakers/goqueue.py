"""Go Job Queue: strings that end in NUL, little-endian numbers, data after its length."""

from collections.abc import Iterator
from math import ceil
from struct import pack, unpack_from
from typing import NamedTuple

from .speaker import Accepted, Answer, Held, Leased, Nothing, Refused, Speaker, Work


class Reply(NamedTuple):
    word: bytes
    number: int = 0
    data: bytes = b""


class GoqueueSpeaker(Speaker):
    """DELETE completes a leased job, and cancels any other."""

    protocol = "goqueue"
    can = frozenset({"priority", "ttr", "wait", "cancel"})
    least_wait = 1.0

    def __init__(self, name: str = "worker") -> None:
        super().__init__(name)
        self._buffer = bytearray()

    def push(self, work: Work, now: int) -> bytes:
        assert work.rank <= 0, "the lower number is first, and there is none below 0"
        numbers = pack("<III", -work.rank, ceil(work.ttr), len(work.payload))
        return self._ask("push", "", b"ADD\0%b\0" % work.queue.encode() + numbers + work.payload)

    def lease(self, queue: str, now: int, wait: float = 0) -> bytes:
        timeout = pack("<I", ceil(max(wait, self.least_wait)))
        return self._ask("lease", queue, b"RESERVE\0%b\0" % queue.encode() + timeout)

    def complete(self, held: Held, now: int, result: bytes = b"") -> bytes:
        return self._ask("complete", held.id, b"DELETE\0" + pack("<Q", int(held.id)))

    def cancel(self, job: str, now: int) -> bytes:
        return self._ask("cancel", job, b"DELETE\0" + pack("<Q", int(job)))

    def _replies(self, data: bytes) -> Iterator[Reply]:
        self._buffer += data
        while (found := self._next(bytes(self._buffer))) is not None:
            reply, size = found
            del self._buffer[:size]
            yield reply

    def _next(self, data: bytes) -> tuple[Reply, int] | None:
        """The first reply and its number of bytes."""
        word, found, rest = data.partition(b"\0")
        if not found:
            return None
        at = len(word) + 1
        if word == b"ERROR":
            text, found, _ = rest.partition(b"\0")
            return (Reply(word, 0, text), at + len(text) + 1) if found else None
        if word == b"ADDED":
            return (Reply(word, unpack_from("<Q", rest)[0]), at + 8) if len(rest) >= 8 else None
        if word != b"RESERVED":
            return Reply(word), at
        if len(rest) < 29 or len(rest) < 29 + (size := unpack_from("<I", rest, 25)[0]):
            return None
        assert rest[16:25] == b"reserved\0"
        return Reply(word, unpack_from("<Q", rest)[0], rest[29 : 29 + size]), at + 29 + size

    def _answer(self, command: str, job: str, reply: Reply) -> Answer:
        if reply.word == b"ERROR":
            return Refused(command, job, reply.data.decode())
        if reply.word == b"TIMEOUT":
            return Nothing(command, "")
        number = str(reply.number)
        if reply.word == b"RESERVED":  # `job` is the queue: replies do not name it
            held = Held(id=number, queue=job, kind="", payload=reply.data)
            return Leased(command, number, held)
        return Accepted(command, number if reply.word == b"ADDED" else job)
