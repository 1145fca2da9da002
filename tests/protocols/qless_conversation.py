"""Conversations in Qless, in all its dialects, with the real commands behind the port: as in
resp_conversation.py.

    with Qless() as talk:
        c = talk.speaks("C")
        assert c("put", 10, "w1", "q", "jid", "klass", "{}", 0) == "jid"
        assert c.refused("pop", 11) == "Queue(): no queue name provided"
        assert c.json("get", 12, "jid")["state"] == "waiting"

Every call is one request and its complete reply: a bulk string is a str, an integer an int, an array
a list, nil is None, so that the types stay distinct.
"""

import json
from hashlib import sha1
from typing import Any, Self

from hiredis import Reader, ReplyError
from resp_conversation import (
    SCRIPT_B,
    SCRIPT_C,
    Resp,
    RespClient,
    RespWorld,
    array,
    bulk,
)

from millrace.engine.job import Job, NewJob
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.registry import FAKTORY
from millrace.store.records import decode_any, encode
from support.plain import field_names

__all__ = ["Qless", "QlessClient", "array", "bulk", "job_fields"]

SCRIPTS = {"B": SCRIPT_B, "C": SCRIPT_C}


def script_of(command: str) -> bytes:
    """A script that is recognized as this command of dialect A."""
    return b"-- %b(0, ...)\nreturn redis.call('get', ARGV[1])" % command.title().encode()


def sha_of(script: bytes) -> str:
    return sha1(script, usedforsecurity=False).hexdigest()


class QlessWorld(RespWorld):
    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.api = QlessApi(self.hub)

    def snapshot(self) -> dict[str, Any]:
        qless = self.api.qless
        return {
            "jobs": {seq: decode_any(encode(job)) for seq, job in self.engine.jobs.items()},
            "queues": {q.name: (q.paused, q.counts) for q in self.engine.queues.values()},
            "notes": dict(self.engine.settings),
            "workers": dict(qless.workers.last_seen),
            "tags": {tag: dict(seqs) for tag, seqs in qless.tags.items()},
            "scripts": dict(self.hub.scripts),
            "connections": len(self.hub.connections),
            "timers": len(self.engine.timers),
        }


class QlessClient(RespClient):
    dialect = "C"

    def _ask(self, command: str, args: tuple[object, ...]) -> Any:
        if self.dialect == "spec":
            self.asks(f"QLESS.{command}", *args)
        elif self.dialect == "A":
            self.asks("EVALSHA", sha_of(script_of(command)), *args)
        else:
            self.asks("EVALSHA", sha_of(SCRIPTS[self.dialect]), 0, command, *args)
        return self.reply()

    def reply(self) -> Any:
        """The next reply."""
        begins = 0
        for reply in self.wire.replies:
            if begins == self._taken:
                break
            begins += len(reply)
        else:
            self._talk.failed = True
            raise AssertionError("no reply left")
        reader = Reader(encoding="utf-8")
        reader.feed(reply)
        self._taken += len(reply)
        return reader.gets()

    def __call__(self, command: str, *args: object) -> Any:
        value = self._ask(command, args)
        if isinstance(value, ReplyError):
            self._talk.failed = True
            raise AssertionError(value)  # noqa: TRY004
        return value

    def json(self, command: str, *args: object) -> Any:
        value = self(command, *args)
        assert isinstance(value, str), value
        return json.loads(value)

    def refused(self, command: str, *args: object) -> str:
        """The error message of a command that fails as a script would."""
        value = self._ask(command, args)
        text = str(value)
        if not isinstance(value, ReplyError) or not text.startswith("ERR user_script:1: "):
            self._talk.failed = True
            raise AssertionError(f"expected an error, heard {value!r}")
        return text.removeprefix("ERR user_script:1: ")

    def listens(self, *patterns: str) -> Self:
        self.asks("PSUBSCRIBE", *(patterns or ("*",)))
        for _ in patterns or ("*",):
            self.reply()
        return self

    def hears_events(self) -> list[tuple[str, str]]:
        """Channels and messages since the last call."""
        found = []
        while len(self.wire.heard) > self._taken:
            kind, _, channel, message = self.reply()
            assert kind == "pmessage"
            found.append((channel, message))
        return found

    # Common commands in dialect C

    def put(
        self, now: float, jid: str, *options: object, queue: str = "q", delay: float = 0
    ) -> Any:
        return self("put", now, "putter", queue, jid, "klass", "{}", delay, *options)

    def pop(self, now: float, count: int = 1, *, queue: str = "q", worker: str = "w1") -> list[str]:
        return [job["jid"] for job in self.json("pop", now, queue, worker, count)]

    def get(self, jid: str, now: float = 0) -> dict[str, Any]:
        job = self.json("get", now, jid)
        assert isinstance(job, dict)
        return job

    def state(self, jid: str) -> str:
        return str(self.get(jid)["state"])


class Qless(Resp):
    world_type = QlessWorld
    client_type = QlessClient

    def speaks(self, dialect: str, *commands: str) -> QlessClient:
        """A client that has loaded its scripts; for dialect A those of these commands."""
        client = self.connect()
        assert isinstance(client, QlessClient)
        client.dialect = dialect
        scripts = [script_of(name) for name in commands] if dialect == "A" else []
        for script in scripts or filter(None, [SCRIPTS.get(dialect)]):
            client.asks("SCRIPT", "LOAD", script)
            assert client.reply() == sha_of(script)
        return client

    def pushes_faktory(self, jid: str, queue: str = "q", payload: bytes = b'[1,"two"]') -> None:
        push = NewJob(jid, "SomeJob", payload, FAKTORY, queue, 3, 60_000_000)
        self.acts(lambda world: world.engine.push(NewJob(*_fields(push)), world.now))

    def job(self, jid: str) -> Job:
        job = self.engine.find(jid)
        assert job is not None
        return job


def _fields(push: NewJob) -> list[Any]:
    return [getattr(push, name) for name in field_names(NewJob)]


def job_fields(job: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(job[name] for name in names)
