"""Conversations: input and replies of clients, without sockets, on a virtual clock.

    with Conversation() as talk:
        worker = talk.client(wid="worker-1")
        worker.says(b"FETCH\r\n").hears_nothing()
        talk.advance(2)
        worker.hears(b"$-1\r\n")

A conversation runs three times. The first run follows the test: each `says` is one segment, and every
`hears` is checked immediately. At the end it is replayed twice in new worlds, and every client must
receive the same bytes, and the same replies must wait for the commit:
- byte by byte;
- pipelined: consecutive inputs of a client are sent together, also across a wait that blocks the
  client.

wires.py connects the connections with the engine.
"""

import json
import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

import wires
from millrace.engine.engine import Engine
from millrace.protocols.faktory.connection import FaktoryConnection
from millrace.protocols.faktory.hub import FaktoryHub
from millrace.store.records import decode_any, encode
from wires import SECOND, START, Wire

OK = b"+OK\r\n"
NULL_BULK = b"$-1\r\n"
HI = b'+HI {"v":2}\r\n'
#: The values of the example of a protected server.
CHALLENGE = (1545, "55104dc76695721d")


class World(wires.World):
    """One engine, one hub, a clock, and the connections so far."""

    def __init__(self, options: dict[str, Any]) -> None:
        options = {"dead_max": 100_000, **options}
        super().__init__(dead_max=options.pop("dead_max"))
        self.hub = FaktoryHub(
            self.engine,
            started_at=START,
            challenge=lambda: CHALLENGE,
            memory_mb=lambda: 7,
            **options,
        )

    def connect(self) -> "Wire":
        wire = Wire(self, FaktoryConnection(self.hub), assert_one_reply)
        self.clients.append(wire)
        wire.flush()
        return wire

    def snapshot(self) -> dict[str, Any]:
        """The complete state of the engine that a client can change."""
        engine = self.engine
        return {
            "jobs": {seq: decode_any(encode(job)) for seq, job in engine.jobs.items()},
            "queues": {q.name: (q.paused, list(q.counts)) for q in engine.queues.values() if q.registered},
            "totals": (engine.totals.processed, engine.totals.failures),
            "workers": {w.wid: (w.state, w.rss_kb, w.last_heartbeat_at) for w in self.hub.workers.known.values()},
            "connections": len(self.hub.connections),
        }  # fmt: skip


def assert_one_reply(reply: bytes) -> None:
    """Every reply is one complete RESP value, and safe for clients that read lines."""
    assert reply.endswith(b"\r\n"), reply
    if reply[:1] in {b"+", b"-"}:
        assert b"\r" not in reply[:-2], reply
        assert b"\n" not in reply[:-2], reply
        assert len(reply) < 5000, "an error must not echo without bound"
        reply.decode()
        assert reply[:1] == b"+" or reply.startswith(b"-ERR "), reply
        return
    head, _, rest = reply.partition(b"\r\n")
    assert head[:1] == b"$", reply
    if head != b"$-1":
        body = rest[:-2]
        assert len(body) == int(head[1:]), reply
        assert b"\n" not in body, "clients read bulk strings as lines"
        if body.count(b"[") < 500:  # the standard library's decoder does not read deeper values
            json.loads(body)


class Step(NamedTuple):
    """A step of the first run."""

    what: str
    client: int = -1
    data: bytes = b""
    microseconds: int = 0
    act: Callable[[World], object] | None = None
    #: Clients that waited for a job during the whole step, so that their next input may also be
    #: sent before it.
    blocked: frozenset[int] = frozenset()
    #: The step ended the wait of another client, which then continued before the next input.
    woke: bool = False


