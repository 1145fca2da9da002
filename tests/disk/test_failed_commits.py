"""A failed commit has no effect after a crash, even if its data was written."""

from collections.abc import Callable
from pathlib import Path

import pytest

#: Commit one job; then each write from the nth on is executed and reported as failed.
CODE = """
from random import Random
import shutil
from millrace.engine.engine import Engine
from millrace.protocols.spec import protocol_rules
from millrace.store import SqliteStore, StoreWriteFailed
from scene import unit

def push(store, engine, jid):
    engine.push(unit(jid, "q"), 1_800_000_000_000_000)
    store.prepare(engine.take_changes(), engine)
    store.commit()

def jobs_of(folder):
    engine = Engine(Random(0), protocol_rules())
    store = SqliteStore(folder, sync=True)
    try:
        store.load().fill(engine)
    finally:
        store.close()
    return [job.jid for job in engine.jobs.values()]

data, copy = folder / "data", folder / "copy"
with recorder.record(folder, log):
    engine, store = Engine(Random(0), protocol_rules()), SqliteStore(data, sync=True)
    store.load().fill(engine)
    push(store, engine, "job-1")
    failed = False
    recorder.fail(REPORTS, errno.EIO, after=AFTER)
    try:
        push(store, engine, "job-2")
    except StoreWriteFailed:
        failed = True
    recorder.heal()
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("lock"))  # as a crash leaves it
    expected = ["job-1"] if failed else ["job-1", "job-2"]
    assert jobs_of(copy) == expected, (jobs_of(copy), failed)
    if failed:  # and the store goes on
        engine.take_changes()
        store.load_jobs([]).fill(Engine(Random(0), protocol_rules()))
        assert store._db.execute("SELECT max(id) FROM turns").fetchone() == (1,)
    store.close()
"""


@pytest.mark.parametrize("after", range(6))
def test_a_failed_commit_has_no_effect_after_a_crash(
    run_preloaded: Callable[[str], Path], after: int
) -> None:
    run_preloaded(CODE.replace("AFTER", str(after)))
