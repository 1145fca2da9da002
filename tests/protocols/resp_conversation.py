"""Conversations in RESP with the Qless port: as in conversation.py, and replayed with every CR
and LF in different segments.

    with Resp() as talk:
        client = talk.connect()
        client.asks("PING").hears(b"+PONG\\r\\n")

The port has a few commands of its own instead of those of Qless, on the real engine. They show the
calls, their arguments, and the order of changes and messages.
"""

import re
from collections.abc import Generator, Hashable, Iterable, Iterator
from typing import Any, Self

from conversation import (
    START,
    Client,
    Conversation,
    Step,
    Wire,
    World,
    bytewise,
    cr_and_lf_apart,
    pipelined,
)
from hiredis import Reader

from millrace.engine.engine import Engine
from millrace.engine.job import NewJob
from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.qless.errors import ChangeRefused, ScriptError
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.resp import Reply
from millrace.protocols.qless.script_catalog import Script
from millrace.protocols.registry import FAKTORY
from millrace.protocols.spec import protocol_rules
from millrace.store.records import decode_any, encode
from wires import Dice

OK = b"+OK\r\n"
QUEUED = b"+QUEUED\r\n"
NIL = b"$-1\r\n"
#: A script that is recognized as dialect C.
SCRIPT_C = b"QlessAPI.put = function(now, me, queue, jid, klass, data, delay, ...) end"
SCRIPT_B = b"QlessAPI.put = function(now, queue, jid, klass, data, delay, ...) end"
SCRIPT_D = b"local ReqlessAPI = {}"
SCRIPT_PUT = b"-- Put(1, queue, jid)\nreturn redis.call('hset', KEYS[1], ARGV[1], 1)"
SHA_C = b"29689e4db6e13a280dc45e24f18d2ef48420eb0e"


def request(*words: object) -> bytes:
    """A request in the format of clients."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(map(bulk, parts))


def bulk(text: bytes | str) -> bytes:
    body = text.encode() if isinstance(text, str) else text
    return b"$%d\r\n%b\r\n" % (len(body), body)


def array(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(parts)


class FewCommands:
    """`put` pushes a job and publishes a message, `drop` cancels a job, `echo` returns its
    arguments, `value` returns the requested value.
    """

    def __init__(self, hub: QlessHub) -> None:
        self.hub = hub
        self.kept: dict[str, Script] = {}
        self.flushed = 0

    def call(
        self, dialect: str, command: str, keys: list[bytes], args: list[bytes], now: int
    ) -> Reply:
        if command == "echo":
            return b" ".join([dialect.encode(), b",".join(keys), b",".join(args)])
        words = [word.decode("utf-8", "replace") for word in keys + args] or [""]
        if command == "put":
            return self._put(words[0], now)
        if command == "drop":
            return self._drop(words[0], now)
        if command == "value":
            return VALUES.get(words[0])
        raise ScriptError(f"Unknown command {command}")

    def _put(self, jid: str, now: int) -> Reply:
        engine = self.hub.engine
        if engine.unavailable_reason:
            raise ChangeRefused
        if not jid:
            raise ScriptError('Put(): Arg "jid" missing')
        engine.push(NewJob(jid, "kind", b"{}", FAKTORY, "queue", 3, 60_000_000), now)
        self.hub.pubsub.publish(
            b"ql:log", b'{"jid":"%b","event":"put"}' % jid.encode(), changes=True
        )
        return jid

    def _drop(self, jid: str, now: int) -> Reply:
        job = self.hub.engine.find(jid)
        if job is None:
            return None
        self.hub.engine.cancel(job, now)
        return 1

    def flush(self, now: int, *, all_databases: bool) -> Iterator[None]:
        yield
        self.flushed += 1
        self.hub.engine.flush(now)

    def load_script(self, sha: str, script: Script) -> None:
        if sha in self.kept:
            return
        if self.hub.engine.unavailable_reason:
            raise ChangeRefused
        self.kept[sha] = script
        self.hub.engine.caller.must_wait = True

    def flush_scripts(self) -> None:
        self.kept.clear()
        self.hub.engine.caller.must_wait = True


#: The results of the command `value`.
VALUES: dict[str, Reply] = {
    "nil": None,
    "true": True,
    "false": False,
    "number": 3.7,
    "list": [b"a", 1, None],
    "empty": [],
    "large": b"x" * 100_000,
}


class FewKeys:
    """The ready jobs of a queue as a sorted set, each job as a hash, and one list and one set."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def key_type(self, key: bytes) -> str:
        if key in {b"ql:list", b"ql:set"}:
            return key[3:].decode()
        if key.startswith(b"ql:j:"):
            return "hash" if self.engine.find(key[5:].decode()) is not None else ""
        return "zset" if key == b"ql:q:queue-work" and self.engine.jobs else ""

    def ttl(self, key: bytes, now: int) -> int:
        return -1

    def length(self, key: bytes) -> Generator[None, None, int]:
        yield
        return len(self.scores(key) if self.key_type(key) == "zset" else self.items(key))

    def read(self, key: bytes) -> Generator[None, None, list[Any]]:
        yield
        if self.key_type(key) == "hash":
            return self.fields(key)
        return self.items(key) if self.key_type(key) == "list" else self.members(key)

    def version(self, key: bytes) -> Hashable:
        return None

    def version_of_all(self) -> Hashable:
        return len(self.engine.jobs)

    def scores(self, key: bytes) -> list[tuple[bytes, float]]:
        return [(job.jid.encode(), job.seq / 2) for job in self.engine.jobs.values()]

    def range(
        self, key: bytes, first: int, last: int
    ) -> Generator[None, None, list[tuple[bytes, float]]]:
        yield
        scores = self.scores(key)
        end = last + len(scores) if last < 0 else last
        return scores[max(0, first + len(scores)) if first < 0 else first : end + 1]

    def score(self, key: bytes, member: bytes) -> Generator[None, None, float | None]:
        yield
        return dict(self.scores(key)).get(member)

    def fields(self, key: bytes) -> list[tuple[bytes, bytes]]:
        return [(b"jid", key[5:]), (b"state", b"waiting")]

    def items(self, key: bytes) -> list[bytes]:
        return [b"a", b"b", b"c"]

    def members(self, key: bytes) -> list[bytes]:
        return [b"m", b"n"]

    def names(self) -> Iterable[bytes]:
        jobs = [b"ql:j:" + job.jid.encode() for job in self.engine.jobs.values()]
        return [b"ql:list", b"ql:set", *([b"ql:q:queue-work"] if jobs else []), *jobs]


