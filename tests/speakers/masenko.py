"""Masenko: a verb and its JSON, one line each."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

from .members import members
from .speaker import Accepted, Answer, Held, Leased, Nothing, Refused, Speaker, Work


class MasenkoSpeaker(Speaker):
    """Its payloads are JSON; an empty one is none. Its connection holds its leases."""

    protocol = "masenko"
    can = frozenset({"kind", "schedule", "dependency", "retries", "dead queue", "wait", "fail"})
    least_wait = 0.000_001

    def __init__(self, name: str = "worker") -> None:
        super().__init__(name)
        self._buffer = bytearray()

    def ping(self) -> bytes:
        return self._ask("ping", "", b"PING\n")

    def push(self, work: Work, now: int) -> bytes:
        fields: dict[str, object] = {"name": work.kind, "queue": work.queue}
        if work.retries is not None:
            fields["retry"] = work.retries
        if work.due:
            moment = datetime.fromtimestamp(-(-work.due // 1_000_000), UTC)
            fields["execute_at"] = f"{moment:%Y-%m-%dT%H:%M:%S}Z"
        if work.after:
            fields["blocked_by"] = [int(job) for job in work.after]
        if work.dead_queue:
            fields["deadqueue"] = work.dead_queue
        line = b"PUSH " + json.dumps(fields).encode()
        if work.payload:
            line = b'%b,"payload":%b}' % (line[:-1], work.payload)
        return self._ask("push", "", line + b"\n")

    def lease(self, queue: str, now: int, wait: float = 0) -> bytes:
        timeout = round(max(wait, self.least_wait) * 1_000_000_000)
        fields = {"queues": [queue], "timeout": timeout}
        return self._ask("lease", "", b"FETCH %b\n" % json.dumps(fields).encode())

    def complete(self, held: Held, now: int, result: bytes = b"") -> bytes:
        return self._ask("complete", held.id, f'ACK {{"id":{held.id}}}\n'.encode())

    def fail(self, held: Held, now: int, message: str = "failed") -> bytes:
        return self._ask("fail", held.id, f'NACK {{"id":{held.id}}}\n'.encode())

    def _replies(self, data: bytes) -> Iterator[bytes]:
        self._buffer += data
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        yield from lines

    def _answer(self, command: str, job: str, reply: bytes) -> Answer:
        verb, _, text = reply.partition(b" ")
        if verb == b"EMPTY":
            return Nothing(command, job)
        if verb == b"ERR":
            problem = json.loads(text)["msg"]
            if (
                problem == "no heartbeat" and command
            ):  # the last message of the server, not a reply to a command
                self._asked.appendleft((command, job))
                command = job = ""
            return Refused(command, job, problem)
        if command == "push":
            return Accepted(command, str(json.loads(text)["id"]))
        if command != "lease":
            return Accepted(command, job)
        task = members(text)
        held = Held(
            id=task["id"].decode(),
            queue=json.loads(task["queue"]),
            kind=json.loads(task["name"]),
            payload=task.get("payload", b""),
            encoding=json.loads(task.get("encoding", b'""')),
            failures=int(task.get("failures", b"0")),
        )
        return Leased(command, held.id, held)
