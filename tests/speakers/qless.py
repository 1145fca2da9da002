"""Qless in the dialect of all its current clients: one script, called over RESP with the command,
the time and the arguments. The server never runs the script, so a line of it is enough.
"""

import json
from collections.abc import Iterator
from hashlib import sha1
from typing import Any

from hiredis import Reader, ReplyError

from .speaker import Accepted, Answer, Held, Leased, Nothing, Refused, Speaker, Work

SCRIPT = b"QlessAPI.put = function(now, me, queue, jid, klass, data, delay, ...) end"
SHA = sha1(SCRIPT, usedforsecurity=False).hexdigest()
#: The failure group of all failed jobs.
GROUP = "failed-by-tests"


class QlessSpeaker(Speaker):
    """Its payloads are JSON. Its name identifies the holder of a job."""

    protocol = "qless"
    can = frozenset(
        {"id", "kind", "schedule", "priority", "dependency", "retries"}
        | {"fail", "bury", "renew", "release", "cancel"}
    )

    def __init__(self, name: str = "worker") -> None:
        super().__init__(name)
        self._reader = Reader(replyError=ReplyError)

    def hello(self) -> bytes:
        return self._ask("hello", "", _request("SCRIPT", "LOAD", SCRIPT))

    def push(self, work: Work, now: int) -> bytes:
        delay = _seconds(max(0, work.due - now))
        options: list[object] = ["priority", work.rank] if work.rank else []
        if work.retries is not None:
            options += ["retries", work.retries]
        if work.after:
            options += ["depends", json.dumps(work.after)]
        if work.tags:
            options += ["tags", json.dumps(work.tags)]
        if work.limits:
            options += ["throttles", json.dumps(work.limits)]
        given = (work.queue, work.id, work.kind, work.payload, delay, *options)
        return self._call("push", work.id, "put", now, self.name, *given)

    def lease(self, queue: str, now: int, wait: float = 0) -> bytes:
        return self._call("lease", "", "pop", now, queue, self.name, 1)

    def complete(self, held: Held, now: int, result: bytes = b"") -> bytes:
        """A result, which must be JSON, replaces the job's data in the command."""
        given = (held.id, self.name, held.queue, result or held.payload)
        return self._call("complete", held.id, "complete", now, *given)

    def fail(self, held: Held, now: int, message: str = "failed") -> bytes:
        given = (held.id, held.queue, self.name, 0, GROUP, message)
        return self._call("fail", held.id, "retry", now, *given)

    def bury(self, held: Held, now: int, message: str = "failed") -> bytes:
        return self._call("bury", held.id, "fail", now, held.id, self.name, GROUP, message)

    def renew(self, held: Held, now: int) -> bytes:
        return self._call("renew", held.id, "heartbeat", now, held.id, self.name)

    def release(self, held: Held, now: int) -> bytes:
        return self._call("release", held.id, "timeout", now, held.id)

    def cancel(self, job: str, now: int) -> bytes:
        return self._call("cancel", job, "cancel", now, job)

    def _call(self, command: str, job: str, name: str, now: int, *args: object) -> bytes:
        return self._ask(command, job, _request("EVALSHA", SHA, 0, name, _seconds(now), *args))

    def _replies(self, data: bytes) -> Iterator[Any]:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            yield reply

    def _answer(self, command: str, job: str, reply: Any) -> Answer:
        if isinstance(reply, ReplyError):
            return Refused(command, job, str(reply).removeprefix("ERR user_script:1: "))
        if command != "lease":
            return Accepted(command, job)
        found = json.loads(reply)
        if not found:
            return Nothing(command, job)
        fields = found[0]
        held = Held(
            id=fields["jid"],
            queue=fields["queue"],
            kind=fields["klass"],
            payload=fields["data"].encode(),
            encoding=fields.get("encoding", ""),
            failures=fields["retries"] - fields["remaining"],
        )
        return Leased(command, held.id, held)


def _request(*words: object) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    bulks = (b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%b" % (len(parts), b"".join(bulks))


def _seconds(microseconds: int) -> str:
    """Exact, without a float."""
    whole, rest = divmod(microseconds, 1_000_000)
    return f"{whole}.{rest:06}" if rest else str(whole)
