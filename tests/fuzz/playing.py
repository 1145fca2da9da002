"""What must hold of a stream of bytes, whatever is in it:

- in any pieces it gets the same replies, and leaves the same jobs;
- every reply is whole and well-formed, every error is one that the documents name;
- what is refused changes nothing, what is done can be written down and read back;
- what a connection holds stays within its limits, and goes with it.

Data for a target is a few bytes of choices and the stream itself, so that whoever mutates the one
mutates the other: the first byte chooses settings, the next three the sizes of pieces.
"""

import re
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from types import GeneratorType
from typing import Any, NamedTuple

from invariants import (
    counters_equal_a_recount,
    dependents_are_those_who_wait,
    nobody_waits_for_one_that_takes_it_along,
)

from millrace.engine import consistency
from millrace.engine.engine import Engine
from millrace.engine.job import Extra, Job
from millrace.protocols.connection import Connection, Hub
from millrace.store import MemoryStore
from millrace.store.changes import decode_any, encode
from scene import durable_state, recover
from wires import Wire, World

#: Choices before the stream.
HEAD = 4
#: Some wait for ever: so many waits are waited for.
MOST_WAITS = 30


class Protocol(NamedTuple):
    #: A world by the byte that chooses its settings.
    world: Callable[[int], World]
    #: The text of a reply that is an error; None for others.
    error: Callable[[bytes], str | None]
    #: What errors the documents name.
    documented: re.Pattern[str]
    #: How large a command may be in that world.
    most: Callable[[int], int]
    #: What the client has said before the stream.
    before: Callable[[World, Wire, int], None] = lambda _world, _wire, _choice: None
    #: What else must hold of the stream and what came of it.
    after: Callable[[bytes, "Came"], None] = lambda _stream, _came: None
    #: And of the world that it leaves, and the engine that would be read back.
    left: Callable[[World, Engine], None] = lambda _world, _again: None
    #: How long one wait may take; there may be many.
    patience: int = 3_600_000_000


class Came(NamedTuple):
    """What came of a stream."""

    replies: list[bytes]
    closed: bool
    left: dict[str, Any]


def check(protocol: Protocol, data: bytes) -> list[bytes]:
    """All of the above; the replies."""
    choice, sizes, stream = _parts(data)
    whole = play(protocol, choice, [stream], written=True)
    assert play(protocol, choice, bytewise(stream), refusals=True) == whole, "byte by byte"
    assert play(protocol, choice, in_sizes(stream, sizes)) == whole, sizes
    assert play(protocol, choice, in_sizes(stream, sizes), fed=True) == whole, "fed first"
    cut_short(protocol, choice, stream)
    protocol.after(stream, whole)
    for reply in whole.replies:
        text = protocol.error(reply)
        assert text is None or protocol.documented.fullmatch(text), f"undocumented: {text!r}"
    return whole.replies


def _parts(data: bytes) -> tuple[int, bytes, bytes]:
    head = data[:HEAD].ljust(HEAD, b"\0")
    return head[0], head[1:], data[HEAD:]


