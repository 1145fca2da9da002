"""Ready jobs are restored together, with the same result as one by one."""

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from invariants import consistent

from millrace.engine.engine import Engine
from millrace.engine.job import AFTER_ARRIVALS, BEFORE_ARRIVALS, Extra, Job
from millrace.engine.restoration import RESTORE_BATCH_SIZE, sort_for_restore
from millrace.engine.states import BLOCKED, READY, SCHEDULED
from millrace.protocols.registry import FAKTORY, QLESS
from millrace.protocols.spec import protocol_rules
from scene import START, Scene, durable_state, ready_jids
from support.plain import copy_of


def some_jobs(rng: Random, count: int) -> list[Job]:
    """Mostly plain waiting jobs, and some with each field that makes a difference."""
    jobs = []
    for seq in range(1, count + 1):
        rare = rng.randrange(20)
        state = (SCHEDULED, BLOCKED)[seq % 2] if rare == 0 else READY
        jobs.append(
            Job(
                seq,
                f"job-{seq if rare != 1 else rng.randrange(count)}",
                "work",
                b"[]",
                QLESS if rare == 2 else FAKTORY,
                START,
                0,
                25,
                b"",
                f"queue-{rng.randrange(3)}",
                state,
                rng.choice((-1, 0.5, 3)) if rare == 3 else 0,
                position_of(rng, seq, rare),
                START + seq if state == SCHEDULED else 0,
                START,
                None,
                Extra(tags=["tag"], load="load" if state == BLOCKED else "") if rare < 6 else None,
                START + seq if rare == 7 else 0,
            )
        )
    return sort_for_restore(jobs)


def position_of(rng: Random, seq: int, rare: int) -> int:
    if rare == 8:
        return rng.choice((AFTER_ARRIVALS, BEFORE_ARRIVALS)) + seq
    return seq // 2


def one_by_one(jobs: Iterable[Job]) -> Engine:
    engine = Engine(Random(1), protocol_rules())
    for job in jobs:
        engine.restoration.restore_job(job)
    engine.restoration.restore((), {})
    return engine


def together(jobs: Iterable[Job], *, in_table: bool) -> Engine:
    engine = Engine(Random(1), protocol_rules())
    jobs = list(jobs)
    if in_table:
        engine.jobs.extend(sorted(jobs, key=lambda job: job.seq))
    engine.restoration.restore(jobs, {}, in_table=in_table)
    return engine


def state_of(engine: Engine) -> dict[str, Any]:
    """Everything that clients can observe."""
    jids = sorted(engine.by_jid)
    return durable_state(engine) | {
        "order": {name: ready_jids(engine, name) for name in sorted(engine.queues)},
        "counts": {name: list(queue.counts) for name, queue in engine.queues.items()},
        "forgotten": {name: queue.forgotten for name, queue in engine.queues.items()},
        "jids": {jid: [job.seq for job in engine.table.find_all(jid)] for jid in jids},
        "last position": engine.positions.last,
        "next timer": engine.next_timer(),
        "tags": {tag: sorted(seqs) for tag, seqs in engine.annotations.tags.items()},
        "restored": engine.restoration.restored_seq,
    }


@pytest.mark.parametrize("in_table", [False, True])
@pytest.mark.parametrize("count", [1, 500, 4 * RESTORE_BATCH_SIZE])
def test_the_state_is_that_of_jobs_restored_one_by_one(count: int, in_table: bool) -> None:
    jobs = some_jobs(Random(count), count)
    expected = one_by_one([copy_of(job) for job in jobs])
    found = together([copy_of(job) for job in jobs], in_table=in_table)
    assert state_of(found) == state_of(expected)
    consistent(found)
    names = {id(job.queue) for job in found.jobs.values()}
    assert len(names) == len(found.queues)


def test_a_restored_engine_continues_behind_the_jobs() -> None:
    engine = together(some_jobs(Random(7), 300), in_table=True)
    pushed = Scene(engine).push("new", "queue-0")
    assert pushed.seq == 301
    assert pushed.position > max(
        job.position
        for job in engine.jobs.values()
        if job.position < AFTER_ARRIVALS and job is not pushed and job.origin != QLESS
    )
