"""The history of one job: its events and attempts.

The events are read from the journal: events that are not shipped yet from the server's outbox, the
rest from the lake. If the journal has no events of the job, they are derived from its fields.
"""

import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, NamedTuple

from millrace.journal.location import parse_location
from millrace.records import EventRecord, JobDetail, JobRecord

from .settings import WebSettings

#: Maximum seconds to read the journal: for an existing job, for a removed job, and if the request
#: demands the whole journal.
SHORT: Final = 0.06
LONG: Final = 0.5
ALL: Final = 10.0
#: Maximum concurrent readers: each uses a thread and disk bandwidth.
MAX_READERS: Final = 4
_readers = asyncio.Semaphore(MAX_READERS)
#: Descriptions of the events that end an attempt.
_ENDS: Final = {
    "completed": "completed",
    "advanced": "completed this step",
    "failed": "failed",
    "expired": "ran out of time",
    "released": "given back",
    "cancelled": "removed meanwhile",
    "evicted": "outlived its time",
    "moved": "moved away",
}


class JobHistory(NamedTuple):
    """The events of a job, oldest first."""

    events: Sequence[EventRecord]
    #: True if the complete journal was searched.
    complete: bool
    #: Source of the events.
    source: Literal["journal", "job", "nowhere"]


class Attempt(NamedTuple):
    number: int
    worker: str
    protocol: str
    leased_at: int
    wait: int | None
    #: 0 while the attempt runs or if its end is unknown; `run` is then None.
    ended_at: int
    run: int | None
    renewed: int
    how: str
    group: str
    message: str


def now() -> int:
    return int(time.time() * 1_000_000)


async def read(
    settings: WebSettings, seq: int, jid: str, detail: JobDetail | None, *, thorough: bool = False
) -> JobHistory:
    """Return the history of an existing or removed job."""
    found = JobHistory([], complete=True, source="nowhere")
    if settings.data:
        patience = ALL if thorough else LONG if detail is None else SHORT
        if await _reader_is_free(patience):
            try:
                found = await asyncio.to_thread(_read, settings, seq, jid, patience)
            finally:
                _readers.release()
        else:
            found = JobHistory([], complete=False, source="nowhere")
    if detail is None:
        return found
    if found.events:
        return found if found.complete else _begun(found, detail.job)
    return JobHistory(from_fields(detail.job), complete=found.complete, source="job")


async def _reader_is_free(patience: float) -> bool:
    """Acquire a reader. A page waits for a reader no longer than for the journal itself."""
    try:
        await asyncio.wait_for(_readers.acquire(), patience)
    except TimeoutError:
        return False
    return True


def _begun(found: JobHistory, job: JobRecord) -> JobHistory:
    """Add the push event, derived from the job's fields, if it is missing."""
    if any(event.type == "pushed" for event in found.events):
        return found
    return found._replace(events=[from_fields(job)[0], *found.events])


async def warm() -> None:
    """Load Arrow in advance, because the import is slow."""
    if "millrace.journal.job_events" not in sys.modules:
        await asyncio.to_thread(_load)


def _load() -> bool:
    try:
        import millrace.journal.job_events  # noqa: F401, PLC0415 - loads Arrow, which few pages need
    except ImportError:
        return False
    return True


def _read(settings: WebSettings, seq: int, jid: str, patience: float) -> JobHistory:
    if not _load():
        return JobHistory([], complete=False, source="nowhere")
    from millrace.journal import job_events  # noqa: PLC0415

    began = time.monotonic()
    folder, lake = Path(settings.data), parse_location(settings.lake)
    key = job_events.JobKey(seq, jid)
    shipped, last = job_events.from_lake(folder, lake, key, began + patience * 0.6)
    kept = job_events.from_outbox(folder, key, last + 1, began + patience)
    events = shipped.events | kept.events
    if settings.queues:
        events = {number: event for number, event in events.items() if _visible(settings, event)}
    complete = shipped.complete and kept.complete
    if not seq and events:
        newest = max(event.seq for event in events.values())  # several jobs can have had this ID
        events = {number: event for number, event in events.items() if event.seq == newest}
    return JobHistory([events[number] for number in sorted(events)], complete, "journal")


def _visible(settings: WebSettings, event: EventRecord) -> bool:
    """Whether the rule for queues allows the queue of an event."""
    return any(fnmatchcase(event.queue, pattern) for pattern in settings.queues)


def from_fields(job: JobRecord) -> list[EventRecord]:
    """Derive events from the job's fields: the last event of each type."""
    first = "ready" if job.ready_at == job.created or not job.due else "scheduled"
    told = [("pushed", job.created, "new", job.state if job.state == "blocked" else first)]
    if job.ready_at > job.created:
        told.append(("due", job.ready_at, "scheduled", "ready"))
    if job.leased_at:
        told.append(("leased", job.leased_at, "ready", "leased"))
    if job.failed_at and job.state != "dead":
        told.append(("failed", job.failed_at, "leased", job.state))
    if job.ended_at:
        what = "completed" if job.state == "done" else "failed"
        told.append((what, job.ended_at, "leased", job.state))
    return [
        EventRecord(
            event_id=0,
            time=at,
            type=what,
            jid=job.jid,
            seq=job.seq,
            queue=job.queue,
            state=state,
            attempt=job.attempt,
            kind=job.kind,
            origin=job.protocol,
            priority=job.priority,
            before=before,
            worker=job.worker if what in {"leased", "completed"} else None,
            actor=job.worker_protocol if what in {"leased", "completed"} else None,
            error_group=job.group if what == "failed" else None,
            error_message=job.message if what == "failed" else None,
        )
        for what, at, before, state in sorted(told, key=lambda each: each[1])
    ]


def attempts(events: Iterable[EventRecord]) -> list[Attempt]:
    """Return the attempts, newest first."""
    found: list[Attempt] = []
    current: Attempt | None = None
    for event in events:
        if event.type == "leased":
            if current is not None:
                found.append(current)
            current = Attempt(
                event.attempt,
                event.worker or "",
                event.actor or "",
                event.time,
                event.wait_us,
                0,
                None,
                0,
                "",
                "",
                "",
            )
        elif current is not None and event.type == "renewed":
            current = current._replace(renewed=current.renewed + 1)
        elif current is not None and event.state != "leased":
            found.append(_ended(current, event))
            current = None
    if current is not None:
        found.append(current)
    return found[::-1]


def _ended(attempt: Attempt, event: EventRecord) -> Attempt:
    run = event.run_us if event.run_us is not None else event.time - attempt.leased_at
    return attempt._replace(
        ended_at=event.time,
        run=run,
        how=_ENDS.get(event.type, event.type),
        group=event.error_group or "",
        message=event.error_message or "",
    )
