"""Payloads that are too large to be read on the event loop's thread.

A reply with a leased job waits for `Connection.start_payload_read`. A command that runs in slices
and lists jobs calls `read_ahead` for each job.
"""

from collections.abc import Iterator

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.payloads import MAX_DIRECT_READ, PayloadRead


def is_large(engine: Engine, job: Job) -> bool:
    """Whether another thread should read the payload of a job."""
    return job.stored_size > MAX_DIRECT_READ and engine.payloads.fetcher is not None


def read_ahead(engine: Engine, job: Job) -> Iterator[None]:
    """Yield until a large payload is in memory. `engine.payload` returns it until `release_payload`
    is called. Raise PayloadDamaged if the payload is damaged.
    """
    if job.stored_size <= MAX_DIRECT_READ or engine.payloads.fetcher is None:
        return
    read = PayloadRead([job.seq])
    engine.payloads.fetcher(read)
    while read.payloads is None:
        engine.payloads.awaited = read
        yield
    if job.seq in read.damaged:
        raise read.damaged[job.seq]
    engine.payloads.fetched.update(read.payloads)


def release_payload(engine: Engine, job: Job) -> None:
    """Remove the payload that `read_ahead` has put in memory."""
    if engine.payloads.fetched:
        engine.payloads.fetched.pop(job.seq, None)
