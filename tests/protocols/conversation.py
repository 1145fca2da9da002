"""Conversations: what clients say and hear, without sockets, on a clock that only we move.

    with Conversation() as talk:
        worker = talk.client(wid="worker-1")
        worker.says(b"FETCH\r\n").hears_nothing()
        talk.advance(2)
        worker.hears(b"$-1\r\n")

A conversation is played three times. First as it is written, each `says` in one piece, with every
`hears` checked on the spot. When it is over it is played twice more on fresh worlds, and every byte
that any client heard must come again:
- byte by byte;
- pipelined: what a client says in a row is said at once, also across a wait that blocks the client
  anyway.

What stands between the connections and the engine is in wires.py.
"""

import json
import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

import wires
from millrace.engine.engine import Engine
from millrace.protocols.faktory import FaktoryConnection, FaktoryHub
from wires import SECOND, START, Wire

OK = b"+OK\r\n"
NOTHING = b"$-1\r\n"
HI = b'+HI {"v":2}\r\n'
#: What the sheet's example of a protected server uses.
CHALLENGE = (1545, "55104dc76695721d")


class World(wires.World):
    """One engine, one hub, a clock, and the connections made so far."""

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
        """Everything of the engine that a client could have changed."""
        engine = self.engine
        return {
            "jobs": {seq: repr(job) for seq, job in engine.jobs.items()},
            "queues": {q.name: (q.paused, list(q.counts)) for q in engine.queues.values() if q.known},
            "totals": (engine.totals.processed, engine.totals.failures),
            "workers": {w.wid: (w.state, w.rss_kb, w.beat_at) for w in self.hub.workers.known.values()},
            "connections": len(self.hub.connections),
        }  # fmt: skip


def assert_one_reply(reply: bytes) -> None:
    """Every reply is handed over whole, is framed as RESP, and breaks no client's line reader."""
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
        if body.count(b"[") < 500:  # deeper than this the standard library's decoder gives up
            json.loads(body)


class Step(NamedTuple):
    """Something that happened in the first playing."""

    what: str
    client: int = -1
    data: bytes = b""
    microseconds: int = 0
    act: Callable[[World], object] | None = None
    #: Clients that waited for a job all through this step, so that what they say after it may as
    #: well be said before it.
    blocked: frozenset[int] = frozenset()
    #: It ended somebody else's wait, who then went on before anything else was said.
    woke: bool = False


class Client:
    """One side of a conversation. What it hears must be asked for completely, in order."""

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
        """It closes its half of the connection, and listens on."""
        self._talk.do_step(Step("says no more", self._number))
        return self

    def stops_reading(self) -> Self:
        """From here on nothing it is told can be written to it."""
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
        """An error that begins with `start`; the whole of it."""
        line = self._line()
        wanted = b"-ERR " + start.encode()
        if not line.startswith(wanted):
            self._talk.failed = True
        assert line[: len(wanted)] == wanted, line
        return line[5:].decode()

    def hears_bulk(self) -> bytes:
        head = self._line()
        assert head[:1] == b"$", head
        assert head != b"$-1", "expected a job, heard that there is none"
        size = int(head[1:])
        body = bytes(self.wire.heard[self._taken : self._taken + size])
        self._taken += size + 2
        return body

    def hears_json(self) -> Any:
        return json.loads(self.hears_bulk())

    def hears_nothing(self) -> Self:
        """Nothing beyond what was asked for."""
        heard = bytes(self.wire.heard[self._taken :])
        if heard:
            self._talk.failed = True
        assert heard == b""
        return self

    def hears_the_end(self) -> Self:
        """The server has closed the connection, and said nothing beyond what was asked for."""
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
        assert end >= 0, f"nothing to hear: {bytes(self.wire.heard[self._taken :])!r}"
        line = bytes(self.wire.heard[self._taken : end])
        self._taken = end + 2
        return line

    # What most tests say

    def pushes(self, unit: dict[str, Any]) -> Self:
        return self.says(b"PUSH %b\r\n" % compact(unit)).hears_ok()

    def fetches(self, *queues: str) -> dict[str, Any]:
        """FETCH, and the work unit that is there at once."""
        self.says(" ".join(("FETCH", *queues)).encode() + b"\r\n")
        unit = self.hears_json()
        assert isinstance(unit, dict)
        return unit

    def finds_nothing(self, *queues: str) -> Self:
        """FETCH, and nothing comes in two seconds."""
        self.says(" ".join(("FETCH", *queues)).encode() + b"\r\n").hears_nothing()
        self._talk.advance(2)
        return self.hears(NOTHING)

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
        """The sizes of INFO's four sets, and how many jobs wait in queues."""
        faktory = self.info()["faktory"]
        return {**faktory["sets"], "enqueued": faktory["total_enqueued"]}


class Conversation:
    #: What a conversation of another protocol is made of.
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

    # Who talks

    def connect(self) -> Client:
        """A client that has heard nothing yet, not even the greeting."""
        self.do_step(Step("connects", len(self._clients)))
        client = self.client_type(self, len(self._clients))
        self._clients.append(client)
        return client

    def client(self, wid: str = "", **hello: Any) -> Client:
        """A client that has introduced itself."""
        fields: dict[str, Any] = {"v": 2, **({"wid": wid} if wid else {}), **hello}
        return self.connect().hears(HI).says(b"HELLO %b\r\n" % compact(fields)).hears_ok()

    # What else happens

    def advance(self, seconds: float) -> None:
        self.do_step(Step("time passes", microseconds=round(seconds * SECOND)))

    def acts(self, act: Callable[[World], object]) -> None:
        """Something beside the wire; it is done again in every playing."""
        self.do_step(Step("something happens", act=act))

    @property
    def engine(self) -> Engine:
        """To look at; what changes it goes through `acts`."""
        return self.world.engine

    @property
    def hub(self) -> FaktoryHub:
        return self.world.hub

    @property
    def now(self) -> int:
        return self.world.now

    # Playing

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
        """The conversation is over: nothing may be left unheard, and the other playings agree."""
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


#: Beyond this a piece is fed in a few pieces only: bytes of one long line are all alike.
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
    """Join what a client says to what it said before, as far as nobody could tell: nothing else
    happened in between, except time that it spent waiting for a job.
    """
    result: list[Step] = []
    into: int | None = None  # the place of what was said last, while more may join it
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
    """Every CR and LF that belong together, in different pieces."""
    result = []
    for step in steps:
        pieces = re.split(rb"(?<=\r)(?=\n)", step.data) if len(step.data) < 100_000 else [step.data]
        result += [step._replace(data=piece) for piece in pieces]
    return result


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def unit(jid: str = "job-0001", **fields: Any) -> dict[str, Any]:
    """A work unit with the required fields, and whatever else is given."""
    return {"jid": jid, "jobtype": "SomeJob", "args": [1, "two"], **fields}


def push(jid: str = "job-0001", **fields: Any) -> bytes:
    return b"PUSH %b\r\n" % compact(unit(jid, **fields))


def bulk(body: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(body), body)