class RespWorld(World):
    def __init__(self, options: dict[str, Any]) -> None:
        self.now = START
        self.dice = Dice()
        self.engine = Engine(self.dice, protocol_rules())
        self.hub: Any = QlessHub(self.engine, started_at=START - 100_000_000, **options)
        self.hub.api = FewCommands(self.hub)
        self.hub.redis_view = FewKeys(self.engine)
        self.clients = []

    def connect(self) -> Wire:
        wire = Wire(self, QlessConnection(self.hub), assert_one_reply)
        self.clients.append(wire)
        wire.flush()
        return wire

    def tell(self) -> None:
        """Like Server._tell, which also sets a timer for the next due time."""
        while True:
            super().tell()
            while self.hub.connections_with_messages:
                self.hub.connections_with_messages.pop().session.flush()
            when = self.engine.next_timer()
            if when is None or when > self.now:
                return
            self.engine.tick(self.now)

    def snapshot(self) -> dict[str, Any]:
        hub = self.hub
        return {
            "jobs": {seq: decode_any(encode(job)) for seq, job in self.engine.jobs.items()},
            "scratch": {key: repr(hub.scratch.get(key, self.now)) for key in hub.scratch.names(self.now)},
            "size": hub.scratch._size,
            "waiters": {key: len(waiters) for key, waiters in hub.scratch._waiters.items()},
            "watchers": {key: len(watchers) for key, watchers in hub.scratch._watchers.items()},
            "scripts": dict(hub.scripts),
            "kept": dict(hub.api.kept),
            "channels": {name: len(who) for name, who in hub.pubsub.channels.items()},
            "patterns": {name: len(who) for name, who in hub.pubsub.patterns.items()},
            "connections": len(hub.connections),
            "commands": hub.commands,
            "flushed": hub.api.flushed,
            "timers": len(self.engine.timers),
        }  # fmt: skip


def assert_one_reply(reply: bytes) -> None:
    """Every reply is one complete value."""
    reader = Reader(notEnoughData=...)
    reader.feed(reply)
    assert reader.gets() is not ..., reply
    assert not reader.has_data(), reply
    if reply[:1] == b"-":
        assert re.fullmatch(rb"-[A-Z]+ [^\r\n]{1,2100}\r\n", reply), reply


class RespClient(Client):
    connection: QlessConnection  # type: ignore[assignment]

    def asks(self, *words: object) -> Self:
        return self.says(request(*words))

    def hears_resp_error(self, text: str) -> Self:
        """An error with its code: `ERR syntax error`."""
        return self.hears(b"-%b\r\n" % text.encode())

    def hears_message(self, channel: str, payload: str) -> Self:
        return self.hears(array(bulk("message"), bulk(channel), bulk(payload)))

    def speaks_resp3(self) -> Self:
        self.asks("HELLO", 3)
        number = self.connection.number
        return self.hears(greeting(3, number))

    def loads(self, script: bytes = SCRIPT_C) -> Self:
        self.asks("SCRIPT", "LOAD", script)
        self.hears(b"$40\r\n")
        self._line()
        return self


def greeting(protocol: int, number: int) -> bytes:
    sign = b"*14" if protocol == 2 else b"%7"
    parts = (
        *map(bulk, ("server", "redis", "version", "7.2.0", "proto")),
        b":%d\r\n" % protocol,
        bulk("id"),
        b":%d\r\n" % number,
        *map(bulk, ("mode", "standalone", "role", "master", "modules")),
        b"*0\r\n",
    )
    return b"%b\r\n%b" % (sign, b"".join(parts))


class Resp(Conversation):
    world_type = RespWorld
    client_type = RespClient

    def connect(self) -> RespClient:
        client = super().connect()
        assert isinstance(client, RespClient)
        return client

    def playings(self, steps: list[Step]) -> list[tuple[str, list[Step]]]:
        return [
            ("byte by byte", bytewise(steps)),
            ("pipelined", pipelined(steps)),
            ("CR and LF apart", cr_and_lf_apart(steps)),
            ("pipelined, CR and LF apart", cr_and_lf_apart(pipelined(steps))),
        ]
