"""Every hub counts the valid commands and the error replies."""

from collections.abc import Callable
from typing import Any

import pytest

import wires
from millrace.engine.engine import Engine
from millrace.protocols.connection import Connection, Hub
from millrace.protocols.faktory.connection import FaktoryConnection
from millrace.protocols.faktory.hub import FaktoryHub
from millrace.protocols.goqueue.connection import GoqueueConnection
from millrace.protocols.goqueue.hub import GoqueueHub
from millrace.protocols.masenko.connection import MasenkoConnection
from millrace.protocols.masenko.hub import MasenkoHub
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.workq.connection import WorkqConnection
from millrace.protocols.workq.hub import WorkqHub
from wires import START, Wire


def faktory(engine: Engine) -> FaktoryHub:
    return FaktoryHub(engine, started_at=START, challenge=lambda: (1, ""), memory_mb=lambda: 7)


def qless(engine: Engine) -> QlessHub:
    hub = QlessHub(engine, started_at=START)
    QlessApi(hub)
    return hub


def resp(*words: str) -> bytes:
    said = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{said}".encode()


JID = "00000000-0000-4000-8000-000000000001"
#: Hub and connection; the opening bytes; then inputs with the expected numbers of commands and
#: errors.
PROTOCOLS: dict[str, tuple[Callable[[Engine], Hub], Any, bytes, list[tuple[bytes, int, int]]]] = {
    "faktory": (
        faktory,
        FaktoryConnection,
        b'HELLO {"v":2}\r\n',
        [
            (b'PUSH {"jid":"12345678","jobtype":"a","args":[]}\r\n', 1, 0),
            (b"INFO\r\nFLUSH\r\n", 2, 0),
            (b"NONSENSE\r\n", 0, 1),
            (b"PUSH {}\r\n", 1, 1),
        ],
    ),
    "workq": (
        lambda engine: WorkqHub(engine, started_at=START),
        WorkqConnection,
        b"",
        [
            (f"add {JID} ping 1000 60000 4\r\npong\r\n".encode(), 1, 0),
            (b"nonsense\r\n", 0, 1),
            (b"delete nobody\r\n", 1, 1),
            (b"delete 00000000-0000-4000-8000-000000000009\r\n", 1, 1),
        ],
    ),
    "masenko": (
        MasenkoHub,
        MasenkoConnection,
        b"",
        [(b"PING {}\n", 1, 0), (b"NONSENSE\n", 0, 1), (b"PUSH nonsense\n", 1, 1)],
    ),
    "goqueue": (
        GoqueueHub,
        GoqueueConnection,
        b"",
        [
            (b"CONNECT\0", 1, 0),
            (b"NONSENSE\0", 0, 1),
            (b"DELETE\0\7\0\0\0\0\0\0\0", 1, 1),
        ],
    ),
    "qless": (
        qless,
        QlessConnection,
        b"",
        [
            (resp("PING"), 1, 0),
            (resp("NONSENSE"), 0, 1),
            (resp("GET"), 0, 1),
            (resp("EXEC"), 1, 1),
        ],
    ),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_commands_and_errors_are_counted(name):
    make, connect, opening, said = PROTOCOLS[name]
    world = wires.World()
    hub = make(world.engine)
    assert (hub.protocol, hub.commands, hub.errors) == (name, 0, 0)
    connection: Connection = connect(hub)
    wire = Wire(world, connection)
    if opening:
        wire.receive(opening)
    for words, commands, errors in said:
        before = (hub.commands, hub.errors)
        wire.receive(words)
        counted = (hub.commands - before[0], hub.errors - before[1])
        assert counted == (commands, errors), (words, bytes(wire.heard))


def test_a_command_refused_by_a_failing_store_is_an_error():
    world = wires.World()
    hub = faktory(world.engine)
    wire = Wire(world, FaktoryConnection(hub))
    wire.receive(b'HELLO {"v":2}\r\n')
    world.engine.unavailable_reason = "disk full"
    wire.receive(b'PUSH {"jid":"12345678","jobtype":"a","args":[]}\r\n')
    assert (hub.commands, hub.errors) == (1, 1)
