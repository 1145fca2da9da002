"""FLUSHDB and FLUSHALL: remove the jobs pushed over Qless, but no data of other protocols."""

from collections.abc import Iterator
from typing import Final

from millrace.engine.job import Job
from millrace.engine.states import BLOCKED
from millrace.engine.tables import seqs_to_examine
from millrace.protocols.registry import QLESS

from .errors import ChangeRefused
from .state import QlessState

#: Number of jobs that one slice examines.
FLUSH_BATCH_SIZE: Final = 50


def flush(q: QlessState, now: int, *, all_databases: bool) -> Iterator[None]:
    """Remove the jobs, settings and statistics of the database in use, or of all of them."""
    engine, reverts = q.engine, q.engine.revert_count
    for number, seq in enumerate(list(engine.tables.blocked), 1):
        job = engine.tables.blocked.get(seq)
        if job is not None and _is_flushed(q, job, all_databases):
            engine.remove_blockers(job)  # so that no job becomes ready during the flush
        if number % FLUSH_BATCH_SIZE == 0:
            yield from _end_slice(q, reverts)
    for number, seq in enumerate(seqs_to_examine(engine.tables.jobs), 1):
        job = engine.job(seq)
        if job is not None and _is_flushed(q, job, all_databases):
            if job.state == BLOCKED:
                engine.remove_blockers(job)
            engine.cancel(job, now, QLESS)
        if number % FLUSH_BATCH_SIZE == 0:
            yield from _end_slice(q, reverts)
    q.remove_settings(all_databases=all_databases)


def _is_flushed(q: QlessState, job: Job, all_databases: bool) -> bool:
    return job.origin == QLESS and (all_databases or q.is_in_database(job.queue))


def _end_slice(q: QlessState, reverts: int) -> Iterator[None]:
    yield
    if q.engine.unavailable_reason or q.engine.revert_count != reverts:
        raise ChangeRefused