class Client:
    """One client of a conversation. The test must consume all of its replies, in order."""

    def __init__(self, talk: "Conversation", number: int) -> None:
        self._talk = talk
        self._number = number
        self._taken = 0

    @property
    def wire(self) -> Wire:
        return self._talk.world.clients[self._number]

    @property
    def connection(self) -> FaktoryConnection:
        return self.wire.connection

    def says(self, data: bytes) -> Self:
        self._talk.do_step(Step("says", self._number, data))
        return self

    def hangs_up(self) -> Self:
        self._talk.do_step(Step("hangs up", self._number))
        return self

    def says_no_more(self) -> Self:
        """The client closes its half of the connection, and continues to read."""
        self._talk.do_step(Step("says no more", self._number))
        return self

    def stops_reading(self) -> Self:
        """From now on the server cannot write to the client."""
        self._talk.do_step(Step("stops reading", self._number))
        return self

    def hears(self, *expected: bytes) -> Self:
        wanted = b"".join(expected)
        heard = bytes(self.wire.heard[self._taken : self._taken + len(wanted)])
        if heard != wanted:
            self._talk.failed = True
            heard = bytes(self.wire.heard[self._taken :])
        assert heard == wanted
        self._taken += len(wanted)
        return self

    def hears_ok(self) -> Self:
        return self.hears(OK)

    def hears_error(self, text: str) -> Self:
        return self.hears(b"-ERR " + text.encode() + b"\r\n")

    def hears_error_like(self, start: str) -> str:
        """An error that starts with `start`; returns its text."""
        line = self._line()
        wanted = b"-ERR " + start.encode()
        if not line.startswith(wanted):
            self._talk.failed = True
        assert line[: len(wanted)] == wanted, line
        return line[5:].decode()

    def hears_bulk(self) -> bytes:
        head = self._line()
        assert head[:1] == b"$", head
        assert head != b"$-1", "expected a job, received none"
        size = int(head[1:])
        body = bytes(self.wire.heard[self._taken : self._taken + size])
        self._taken += size + 2
        return body

    def hears_json(self) -> Any:
        return json.loads(self.hears_bulk())

    def hears_nothing(self) -> Self:
        """No further reply was sent."""
        heard = bytes(self.wire.heard[self._taken :])
        if heard:
            self._talk.failed = True
        assert heard == b""
        return self

    def hears_the_end(self) -> Self:
        """The server has closed the connection, without a further reply."""
        self.hears_nothing()
        assert self.wire.closed, "the connection is still open"
        return self

    def is_still_there(self) -> Self:
        assert not self.wire.closed
        return self

    def _line(self) -> bytes:
        end = self.wire.heard.find(b"\r\n", self._taken)
        if end < 0:
            self._talk.failed = True
        assert end >= 0, f"no reply left:{bytes(self.wire.heard[self._taken :])!r}"
        line = bytes(self.wire.heard[self._taken : end])
        self._taken = end + 2
        return line

    # Common commands

    def pushes(self, unit: dict[str, Any]) -> Self:
        return self.says(b"PUSH %b\r\n" % compact(unit)).hears_ok()

    def fetches(self, *queues: str) -> dict[str, Any]:
        """FETCH, and the work unit that is returned immediately."""
        self.says(" ".join(("FETCH", *queues)).encode() + b"\r\n")
        unit = self.hears_json()
        assert isinstance(unit, dict)
        return unit

    def finds_nothing(self, *queues: str) -> Self:
        """FETCH, and no job arrives within two seconds."""
        self.says(" ".join(("FETCH", *queues)).encode() + b"\r\n").hears_nothing()
        self._talk.advance(2)
        return self.hears(NULL_BULK)

    def acks(self, jid: str) -> Self:
        return self.says(b"ACK %b\r\n" % compact({"jid": jid})).hears_ok()

    def fails(self, jid: str, **fields: Any) -> Self:
        return self.says(b"FAIL %b\r\n" % compact({"jid": jid, **fields})).hears_ok()

    def mutates(self, cmd: str, target: str, **filters: Any) -> Self:
        operation: dict[str, Any] = {"cmd": cmd, "target": target}
        if filters:
            operation["filter"] = filters
        return self.says(b"MUTATE %b\r\n" % compact(operation)).hears_ok()

    def info(self) -> dict[str, Any]:
        self.says(b"INFO\r\n")
        info = self.hears_json()
        assert isinstance(info, dict)
        return info

    def sets(self) -> dict[str, int]:
        """The sizes of INFO's four sets, and the number of queued jobs."""
        faktory = self.info()["faktory"]
        return {**faktory["sets"], "enqueued": faktory["total_enqueued"]}


