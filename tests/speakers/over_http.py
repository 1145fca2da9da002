"""HTTP, as it arrives at the server: the web process sends lines of JSON over the control
socket.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import msgspec

from admin_room import content
from millrace.admin.client import hello

from .speaker import Accepted, Answer, Held, Leased, Nothing, Refused, Speaker, Work


class HttpSpeaker(Speaker):
    """A lease includes a token, which is the right to end it."""

    protocol = "http"
    can = frozenset(
        {"id", "kind", "schedule", "priority", "dependency", "retries", "ttr", "wait"}
        | {"fail", "renew", "release", "cancel"}
    )

    def __init__(self, name: str = "worker") -> None:
        super().__init__(name)
        self._buffer = b""

    def hello(self) -> bytes:
        return self._ask("hello", "", hello())

    def push(self, work: Work, now: int) -> bytes:
        job = {
            "jid": work.id,
            "queue": work.queue,
            "payload": b64encode(work.payload).decode(),
            "kind": work.kind,
            "priority": work.rank,
            "at": work.due,
            "lease_for": round(work.ttr * 1_000_000),
            "waits_for": work.after,
        }
        if work.retries is not None:
            job["retries"] = work.retries
        return self._asks("push", work.id, push={"jobs": [job], "by": self.name})

    def lease(self, queue: str, now: int, wait: float = 0) -> bytes:
        asked = {"queues": [queue], "worker": self.name, "wait": round(wait * 1_000_000)}
        return self._asks("lease", "", lease=asked)

    def complete(self, held: Held, now: int, result: bytes = b"") -> bytes:
        given = {"result": b64encode(result).decode()} if result else {}
        return self._end("complete", held, **given)

    def fail(self, held: Held, now: int, message: str = "failed") -> bytes:
        return self._end("fail", held, group="Failed", message=message)

    def renew(self, held: Held, now: int) -> bytes:
        return self._end("renew", held)

    def release(self, held: Held, now: int) -> bytes:
        return self._end("release", held)

    def cancel(self, job: str, now: int) -> bytes:
        return self._asks("cancel", job, act={"action": "delete", "jobs": [job], "by": self.name})

    def _end(self, action: str, held: Held, **more: str) -> bytes:
        asked = {"token": held.token or held.id, "action": action, "by": self.name}
        return self._asks(action, held.id, end={**asked, **more})

    def _asks(self, command: str, job: str, **request: Any) -> bytes:
        return self._ask(command, job, msgspec.json.encode(request) + b"\n")

    def _replies(self, data: bytes) -> Iterator[dict[str, Any]]:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return map(content, lines)

    def _answer(self, command: str, job: str, reply: dict[str, Any]) -> Answer:
        if "error" in reply:
            return Refused(command, job, reply["error"])
        if command == "cancel" and reply["skipped"]:
            return Refused(command, job, reply["skipped"][0]["reason"])
        if command != "lease":
            return Accepted(command, job)
        if not reply["jobs"]:
            return Nothing(command, job)
        (leased,) = reply["jobs"]
        row = leased["job"]
        held = Held(
            id=row["jid"],
            queue=row["queue"],
            kind=row["kind"],
            payload=b64decode(row["payload"]),
            failures=row["failures"],
            token=leased["token"],
        )
        return Leased(command, held.id, held)
