"""A waiting job takes little memory: millions of them must fit."""

import tracemalloc
from random import Random

from millrace import compiled
from millrace.engine.engine import Engine
from millrace.protocols.spec import protocol_rules
from scene import START, unit

JOBS = 40_000
TURN = 1000
#: Bytes of a waiting job in the engine: its record, its id of 24 characters, its indexes and its
#: place in the queue. The payload is not included, because a large backlog has it in the store.
MAX_BYTES = 380 if compiled.is_in_use() else 450


def test_a_waiting_job_takes_little_memory() -> None:
    engine = Engine(Random(1), protocol_rules())
    tracemalloc.start()
    try:
        for number in range(JOBS):
            engine.push(unit(f"job-{number:020}", payload=b""), START + number)
            if number % TURN == TURN - 1:
                engine.take_changes()
        engine.take_changes()
        engine.current_statistics()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(engine.jobs) == JOBS
    assert used / JOBS < MAX_BYTES, f"{used / JOBS:.0f} bytes per waiting job"
