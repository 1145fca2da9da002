"""Startup needs no more memory than the work before it; otherwise a server near its limit could not
restart.
"""

import tracemalloc
from pathlib import Path
from random import Random

from millrace.engine.engine import Engine
from millrace.protocols.spec import protocol_rules
from millrace.server.app import recover
from millrace.store import SqliteStore
from scene import START, commit, unit

JOBS = 60_000


def fill(engine: Engine, store: SqliteStore) -> None:
    for number in range(JOBS):
        payload = b'{"to":"someone@example.com","number":%d}' % number
        job = unit(f"job-{number:08}-abcdefgh", f"queue-{number % 10}", payload=payload)
        engine.push(job, START + number)
        if number % 1000 == 999:
            commit(engine, store)


def test_startup_needs_no_more_memory_than_the_work_before_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data", sync=False)
    store.load()
    tracemalloc.start()
    engine = Engine(Random(1), protocol_rules())
    fill(engine, store)
    working, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    store.close()
    del engine
    store = SqliteStore(tmp_path / "data", sync=False)
    tracemalloc.start()
    again = Engine(Random(1), protocol_rules())
    recover(again, store, lambda: START + JOBS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    store.close()
    assert len(again.jobs) == JOBS
    assert peak < working, f"{peak:,} bytes at the start, {working:,} at work"
