"""QUEUE, MUTATE and WORKER: commands for operators."""

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

from millrace.engine.engine import Engine
from millrace.engine.removal import REMOVAL_BATCH_SIZE
from millrace.engine.states import READY
from millrace.engine.workers import QUIET, TERMINATE
from millrace.protocols.errors import ClientError, StoreUnavailable

from . import info
from . import mutate as mutations
from .replies import (
    MAX_ECHO,
    OK_REPLY,
    decode_lossy,
    encode_bulk,
    error_reply,
    queue_names,
    quote_input,
    require_argument,
)

if TYPE_CHECKING:
    from .connection import FaktoryConnection

#: Number of queues that a QUEUE command changes in one slice.
QUEUE_BATCH_SIZE: Final = 100


def queue(connection: "FaktoryConnection", argument: bytes | None, now: int) -> None:
    word, space, rest = require_argument(argument).strip().partition(b" ")
    subcommand = word.upper()
    names = queue_names(rest)
    if names != ["*"]:
        for name in names:
            connection.engine.check_queue(name)
    if subcommand in {b"PAUSE", b"RESUME", b"REMOVE"}:
        if not space:
            raise ClientError("internal error")
        if connection.engine.unavailable_reason:
            raise StoreUnavailable(connection.engine.unavailable_reason)
        connection.begin_long_command(_change_queues(connection, subcommand, names, now))
    elif subcommand == b"LATENCY":
        if names == ["*"]:
            raise ClientError("QUEUE LATENCY does not support wildcards")
        connection.reply(encode_bulk(info.latency(connection.engine, names, now)))
    else:
        raise ClientError(f"no such QUEUE subcommand: {quote_input(word)}")


def _change_queues(
    connection: "FaktoryConnection", subcommand: bytes, names: list[str], now: int
) -> Iterator[None]:
    engine = connection.engine
    if names == ["*"]:
        names = list(engine.tables.queues)
    reverts = engine.revert_count
    try:
        if subcommand == b"REMOVE":
            change = _remove_queues(engine, names, now)
        else:
            change = _pause_queues(engine, names, now, paused=subcommand == b"PAUSE")
        with closing(change) as steps:
            for _ in steps:
                yield
                connection.check_not_reverted(reverts)
    except ClientError as problem:
        connection.reply_error(error_reply(str(problem)))
        return
    connection.caller.wait()
    connection.reply_fixed(OK_REPLY)


def _pause_queues(
    engine: Engine, names: list[str], now: int, *, paused: bool
) -> Generator[None, None, None]:
    for start in range(0, len(names), QUEUE_BATCH_SIZE):
        if start:
            yield
        with engine.hold_queues(now):
            for name in names[start : start + QUEUE_BATCH_SIZE]:
                engine.pause(name, paused=paused, now=now)


def _remove_queues(engine: Engine, names: list[str], now: int) -> Generator[None, None, None]:
    removed = 0
    for name in names:
        queue = engine.queue(name)
        size = 1 if queue is None else 1 + queue.counts[READY]
        if removed and removed + size > REMOVAL_BATCH_SIZE:
            yield
            removed = 0
        removed += size
        with closing(engine.remove_queue_in_slices(name, now)) as steps:
            yield from steps


def mutate(connection: "FaktoryConnection", argument: bytes | None, now: int) -> None:
    operation = mutations.read(argument or b"")
    connection.begin_long_command(
        _mutate_in_slices(connection, operation, now), len(argument or b"")
    )


def _mutate_in_slices(
    connection: "FaktoryConnection", operation: mutations.Operation, now: int
) -> Iterator[None]:
    engine = connection.engine
    reverts = engine.revert_count
    try:
        for _ in mutations.carry_out(engine, operation, now):
            yield
            connection.check_not_reverted(reverts)
    except ClientError as problem:
        connection.caller.wait()
        connection.reply_error(error_reply(str(problem)))
        return
    connection.caller.wait()
    connection.reply_fixed(OK_REPLY)


def worker(connection: "FaktoryConnection", argument: bytes | None, _now: int) -> None:
    """WORKER QUIET|TERMINATE wid|*: an extension; Faktory offers it only in its web UI."""
    words = decode_lossy(argument or b"").split()
    states = {"QUIET": QUIET, "TERMINATE": TERMINATE}
    if len(words) != 2 or words[0].upper() not in states:
        raise ClientError("expected WORKER QUIET|TERMINATE <wid>|*")
    known = connection.hub.workers.known
    if words[1] == "*":
        chosen = connection.hub.workers.connected()
    elif words[1] in known:
        chosen = [known[words[1]]]
    else:
        raise ClientError(f"unknown worker {words[1][:MAX_ECHO]}")
    if not all(worker.connections for worker in chosen):
        raise ClientError(f"worker {words[1][:MAX_ECHO]} is not connected")
    for worker in chosen:
        connection.hub.advance(worker, states[words[0].upper()])
    connection.reply_fixed(OK_REPLY)
