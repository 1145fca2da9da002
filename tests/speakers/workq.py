"""Workq: lines that end in CRLF, and blocks with their size in the line before."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from .speaker import Accepted, Answer, Held, Leased, Nothing, Refused, Result, Speaker, Work


class Reply(NamedTuple):
    """The first line; for a lease or a result also the second line and its block."""

    line: bytes
    head: list[bytes]
    block: bytes


class WorkqSpeaker(Speaker):
    """A job's name is both its queue and its kind."""

    protocol = "workq"
    can = frozenset(
        {"id", "schedule", "priority", "retries", "attempts", "ttr", "ttl", "wait"}
        | {"fail", "cancel", "result"}
    )

    def __init__(self, name: str = "worker") -> None:
        super().__init__(name)
        self._buffer = bytearray()

    def push(self, work: Work, now: int) -> bytes:
        ttl = _milliseconds(work.ttl)
        line = f"{work.id} {work.queue} {_milliseconds(work.ttr)} {ttl}"
        if work.due:
            moment = datetime.fromtimestamp(work.due // 1_000_000, UTC)
            moment = moment.replace(microsecond=work.due % 1_000_000)
            line = f"schedule {line} {moment:%Y-%m-%dT%H:%M:%S.%f}Z"
        else:
            line = f"add {line}"
        flags = f" -priority={work.rank}" if work.rank else ""
        if work.retries is not None:
            flags += f" -max-fails={work.retries + 1}"
        if work.most_attempts:
            flags += f" -max-attempts={work.most_attempts}"
        return self._ask("push", work.id, _block(line, work.payload, flags))

    def run(self, work: Work, now: int, wait: float) -> bytes:
        line = f"run {work.id} {work.queue} {_milliseconds(work.ttr)} {_milliseconds(wait)}"
        flags = f" -priority={work.rank}" if work.rank else ""
        return self._ask("run", work.id, _block(line, work.payload, flags))

    def lease(self, queue: str, now: int, wait: float = 0) -> bytes:
        return self._ask("lease", "", f"lease {queue} {_milliseconds(wait)}\r\n".encode())

    def complete(self, held: Held, now: int, result: bytes = b"") -> bytes:
        return self._ask("complete", held.id, _block(f"complete {held.id}", result))

    def fail(self, held: Held, now: int, message: str = "failed") -> bytes:
        return self._ask("fail", held.id, _block(f"fail {held.id}", message.encode()))

    def cancel(self, job: str, now: int) -> bytes:
        return self._ask("cancel", job, f"delete {job}\r\n".encode())

    def result(self, job: str, now: int, wait: float = 0) -> bytes:
        return self._ask("result", job, f"result {job} {_milliseconds(wait)}\r\n".encode())

    def _replies(self, data: bytes) -> Iterator[Reply]:
        self._buffer += data
        while (reply := self._next()) is not None:
            yield reply

    def _next(self) -> Reply | None:
        line, found, rest = bytes(self._buffer).partition(b"\r\n")
        if not found:
            return None
        head: list[bytes] = []
        block = b""
        if line == b"+OK 1":
            second, found, rest = rest.partition(b"\r\n")
            head = second.split(b" ")
            if not found or len(rest) < int(head[-1]) + 2:
                return None
            size = int(head[-1])
            block, end, rest = rest[:size], rest[size : size + 2], rest[size + 2 :]
            assert end == b"\r\n", "a block must end in CRLF"
        self._buffer = bytearray(rest)
        return Reply(line, head, block)

    def _answer(self, command: str, job: str, reply: Reply) -> Answer:
        if reply.head and command == "lease":
            jid, queue = reply.head[0].decode(), reply.head[1].decode()
            return Leased(command, jid, Held(id=jid, queue=queue, kind=queue, payload=reply.block))
        if reply.head:
            return Result(command, job, reply.head[1] == b"1", reply.block)
        if reply.line == b"+OK":
            return Accepted(command, job)
        if reply.line == b"-TIMEOUT":
            return Nothing(command, job)
        return Refused(command, job, reply.line[1:].decode())


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _block(line: str, block: bytes, flags: str = "") -> bytes:
    return b"%b %d%b\r\n%b\r\n" % (line.encode(), len(block), flags.encode(), block)
