"""CPU and instructions per job cycle (PUSH, FETCH, ACK) of the Faktory protocol, without sockets.

    .venv/bin/python bench/instructions.py                CPU time per cycle
    .venv/bin/python bench/instructions.py --cachegrind   instructions per cycle (needs valgrind)

The commands run in this process: framing, protocol, engine and, with `--durable`, the encoding of
each turn. Instruction counts do not depend on the load of the machine.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from random import Random

from millrace import compiled
from millrace.engine.engine import Engine
from millrace.protocols.faktory.connection import FaktoryConnection
from millrace.protocols.faktory.hub import FaktoryHub
from millrace.protocols.spec import protocol_rules
from millrace.store import records

CYCLES = 2000
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
        self.engine.durable = durable
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


def count_instructions(cycles: int, *, durable: bool) -> int:
    """Instructions of a process that runs this number of cycles."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command += [sys.executable, __file__, "--cycles", str(cycles)]
    command += ["--durable"] if durable else []
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONMALLOC": "pymalloc"}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = re.search(r"I\s+refs:\s+([\d,]+)", ran.stderr)
    assert found is not None, ran.stderr
    return int(found[1].replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=CYCLES)
    parser.add_argument("--durable", action="store_true", help="also encode each turn")
    parser.add_argument("--cachegrind", action="store_true", help="count instructions")
    options = parser.parse_args()
    if options.cachegrind:
        few = count_instructions(100, durable=options.durable)
        many = count_instructions(100 + options.cycles, durable=options.durable)
        print(f"{(many - few) / options.cycles:,.0f} instructions per cycle")
        return
    cycles = Cycles(durable=options.durable)
    began = time.process_time()
    cycles.run(options.cycles)
    spent = time.process_time() - began
    build = "compiled" if compiled.is_in_use() else "pure Python"
    print(f"{spent / options.cycles * 1e6:.2f} us of CPU per cycle, {build}")


if __name__ == "__main__":
    main()
