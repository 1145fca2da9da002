"""Twice the bytes need twice the work, for pieces of any size: incomplete input is neither searched
nor copied again with every piece. Work is the number of bytes read or copied, and the number of
calls.
"""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import targets
from byte_counter import Counted, counting, touched
from goqueue_conversation import add
from resp_conversation import request
from stream_checks import Protocol
from workq_conversation import uid

import millrace.protocols.buffers
import millrace.protocols.connection
import millrace.protocols.goqueue.connection
import millrace.protocols.qless.resp
import millrace.protocols.qless.resp_requests

FRAMING = (
    millrace.protocols.connection,
    millrace.protocols.goqueue.connection,
    millrace.protocols.qless.resp,
    millrace.protocols.qless.resp_requests,
    millrace.protocols.buffers,
)
SMALL, LARGE = 500, 2_000
#: Maximum number of accesses to each byte.
MAX_TOUCHES = 12

Shape = tuple[Protocol, Callable[[int], bytes]]

SHAPES: dict[str, Shape] = {
    "faktory, a line": (targets.FAKTORY, lambda size: b"PUSH " + b"x" * size + b"\r\n"),
    "faktory, no line yet": (targets.FAKTORY, lambda size: b"PUSH " + b"x" * size),
    "faktory, lines": (targets.FAKTORY, lambda size: b"x\n" * (size // 2)),
    "masenko, a line": (targets.MASENKO, lambda size: b"PUSH " + b"x" * size + b"\n"),
    "masenko, lines": (targets.MASENKO, lambda size: b"\n" * size),
    "masenko, a transaction": (targets.MASENKO, lambda size: b"ATOMIC\n" + b"ACK {}\n" * (size // 7)),
    "workq, a line": (targets.WORKQ, lambda size: b"x" * size + b"\r\n"),
    "workq, lines": (targets.WORKQ, lambda size: b"\r\n" * (size // 2)),
    "workq, words": (targets.WORKQ, lambda size: b"lease " + b"a " * (size // 2) + b"0\r\n"),
    "workq, a block": (targets.WORKQ, lambda size: b"add %b a 1000 60000 %d\r\n" % (uid(1), size) + b"\n" * size + b"\r\n"),
    "workq, a block that is passed over": (targets.WORKQ, lambda size: b"add x %d\r\n" % size + b"add x x x x %d\r\n" % size + b"\n" * size + b"\r\n"),
    "goqueue, data": (targets.GOQUEUE, lambda size: add(b"\0" * size)),
    "goqueue, words": (targets.GOQUEUE, lambda size: b"A\0" * (size // 2)),
    "qless, an argument": (targets.QLESS, lambda size: request("ECHO", b"\n" * size)),
    "qless, arguments": (targets.QLESS, lambda size: request("ECHO", *[b"a"] * (size // 7))),
    "qless, a line": (targets.QLESS, lambda size: b"ECHO " + b"x" * size + b"\r\n"),
    "qless, no line yet": (targets.QLESS, lambda size: b"ECHO " + b"x" * size),
    "qless, no array yet": (targets.QLESS, lambda size: b"*" + b"x" * size),
    "qless, words": (targets.QLESS, lambda size: b"ECHO " + b"a " * (size // 2) + b"\r\n"),
    "qless, quotes": (targets.QLESS, lambda size: b"ECHO " + b"'a' " * (size // 4) + b"\r\n"),
    "qless, requests": (targets.QLESS, lambda size: request("PING") * (size // 14)),
}  # fmt: skip


def work(shape: Shape, size: int, piece: int) -> tuple[int, int]:
    """The work to read a stream of this size in such pieces: accessed bytes and calls."""
    protocol, stream = shape
    said = stream(size)
    calls = 0

    def called(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    with counting(*FRAMING):
        world = protocol.world(1 if protocol is targets.GOQUEUE else 0)
        wire = world.connect()
        protocol.before(world, wire, 0)
        pieces = [Counted(said[at : at + piece]) for at in range(0, len(said), piece)]
        before = touched()
        connection, now = wire.connection, world.now
        sys.setprofile(called)
        try:
            for each in pieces:
                more = connection.receive(each, now, 64)
                while more:
                    more = connection.run(now, 64)
        finally:
            sys.setprofile(None)
    return touched() - before, calls


@pytest.mark.parametrize("piece", [1, 100, 1 << 20])
@pytest.mark.parametrize("name", SHAPES)
def test_work_is_linear_in_the_input(name: str, piece: int) -> None:
    few, many = work(SHAPES[name], SMALL, piece), work(SHAPES[name], LARGE, piece)
    assert many[0] <= MAX_TOUCHES * LARGE + 1000, "bytes touched"
    assert many[1] <= 1.5 * LARGE / SMALL * few[1] + 1000, "calls"
