"""Invariants of any stream of bytes:

- any fragmentation gives the same replies and leaves the same jobs;
- every reply is complete and well-formed, and every error is documented;
- a refused command has no effect, and an accepted one can be written and read back;
- the memory of a connection stays within its limits, and is freed with it.

The data of a target consists of a few choice bytes and the stream, so that a mutation can change
either: the first byte selects settings, the next three the sizes of pieces.
"""

import re
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from types import GeneratorType
from typing import Any, NamedTuple

from invariants import (
    counters_equal_a_recount,
    dependents_are_listed_with_their_blockers,
    no_job_waits_for_a_blocker_that_would_fail_it,
)

from millrace.engine import consistency
from millrace.engine.engine import Engine
from millrace.engine.job import Extra
from millrace.protocols.connection import Connection, Hub
from millrace.store import MemoryStore
from millrace.store.records import DETAILS_INDEX, EXTRA_INDEX, decode_any, encode
from scene import durable_state, recover
from wires import Wire, World

#: Choices before the stream.
HEAD = 4
#: Some waits never end, so only this number of waits is awaited.
MAX_WAITS = 30


class Protocol(NamedTuple):
    #: Creates a world from the byte that selects its settings.
    world: Callable[[int], World]
    #: The text of an error reply; None for other replies.
    error: Callable[[bytes], str | None]
    #: The documented errors.
    documented: re.Pattern[str]
    #: Maximum size of a command in that world.
    most: Callable[[int], int]
    #: Requests before the stream.
    before: Callable[[World, Wire, int], None] = lambda _world, _wire, _choice: None
    #: Further checks of the stream and its results.
    after: Callable[[bytes, "StreamResult"], None] = lambda _stream, _came: None
    #: Further checks of the resulting world and of the restored engine.
    left: Callable[[World, Engine], None] = lambda _world, _again: None
    #: Maximum duration of one wait.
    max_wait: int = 3_600_000_000


class StreamResult(NamedTuple):
    """The results of a stream."""

    replies: list[bytes]
    closed: bool
    left: dict[str, Any]


def check(protocol: Protocol, data: bytes) -> list[bytes]:
    """Check all of the above. Returns the replies."""
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
    """Pieces with these sizes in rotation."""
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
) -> StreamResult:
    """The results of a stream in these pieces. `fed`: processing starts after the last piece."""
    world = protocol.world(choice)
    store = Journal(world)
    world.connect()  # another client
    wire = world.connect()
    protocol.before(world, wire, choice)
    before = len(wire.replies)
    # The command, its parts, and a copy for the comparison with the next one.
    limit = held(wire.connection) + 3 * protocol.most(choice) + 500
    for number, piece in enumerate(piece for piece in pieces if piece):
        received, turns = len(wire.replies), store.turns
        if fed and not wire.closed:
            wire.connection.feed(piece)
        else:
            wire.receive(piece)
        if number % 8 == 0:
            most = limit + 3 * wire.connection.unprocessed_bytes + 2 * len(piece)
            assert held(wire.connection) <= most
        if refusals and store.turns > turns and len(wire.replies) > received and not wire.closed:
            errors = [protocol.error(reply) for reply in wire.replies[received:]]
            assert not all(errors), f"{errors} has changed something"
    if fed:
        wire.run()
        world.tell()
    for _ in range(MAX_WAITS):
        if not wire.waits:
            break
        world.advance(protocol.max_wait)
    replies, closed, left = wire.replies[before:], wire.closed, world.snapshot()
    check_indexes(world)
    if written:
        protocol.left(world, store.check(world))
    leave(world)
    return StreamResult(replies, closed, left)


def cut_short(protocol: Protocol, choice: int, stream: bytes) -> None:
    """A client that disconnects during its first command leaves no state behind either."""
    world = protocol.world(choice)
    wire = world.connect()
    protocol.before(world, wire, choice)
    if stream and not wire.closed:
        wire.connection.receive(stream, world.now, 1)
        wire.flush()
    wire.lose()
    leave(world)
    check_indexes(world)


class Journal:
    """Writes every turn like a store, which detects values that cannot be written."""

    def __init__(self, world: World) -> None:
        self._store = MemoryStore()
        self.turns = 0
        engine = world.engine
        take = engine.take_changes

        def taken() -> Any:
            batch = take()
            if batch:
                self.turns += 1
                self._store.prepare(batch, engine)
                self._store.commit()
            return batch

        engine.take_changes = taken  # type: ignore[method-assign]

    def check(self, world: World) -> Engine:
        """The written state equals the current state. Returns the restored engine."""
        world.tell()
        again = recover(self._store)
        recovered, there = durable_state(again), durable_state(world.engine)
        for state in (recovered, there):
            del state["statistics"], state["next_seq"]
        for seq, job in there["jobs"].items():
            drop_qless_data(job, recovered["jobs"].get(seq))
        assert recovered == there
        return again


#: The positions of the optional part in a job's record, and of the protocols' data in it.
_EXTRA = EXTRA_INDEX
_OWN_PART = DETAILS_INDEX


def drop_qless_data(job: list[Any], written: list[Any] | None) -> None:
    """Reading another protocol's job over Qless creates Qless data for it. This data is not
    written; it is created again after a restart.
    """
    extra, kept = job[_EXTRA], written[_EXTRA] if written else None
    if extra is None or (kept is not None and kept[_OWN_PART] is not None):
        return
    extra[_OWN_PART] = None
    if kept is None and extra == decode_any(encode(Extra())):
        job[_EXTRA] = None


def check_indexes(world: World) -> None:
    """The engine's indexes match its jobs."""
    report = consistency.check_engine(world.engine)
    assert not report.problems, report.problems
    counters_equal_a_recount(world.engine)
    dependents_are_listed_with_their_blockers(world.engine)
    no_job_waits_for_a_blocker_that_would_fail_it(world.engine)


def leave(world: World) -> None:
    """All clients disconnect and leave no state behind."""
    engine = world.engine
    hubs = getattr(world, "hubs", None) or [world.hub]
    for wire in world.clients:
        wire.end()
        wire.lose()
        assert held(wire.connection) < 100_000 or not wire.connection.unprocessed_bytes
    world.tell()
    gone = [weakref.ref(wire.connection) for wire in world.clients]
    for wire in world.clients:
        wire.connection = None
    assert not any(hub.connections or hub.connections_with_messages for hub in hubs)
    assert not engine.leases.holders
    assert not engine.waiters
    assert not engine.waiters.awaited_job_count
    # Cancelled timers are removed when they expire.
    engine.timers.heap = sorted(engine.timers._live.values())
    assert not any(ref() for ref in gone), "a closed connection is still referenced"


#: Only objects of these modules are searched; all other objects belong to the engine or are shared.
_OWN = "millrace.protocols."


def held(connection: Connection) -> int:
    """The number of bytes that a connection holds in any container, plus an overhead per item."""
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
