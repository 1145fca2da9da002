"""CPU and instructions per job cycle (PUSH, FETCH, ACK) of the Faktory protocol, without sockets.

    .venv/bin/python bench/instructions.py                CPU time per cycle
    .venv/bin/python bench/instructions.py --cachegrind   instructions per cycle (needs valgrind)

The commands run in this process: framing, protocol, engine and, with `--durable`, the encoding of
each turn. With `--sessions`, they pass through the sessions and turns of a server in memory, on 64
connections. Instruction counts do not depend on the load of the machine.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import time
from random import Random
from typing import Any, cast

import uvloop

from millrace import compiled
from millrace.engine.engine import Engine
from millrace.protocols.faktory.connection import FaktoryConnection
from millrace.protocols.faktory.hub import FaktoryHub
from millrace.protocols.spec import protocol_rules
from millrace.server.server import Server
from millrace.server.session import Session
from millrace.store import records

CYCLES = 1920
CONNECTIONS = 64
#: Jobs that wait before the first cycle of the sessions.
PRELOAD = 200
#: Commands per turn. The events and changes of a turn are encoded together.
TURN = 20
NOW = 1_700_000_000_000_000
PUSH = (
    b'PUSH {"jid":"cycle-%020d","queue":"default","jobtype":"bench","args":["%b"],'
    b'"created_at":"2023-11-14T22:13:20Z","retry":25}\r\n'
)
PADDING = b"x" * 90


class Cycles:
    """A server without sockets: an engine and one connection."""

    def __init__(self, *, durable: bool) -> None:
        self.durable = durable
        self.engine = Engine(Random(1), protocol_rules())
        self.engine.durable = self.engine.records_transitions = durable
        hub = FaktoryHub(
            self.engine, started_at=NOW, challenge=lambda: (1, ""), memory_mb=lambda: 1
        )
        self.connection = FaktoryConnection(hub)
        self.now = NOW
        self.send(b'HELLO {"wid":"bench-worker","hostname":"h","pid":1,"labels":[],"v":2}\r\n')

    def send(self, line: bytes) -> None:
        self.now += 1
        self.connection.receive(line, self.now, 64)
        self.connection.replies.clear()

    def run(self, count: int) -> None:
        for first in range(0, count, TURN):
            numbers = range(first, first + TURN)
            for number in numbers:
                self.send(PUSH % (number, PADDING))
            self.end_turn()
            for _ in numbers:
                self.send(b"FETCH default\r\n")
            self.end_turn()
            for number in numbers:
                self.send(b'ACK {"jid":"cycle-%020d"}\r\n' % number)
            self.end_turn()
        assert self.engine.totals.processed == count

    def end_turn(self) -> None:
        changes = self.engine.take_changes()
        if self.durable:
            records.encode_changes(changes, 4096, {})
            records.encode(changes.events)


class Transport:
    """The write side of a connection without a socket: it keeps the last reply."""

    def __init__(self) -> None:
        self.reply = b""

    def write(self, data: bytes) -> None:
        self.reply = data

    def get_extra_info(self, _: str) -> None:
        return None

    def set_write_buffer_limits(self, *, high: int, low: int) -> None:
        pass


async def run_sessions(count: int) -> None:
    """Run cycles through the sessions of a server in memory."""
    now = NOW

    def clock() -> int:
        nonlocal now
        now += 10
        return now

    engine = Engine(Random(1), protocol_rules())
    server = Server(
        engine, None, clock, max_connections=100, max_output=1 << 20, on_fatal_error=print
    )
    hub = FaktoryHub(engine, started_at=NOW, challenge=lambda: (1, ""), memory_mb=lambda: 1)
    clients: list[tuple[Session, Transport]] = []
    for _ in range(CONNECTIONS):
        session, transport = Session(server, lambda: FaktoryConnection(hub)), Transport()
        session.connection_made(cast("asyncio.BaseTransport", cast("Any", transport)))
        session.data_received(b'HELLO {"wid":"bench-worker","v":2}\r\n')
        clients.append((session, transport))
    for number in range(PRELOAD):
        clients[0][0].data_received(PUSH % (count + number, PADDING))
    for first in range(0, count, CONNECTIONS):
        for number, (session, _) in enumerate(clients, first):
            session.data_received(PUSH % (number, PADDING))
        await asyncio.sleep(0)  # the turn may end here
        for session, _ in clients:
            session.data_received(b"FETCH default\r\n")
        await asyncio.sleep(0)
        for session, transport in clients:
            jid = transport.reply.partition(b'"jid":"')[2].partition(b'"')[0]
            session.data_received(b'ACK {"jid":"%b"}\r\n' % jid)
        await asyncio.sleep(0)
    assert engine.totals.processed == count


def count_instructions(cycles: int, arguments: list[str]) -> int:
    """Instructions of a process that runs this number of cycles."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command += [sys.executable, __file__, "--cycles", str(cycles), *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONMALLOC": "pymalloc"}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = re.search(r"I\s+refs:\s+([\d,]+)", ran.stderr)
    assert found is not None, ran.stderr
    return int(found[1].replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=CYCLES)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--durable", action="store_true", help="also encode each turn")
    kind.add_argument("--sessions", action="store_true", help="with sessions and turns, in memory")
    parser.add_argument("--cachegrind", action="store_true", help="count instructions")
    options = parser.parse_args()
    if options.cachegrind:
        chosen = [f"--{name}" for name in ("durable", "sessions") if getattr(options, name)]
        few = count_instructions(5 * CONNECTIONS, chosen)
        many = count_instructions(5 * CONNECTIONS + options.cycles, chosen)
        print(f"{(many - few) / options.cycles:,.0f} instructions per cycle")
        return
    began = time.process_time()
    if options.sessions:
        uvloop.run(run_sessions(options.cycles))
    else:
        Cycles(durable=options.durable).run(options.cycles)
    spent = time.process_time() - began
    build = "compiled" if compiled.is_in_use() else "pure Python"
    print(f"{spent / options.cycles * 1e6:.2f} us of CPU per cycle, {build}")


if __name__ == "__main__":
    main()