class Conversation:
    #: The classes that a conversation of another protocol replaces.
    world_type: Callable[[dict[str, Any]], World] = World
    client_type: type[Client] = Client

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.world = self.world_type(options)
        self._steps: list[Step] = []
        self._clients: list[Client] = []
        self.failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()

    # Clients

    def connect(self) -> Client:
        """A client that has received no reply yet, not even the greeting."""
        self.do_step(Step("connects", len(self._clients)))
        client = self.client_type(self, len(self._clients))
        self._clients.append(client)
        return client

    def client(self, wid: str = "", **hello: Any) -> Client:
        """A client after the handshake."""
        fields: dict[str, Any] = {"v": 2, **({"wid": wid} if wid else {}), **hello}
        return self.connect().hears(HI).says(b"HELLO %b\r\n" % compact(fields)).hears_ok()

    # Other steps

    def advance(self, seconds: float) -> None:
        self.do_step(Step("time passes", microseconds=round(seconds * SECOND)))

    def acts(self, act: Callable[[World], object]) -> None:
        """An action outside of the wire; it is repeated in every run."""
        self.do_step(Step("something happens", act=act))

    @property
    def engine(self) -> Engine:
        """For reading; changes go through `acts`."""
        return self.world.engine

    @property
    def hub(self) -> FaktoryHub:
        return self.world.hub

    @property
    def now(self) -> int:
        return self.world.now

    # Runs

    def do_step(self, step: Step) -> None:
        wires = self.world.clients
        waited = [number for number, wire in enumerate(wires) if wire.waits]
        try:
            play(self.world, step)
        except BaseException:
            self.failed = True
            raise
        now = self.world.now
        blocked = (n for n in waited if wires[n].waits or wires[n].waited_until == now)
        woke = any(not wires[n].waits for n in waited if n != step.client)
        self._steps.append(step._replace(blocked=frozenset(blocked), woke=woke))

    def close(self) -> None:
        """The conversation ends: all replies must be consumed, and the other runs must agree."""
        if self.failed:
            return
        for client in self._clients:
            client.hears_nothing()
        for name, steps in self.playings(self._steps):
            world = self.world_type(self._options)
            for step in steps:
                play(world, step)
            for number, (wire, other) in enumerate(
                zip(self.world.clients, world.clients, strict=True)
            ):
                assert bytes(other.heard) == bytes(wire.heard), f"{name}, client {number}"
                assert other.closed == wire.closed, f"{name}, client {number}"
                assert other.durable == wire.durable, f"{name}, client {number}: waiting replies"
            assert world.snapshot() == self.world.snapshot(), name

    def playings(self, steps: list[Step]) -> list[tuple[str, list[Step]]]:
        return [("byte by byte", bytewise(steps)), ("pipelined", pipelined(steps))]


def play(world: World, step: Step) -> None:
    if step.what == "connects":
        world.connect()
    elif step.what == "says":
        world.clients[step.client].receive(step.data)
    elif step.what == "hangs up":
        world.clients[step.client].lose()
        world.tell()
    elif step.what == "says no more":
        world.clients[step.client].end()
        world.tell()
    elif step.what == "stops reading":
        world.clients[step.client].reads = False
    elif step.what == "time passes":
        world.advance(step.microseconds)
    else:
        assert step.act is not None
        step.act(world)
        world.tell()


#: A longer input is sent in a few segments only: the bytes of one long line are all alike.
LONG = 5_000


def bytewise(steps: list[Step]) -> list[Step]:
    result = []
    for step in steps:
        data, size = step.data, 1 if len(step.data) <= LONG else len(step.data) // 7 + 1
        if not data:
            result.append(step)
        result += [step._replace(data=data[n : n + size]) for n in range(0, len(data), size)]
    return result


def pipelined(steps: list[Step]) -> list[Step]:
    """Join the inputs of a client if no client can notice it: no step occurred in between, except
    time in which the client waited for a job.
    """
    result: list[Step] = []
    into: int | None = None  # the index of the last input, while more input can be joined
    for step in steps:
        if step.what == "says" and into is not None and result[into].client == step.client:
            result[into] = result[into]._replace(data=result[into].data + step.data)
            into = None if step.woke else into
            continue
        if step.what == "says":
            into = None if step.woke else len(result)
        elif step.what != "time passes" or into is None or result[into].client not in step.blocked:
            into = None
        result.append(step)
    return result


def cr_and_lf_apart(steps: list[Step]) -> list[Step]:
    """The CR and LF of each line arrive in different segments."""
    result = []
    for step in steps:
        pieces = re.split(rb"(?<=\r)(?=\n)", step.data) if len(step.data) < 100_000 else [step.data]
        result += [step._replace(data=piece) for piece in pieces]
    return result


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def unit(jid: str = "job-0001", **fields: Any) -> dict[str, Any]:
    """A work unit with the required fields and the given ones."""
    return {"jid": jid, "jobtype": "SomeJob", "args": [1, "two"], **fields}


def push(jid: str = "job-0001", **fields: Any) -> bytes:
    return b"PUSH %b\r\n" % compact(unit(jid, **fields))


def bulk(body: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(body), body)
