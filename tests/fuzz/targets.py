"""The targets by name. Each is a function of bytes that raises if an invariant is violated."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import blocks
import cross_protocol
import documents
import parsers
from conversation import World
from goqueue_conversation import GoqueueWorld
from masenko_conversation import MasenkoWorld
from qless_conversation import QlessWorld
from resp_conversation import SCRIPT_B, SCRIPT_C, SCRIPT_D, request
from stream_checks import Protocol, StreamResult, check
from workq_conversation import WorkqWorld

from millrace.engine.engine import Engine
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.state import QlessState
from support.plain import values
from wires import Wire

Check = Callable[[bytes], object]


def of_settings(world: type[World], *settings: dict[str, Any]) -> Callable[[int], World]:
    """Worlds with one of these settings, selected by the choice byte."""
    return lambda choice: world(dict(settings[choice % len(settings)]))


def faktory_error(reply: bytes) -> str | None:
    return reply[5:-2].decode() if reply.startswith(b"-ERR ") else None


def workq_error(reply: bytes) -> str | None:
    """Timeouts and missing jobs are not errors."""
    none = reply in {b"-TIMEOUT\r\n", b"-NOT-FOUND\r\n"} or reply[:1] != b"-"
    return None if none else reply[1:-2].decode()


def masenko_error(reply: bytes) -> str | None:
    return str(json.loads(reply[4:])["msg"]) if reply.startswith(b"ERR ") else None


def goqueue_error(reply: bytes) -> str | None:
    return reply[6:-1].decode() if reply.startswith(b"ERROR\0") else None


def qless_error(reply: bytes) -> str | None:
    return reply[1:-2].decode("utf-8", "surrogateescape") if reply.startswith(b"-") else None


def greeted(_: World, wire: Wire, choice: int) -> None:
    """Most Faktory clients have sent HELLO; with a password the stream must do it."""
    if choice % 4 < 2:
        wire.receive(b'HELLO {"v":2,"wid":"w1"}\r\n')


def scripts_loaded(_: World, wire: Wire, choice: int) -> None:
    if choice % 4 == 3:
        return  # there is a password
    for script in (SCRIPT_B, SCRIPT_C, SCRIPT_D):
        wire.receive(request("SCRIPT", "LOAD", script))


# Further checks


def one_reply_for_each_line(stream: bytes, came: StreamResult) -> None:
    """Faktory: as long as the connection is open."""
    lines = stream.count(b"\n")
    assert len(came.replies) <= lines + 1
    assert came.closed or len(came.replies) == lines


def one_reply_for_each_task(stream: bytes, came: StreamResult) -> None:
    """Masenko: one for each line, but one for a transaction, and none after QUIT."""
    wanted, inside = 0, False
    for line in stream.split(b"\n")[:-1]:
        verb, space, _ = line.partition(b" ")
        verb = (verb if space else verb.removesuffix(b"\r")).upper()
        if inside:
            inside = verb != b"DONE"
            wanted += not inside
        elif verb == b"ATOMIC":
            inside = True
        else:
            wanted += 1
            if verb == b"QUIT":
                break
    assert came.closed or len(came.replies) == wanted


def indexes(qless: QlessState) -> dict[str, Any]:
    """The entries that lookups return; outdated entries are not returned."""
    jobs = qless.engine.jobs
    deadlines = qless.engine.deadlines
    locked = {name: [job.jid for job in deadlines.leased(name)] for name in qless.engine.queues}
    planned = {
        name: sorted({entry for entry in heap if deadlines._current(name, entry)})
        for name, heap in deadlines.due.items()
    }
    tags = {
        tag: {seq: when for seq, when in seqs.items() if seq in jobs}
        for tag, seqs in qless.tags.items()
    }
    return {
        "locked": {name: found for name, found in locked.items() if found},
        "planned": {name: found for name, found in planned.items() if found},
        "tags": {tag: found for tag, found in tags.items() if found},
        "config": qless.options.config,
        "tracked": qless.tracked,
        "recurring": values(qless.recurring),
        "first seen": qless.first_seen,
    }


def qless_indexes_can_be_rebuilt(world: World, again: Engine) -> None:
    """The indexes of Qless equal indexes that are rebuilt from the jobs, now or after a restart,
    and no two jobs have the same jid.
    """
    assert isinstance(world, QlessWorld)
    qless = world.api.qless
    qless.refresh()
    before = indexes(qless)
    qless._build()
    assert indexes(qless) == before
    restarted = QlessApi(QlessHub(again, started_at=world.now))
    restarted.qless.refresh()
    assert indexes(restarted.qless) == before
    assert len(world.engine.by_jid) == len(world.engine.jobs)


# The five protocols

FAKTORY = Protocol(
    of_settings(World, {}, {"max_line": 300}, {}, {"password": "sesame"}),
    faktory_error,
    documents.FAKTORY,
    lambda choice: 300 if choice % 4 == 1 else 64 << 20,
    greeted,
    one_reply_for_each_line,
)
WORKQ = Protocol(
    of_settings(WorkqWorld, {}, {"max_line": 300}, {"dialect": "original"}),
    workq_error,
    documents.WORKQ,
    lambda choice: 300 if choice % 3 == 1 else 1 << 20,
    max_wait=90_000_000_000,
)
MASENKO = Protocol(
    of_settings(MasenkoWorld, {}, {"max_line": 300}, {"dialect": "original"}),
    masenko_error,
    documents.MASENKO,
    lambda choice: 300 if choice % 3 == 1 else 1 << 20,
    after=one_reply_for_each_task,
    max_wait=22_000_000,
)
GOQUEUE = Protocol(
    of_settings(GoqueueWorld, {"max_data": 40}, {}, {"max_deliveries": 2}),
    goqueue_error,
    documents.GOQUEUE,
    lambda choice: 300 if choice % 3 == 0 else 16 << 20,
)
_LEAST = {"max_line": 500, "max_arguments": 20, "max_keys": 3, "max_scratch_bytes": 500}
QLESS = Protocol(
    of_settings(QlessWorld, {}, {"dialect": "original"}, _LEAST, {"password": "sesame"}),
    qless_error,
    documents.QLESS,
    # An inline command may have 64 KiB regardless of the request limit.
    lambda choice: 66_000 if choice % 4 == 2 else 64 << 20,
    scripts_loaded,
    left=qless_indexes_can_be_rebuilt,
)


class Target(NamedTuple):
    check: Check
    #: The page with the transcripts for its first inputs.
    page: str = ""


def of(protocol: Protocol) -> Check:
    return lambda data: check(protocol, data)


TARGETS: dict[str, Target] = {
    "faktory": Target(of(FAKTORY), "faktory"),
    "workq": Target(of(WORKQ), "workq"),
    "masenko": Target(of(MASENKO), "masenko"),
    "goqueue": Target(of(GOQUEUE), "goqueue"),
    "qless": Target(of(QLESS), "qless"),
    "crossing": Target(cross_protocol.check),
    **{name: Target(each) for name, each in {**blocks.CHECKS, **parsers.CHECKS}.items()},
}
