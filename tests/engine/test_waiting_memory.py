"""A waiting job takes little memory: millions of them must fit."""

import tracemalloc
from random import Random

from millrace import compiled
from millrace.engine import job as job_module
from millrace.engine.engine import Engine
from millrace.engine.events import fingerprint
from millrace.engine.job import MAX_SHARED_TERMS, Job
from millrace.engine.queue_rules import QueueRule
from millrace.engine.states import READY
from millrace.protocols.spec import protocol_rules
from millrace.store import records
from millrace.store.store import StoreSnapshot
from scene import START, unit

JOBS = 40_000
TURN = 1000
#: Bytes of a waiting job in the engine: its record, its id of 24 characters, its indexes and its
#: place in the queue. The payload is not included, because a large backlog has it in the store.
MAX_BYTES = 310 if compiled.is_in_use() else 390


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


def test_startup_needs_no_more_memory_than_normal_operation() -> None:
    """The table of the store becomes the table of the engine, and no list has all jobs."""
    engine = Engine(Random(1), protocol_rules())
    for number in range(JOBS):
        job = Job(number + 1, f"job-{number}", "work", b"", 1, START + number, 0, 0, b"", "default",
                  READY, 0, START + number, 0)  # fmt: skip
        engine.jobs.put(job.seq, job)
        engine.by_jid[job.jid] = job  # its growth would hide the lists
    tracemalloc.start()
    try:
        StoreSnapshot(engine.jobs).fill(engine)
        used, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert engine.queues["default"].counts[READY] == JOBS
    assert peak - used < JOBS * 4, "the start had a list of all jobs"


def test_jobs_share_their_terms_until_one_of_them_changes() -> None:
    engine = Engine(Random(1), protocol_rules())
    one, two = engine.push(unit("one"), START), engine.push(unit("two"), START)
    assert one.terms is two.terms
    kind, retries = two.kind, two.retries
    engine.update(one, kind="another", retries=retries + 7)
    assert (one.kind, one.retries) == ("another", retries + 7)
    assert (two.kind, two.retries) == (kind, retries)
    for name in ("origin", "lease_duration", "max_attempts"):
        assert getattr(one, name) == getattr(two, name)
    engine.update(one, payload=b"[1]")
    assert (one.kind, one.retries) == ("another", retries + 7)


def test_the_terms_of_ended_jobs_take_a_limited_amount_of_memory() -> None:
    engine = Engine(Random(1), protocol_rules())
    for number in range(MAX_SHARED_TERMS + 100):
        job = engine.push(unit(f"job-{number}"), START)
        engine.update(job, kind=f"kind-{number}")
        engine.cancel(job, START)
    assert len(job_module._shared_terms) <= MAX_SHARED_TERMS
    job = engine.push(unit("later"), START)
    assert (job.kind, job.retries) == (unit("later").kind, unit("later").retries)


def test_long_names_of_ended_jobs_take_no_memory() -> None:
    """Kinds, names of queues and groups of failures can have any size."""
    engine = Engine(Random(1), protocol_rules())
    rule = QueueRule(["allowed*"])
    tracemalloc.start()
    try:
        for number in range(20):
            name = f"{number}{'x' * 1_000_000}"
            job = engine.push(unit(name, name, kind=name), START)
            assert not rule.allows(name)
            assert len(fingerprint(name, name)) == 16
            assert records.decode_job(records.encode(job)).kind == name
            engine.cancel(job, START)
            engine.remove_queue(name, START)
            engine.take_changes()
            del job, name
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 10_000_000, f"{used} bytes"


def test_a_flush_removes_the_shared_terms() -> None:
    engine = Engine(Random(1), protocol_rules())
    engine.push(unit("job"), START)
    assert job_module._shared_terms
    engine.flush(START)
    assert not job_module._shared_terms