def bytewise(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def in_sizes(stream: bytes, sizes: bytes) -> list[bytes]:
    """Pieces of these sizes in turn."""
    pieces, at = [], 0
    while at < len(stream):
        size = 1 + sizes[len(pieces) % len(sizes)]
        pieces.append(stream[at : at + size])
        at += size
    return pieces


def play(
    protocol: Protocol,
    choice: int,
    pieces: Iterable[bytes],
    *,
    fed: bool = False,
    written: bool = False,
    refusals: bool = False,
) -> Came:
    """What comes of a stream in these pieces. `fed`: nothing is done before all has come."""
    world = protocol.world(choice)
    store = Journal(world)
    world.connect()  # somebody else
    wire = world.connect()
    protocol.before(world, wire, choice)
    before = len(wire.replies)
    # The command, its parts, and what is kept of it to compare with the next one.
    limit = held(wire.connection) + 3 * protocol.most(choice) + 500
    for number, piece in enumerate(piece for piece in pieces if piece):
        heard, turns = len(wire.replies), store.turns
        if fed and not wire.closed:
            wire.connection.feed(piece)
        else:
            wire.receive(piece)
        if number % 8 == 0:
            most = limit + 3 * wire.connection.backlog + 2 * len(piece)
            assert held(wire.connection) <= most
        if refusals and store.turns > turns and len(wire.replies) > heard and not wire.closed:
            said = [protocol.error(reply) for reply in wire.replies[heard:]]
            assert not all(said), f"{said} has changed something"
    if fed:
        wire.run()
        world.tell()
    for _ in range(MOST_WAITS):
        if not wire.waits:
            break
        world.advance(protocol.patience)
    replies, closed, left = wire.replies[before:], wire.closed, world.snapshot()
    agree(world)
    if written:
        protocol.left(world, store.check(world))
    leave(world)
    return Came(replies, closed, left)


def cut_short(protocol: Protocol, choice: int, stream: bytes) -> None:
    """A client that goes while its first command is being done leaves nothing behind either."""
    world = protocol.world(choice)
    wire = world.connect()
    protocol.before(world, wire, choice)
    if stream and not wire.closed:
        wire.connection.receive(stream, world.now, 1)
        wire.flush()
    wire.lose()
    leave(world)
    agree(world)


class Journal:
    """Writes down every turn as a store would, which may find what cannot be written."""

    def __init__(self, world: World) -> None:
        self._store = MemoryStore()
        self.turns = 0
        engine = world.engine
        take = engine.take_batch

        def taken() -> Any:
            batch = take()
            if batch:
                self.turns += 1
                self._store.begin(batch, engine)
                self._store.commit()
            return batch

        engine.take_batch = taken  # type: ignore[method-assign]

    def check(self, world: World) -> Engine:
        """What was written down is what there is; the engine as it is read back."""
        world.tell()
        again = recover(self._store)
        recovered, there = durable_state(again), durable_state(world.engine)
        for state in (recovered, there):
            del state["statistics"], state["next_seq"]
        for seq, job in there["jobs"].items():
            forget_looks(job, recovered["jobs"].get(seq))
        assert recovered == there
        return again


#: Where a job's record has what few jobs have, and where that has what protocols keep with it.
_EXTRA = Job.__struct_fields__.index("extra")
_OWN_PART = Extra.__struct_fields__.index("own")


def forget_looks(job: list[Any], written: list[Any] | None) -> None:
    """Who looks at another protocol's job with Qless makes what Qless keeps with it, which is made
    again after a restart and so not written.
    """
    extra, kept = job[_EXTRA], written[_EXTRA] if written else None
    if extra is None or (kept is not None and kept[_OWN_PART] is not None):
        return
    extra[_OWN_PART] = None
    if kept is None and extra == decode_any(encode(Extra())):
        job[_EXTRA] = None


def agree(world: World) -> None:
    """The engine's indexes say what its jobs say."""
    report = consistency.check(world.engine)
    assert not report.problems, report.problems
    counters_equal_a_recount(world.engine)
    dependents_are_those_who_wait(world.engine)
    nobody_waits_for_one_that_takes_it_along(world.engine)


def leave(world: World) -> None:
    """Everybody goes, and nothing stays of anybody."""
    engine = world.engine
    hubs = getattr(world, "hubs", None) or [world.hub]
    for wire in world.clients:
        wire.end()
        wire.lose()
        assert held(wire.connection) < 100_000 or not wire.connection.backlog
    world.tell()
    gone = [weakref.ref(wire.connection) for wire in world.clients]
    for wire in world.clients:
        wire.connection = None
    assert not any(hub.connections or hub.touched for hub in hubs)
    assert not engine.holders
    assert not engine.waiters
    assert not engine.waiters.awaited
    # Cancelled alarms would go when they come up.
    engine.timers.heap = sorted(engine.timers._live.values())
    assert not any(ref() for ref in gone), "a connection that is gone is still there"


#: What is looked into: all else is the engine's, or shared.
_OWN = "millrace.protocols."


def held(connection: Connection) -> int:
    """The bytes that a connection has, in whatever they are kept, with something for each piece."""
    total, seen = 0, set()
    waiting: deque[Any] = deque([connection])
    while waiting:
        what = waiting.popleft()
        if id(what) in seen:
            continue
        seen.add(id(what))
        if isinstance(what, bytes | bytearray | str):
            total += len(what)
        elif isinstance(what, list | tuple | set | frozenset | deque):
            total += 8 * len(what)
            waiting.extend(what)
        elif isinstance(what, dict):
            total += 16 * len(what)
            waiting.extend(what)
            waiting.extend(what.values())
        elif isinstance(what, GeneratorType):
            waiting.extend(what.gi_frame.f_locals.values() if what.gi_frame else ())
        elif type(what).__module__.startswith(_OWN) and not isinstance(what, Hub):
            waiting.extend(_fields(what))
    return total


def _fields(what: Any) -> list[Any]:
    slots = [name for kind in type(what).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(what, "__dict__", {}).values(), *(getattr(what, s, None) for s in slots)]
