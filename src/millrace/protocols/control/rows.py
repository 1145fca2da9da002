"""Jobs as rows."""

from math import isfinite
from typing import Final, cast

from millrace.engine.job import FOREVER, GOQUEUE, PROTOCOLS, Job
from millrace.engine.states import STATE_NAMES
from millrace.protocols.faktory.wrapping import wrapped
from millrace.protocols.qless.part import part_of

from .hub import ControlHub
from .messages import JobRow, State

#: Of so many bytes and characters a list shows something.
MOST_PAYLOAD: Final = 200
MOST_MESSAGE: Final = 300


def row(hub: ControlHub, job: Job) -> JobRow:
    failure, extra = job.failure, job.extra
    qless = hub.qless
    return JobRow(
        seq=job.seq,
        jid=job.jid,
        queue=job.queue,
        kind=job.kind,
        state=cast("State", STATE_NAMES[job.state]),
        protocol=PROTOCOLS[job.origin],
        priority=priority(job),
        created=job.created,
        due=moment(job.due),
        ready_at=job.ready_at,
        leased_at=job.leased_at,
        deadline=moment(job.deadline),
        ended_at=job.ended_at,
        attempt=job.attempt,
        failures=job.failures,
        retries=job.retries,
        worker=job.holder,
        worker_protocol=PROTOCOLS[job.actor],
        group="" if failure is None else failure.group,
        message="" if failure is None else failure.message[:MOST_MESSAGE],
        failed_at=0 if failure is None else failure.last_at,
        tags=[] if extra is None else list(extra.tags),
        tracked=qless is not None and job.jid in qless.tracked,
        payload=job.payload[:MOST_PAYLOAD],
        size=len(job.payload),
        called=wrapped(job),
    )


def priority(job: Job) -> float:
    """In the number of the protocol that pushed it."""
    if job.extra is not None and job.extra.own is not None:
        value = part_of(job).priority
    else:
        value = -job.rank if job.origin == GOQUEUE else job.rank
    return value if isfinite(value) else 0  # JSON has no word for it


def moment(at: int) -> int:
    """A time; 0 for one that never comes."""
    return 0 if at == FOREVER else at
