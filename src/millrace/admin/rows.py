"""Jobs as rows.

Strangers choose the names, and may choose long ones: a list shows the beginning of each, so that it
can always be told. Its rows' numbers say which jobs they are.
"""

from math import isfinite
from typing import Final, cast

from millrace.engine.job import FOREVER, GOQUEUE, PROTOCOLS, QLESS, Job
from millrace.engine.states import STATE_NAMES
from millrace.protocols.faktory.wrapping import wrapped
from millrace.protocols.qless.part import read_part
from millrace.records import JobRecord, State

from .audit import truncate
from .service import AdminService

#: Of so many bytes and characters a list shows something.
PAYLOAD_EXCERPT_SIZE: Final = 200
MESSAGE_EXCERPT_SIZE: Final = 300
NAME_EXCERPT_SIZE: Final = 1000
MAX_LISTED_TAGS: Final = 50
#: A list ends early when it has so many characters of names: whoever wants more goes on from there.
MAX_PAGE_TEXT: Final = 1 << 20


def row(hub: AdminService, job: Job) -> JobRecord:
    """For a list."""
    found = whole(hub, job)
    found.jid, found.queue, found.kind = text(job.jid), text(job.queue), text(job.kind)
    found.worker, found.group = text(found.worker), text(found.group)
    found.called = text(found.called)
    found.tags = [text(tag) for tag in found.tags[:MAX_LISTED_TAGS]]
    return found


def whole(hub: AdminService, job: Job) -> JobRecord:
    """For whoever asks for this one, with all of its names."""
    failure, extra = job.failure, job.extra
    qless = hub.qless
    return JobRecord(
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
        message="" if failure is None else failure.message[:MESSAGE_EXCERPT_SIZE],
        failed_at=0 if failure is None else failure.last_at,
        tags=[] if extra is None else list(extra.tags),
        tracked=qless is not None and job.jid in qless.tracked,
        payload=job.payload[:PAYLOAD_EXCERPT_SIZE],
        size=len(job.payload),
        called=wrapped(job),
    )


def text(said: str) -> str:
    return truncate(said, NAME_EXCERPT_SIZE)


def weight(row: JobRecord) -> int:
    """How many characters of names it has."""
    names = (row.jid, row.queue, row.kind, row.worker, row.group, row.called, row.message)
    return sum(map(len, names)) + sum(map(len, row.tags))


def priority(job: Job) -> float:
    """In the number of the protocol that pushed it."""
    if job.origin == QLESS:
        value = read_part(job).priority
    else:
        has_part = job.extra is not None and job.extra.own is not None
        rank = read_part(job).rank if has_part else job.rank
        value = 0.0 - rank if job.origin == GOQUEUE else rank
    return value if isfinite(value) else 0  # JSON has no word for it


def moment(at: int) -> int:
    """A time; 0 for one that never comes."""
    return 0 if at == FOREVER else at
