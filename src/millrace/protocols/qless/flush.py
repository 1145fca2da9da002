"""FLUSHDB and FLUSHALL: remove the jobs pushed over Qless, but no data of other protocols."""

from collections.abc import Iterator
from typing import Final

from millrace.engine.job import Job
from millrace.engine.tables import seqs_to_examine
from millrace.protocols.registry import QLESS

from .cancellation import removal_order
from .errors import ChangeRefused
from .state import QlessState

#: Number of jobs that one slice examines.
FLUSH_BATCH_SIZE: Final = 50


def flush(q: QlessState, now: int, *, all_databases: bool) -> Iterator[None]:
    """Remove the jobs, settings and statistics of the database in use, or of all of them. Jobs
    pushed after the first slice stay.
    """
    engine, reverts, end = q.engine, q.engine.revert_count, q.engine.next_seq

    def is_flushed(job: Job) -> bool:
        is_included = all_databases or q.is_in_database(job.queue)
        return job.seq < end and job.origin == QLESS and is_included

    seqs = seqs_to_examine(engine.tables.jobs, newest_first=True)
    order = removal_order(engine, seqs, is_flushed)
    for number, job in enumerate(order, 1):
        if job is not None:
            engine.cancel(job, now, QLESS)
        if number % FLUSH_BATCH_SIZE == 0:
            yield from _end_slice(q, reverts)
    for _ in q.remove_settings(now, all_databases=all_databases):
        yield from _end_slice(q, reverts)


def _end_slice(q: QlessState, reverts: int) -> Iterator[None]:
    yield
    if q.engine.unavailable_reason or q.engine.revert_count != reverts:
        raise ChangeRefused
