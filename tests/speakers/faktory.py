"""Faktory: a verb and its JSON, one line each; replies in RESP."""

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from hiredis import Reader, ReplyError

from raw_faktory import line

from .members import members
from .speaker import Accepted, Answer, Held, Leased, Nothing, Refused, Reported, Speaker, Work


class FaktorySpeaker(Speaker):
    """Its payloads are JSON arrays. Its name identifies the worker."""

    protocol = "faktory"
    can = frozenset({"id", "kind", "schedule", "retries", "ttr", "wait", "fail"})
    least_wait = 2.0

    def __init__(self, name: str = "worker", password: str = "") -> None:
        super().__init__(name)
        self._password = password
        self._reader = Reader(replyError=ReplyError)
        #: The terms of the server's greeting, which the server sends without a request.
        self._terms: dict[str, Any] | None = None

    def hello(self) -> bytes:
        """With a password, the greeting must have been received before."""
        fields = {"v": 2, "wid": self.name, "hostname": "tests", "pid": 1, "labels": []}
        if self._password:
            assert self._terms is not None, "receive the greeting first"
            digest = (self._password + self._terms["s"]).encode()
            for _ in range(self._terms["i"]):
                digest = hashlib.sha256(digest).digest()
            fields["pwdhash"] = digest.hex()
        return self._ask("hello", "", line("HELLO", fields))

    def ping(self) -> bytes:
        return self._ask("ping", "", line("BEAT", {"wid": self.name}))

    def push(self, work: Work, now: int) -> bytes:
        return self._ask("push", work.id, b"PUSH %b\r\n" % self.unit(work))

    def push_many(self, works: list[Work]) -> bytes:
        """One command; the reply lists the jobs that are invalid."""
        units = b",".join(self.unit(work) for work in works)
        return self._ask("push many", "", b"PUSHB [%b]\r\n" % units)

    def extension(self, name: str, fields: dict[str, Any], jobs: list[Work] | None = None) -> bytes:
        """MILLRACE with these fields, and with jobs if they are given."""
        text = json.dumps(fields).encode()
        if jobs is not None:
            units = b",".join(self.unit(work) for work in jobs)
            text = b'%b,"jobs":[%b]}' % (text[:-1], units)
        return self._ask(f"millrace {name}", "", b"MILLRACE %b\r\n" % text)

    def unit(self, work: Work) -> bytes:
        """A job as JSON."""
        fields: dict[str, Any] = {"jid": work.id, "jobtype": work.kind, "queue": work.queue}
        if work.retries is not None:
            fields["retry"] = work.retries
        if work.due:
            moment = datetime.fromtimestamp(work.due // 1_000_000, UTC)
            fields["at"] = f"{moment:%Y-%m-%dT%H:%M:%S}.{work.due % 1_000_000:06}Z"
        fields["reserve_for"] = round(work.ttr)
        if work.tags or work.keep_result:
            own: dict[str, Any] = {"tags": work.tags}
            if work.keep_result:
                own["keep_result"] = work.keep_result
            fields["custom"] = {"millrace": own}
        unit = json.dumps(fields).encode()
        return b'%b,"args":%b}' % (unit[:-1], work.payload)

    def lease(self, queue: str, now: int, wait: float = 0) -> bytes:
        return self._ask("lease", "", f"FETCH {queue}\r\n".encode())

    def complete(self, held: Held, now: int, result: bytes = b"") -> bytes:
        """Without the result: plain Faktory has none."""
        return self._ask("complete", held.id, line("ACK", {"jid": held.id}))

    def complete_with(self, held: Held, result: bytes) -> bytes:
        """As the SDK's workers complete a job."""
        fields = {"jid": held.id, "result": result.decode()}
        return self._ask("complete", held.id, line("ACK", fields))

    def fail(self, held: Held, now: int, message: str = "failed") -> bytes:
        fields = {"jid": held.id, "errtype": "Failed", "message": message}
        return self._ask("fail", held.id, line("FAIL", fields))

    def receive(self, data: bytes) -> list[Answer]:
        if self._terms is None:
            self._asked.appendleft(("greeting", ""))
            answers = super().receive(data)
            if self._terms is None:
                assert self._asked[0][0] == "greeting"
                self._asked.popleft()
            return answers
        return super().receive(data)

    def _replies(self, data: bytes) -> Iterator[Any]:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            yield reply

    def _answer(self, command: str, job: str, reply: Any) -> Answer | None:
        if isinstance(reply, ReplyError):
            return Refused(command, job, str(reply))
        if command == "greeting":
            self._terms = json.loads(reply.removeprefix(b"HI "))
            return None
        if command == "push many" or command.startswith("millrace "):
            return Reported(command, job, reply)
        if command != "lease":
            return Accepted(command, job)
        if reply is None:
            return Nothing(command, job)
        unit = members(reply)
        custom = json.loads(unit.get("custom", b"{}"))
        failure = json.loads(unit.get("failure", b'{"retry_count":-1}'))
        held = Held(
            id=json.loads(unit["jid"]),
            queue=json.loads(unit["queue"]),
            kind=json.loads(unit["jobtype"]),
            payload=unit["args"],
            encoding=custom.get("encoding", ""),
            failures=failure["retry_count"] + 1,
        )
        return Leased(command, held.id, held)
