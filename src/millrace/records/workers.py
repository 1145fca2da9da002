"""Workers and the jobs they hold."""

from typing import Annotated

from .types import Cursor, Doc, Record, Time


class HeldJob(Record):
    """A job that a worker holds."""

    jid: Annotated[str, Doc("ID", "ID of the job.", name="id")]
    seq: Annotated[int, Doc("Number", "Number of the job.", name="number")]
    queue: Annotated[str, Doc("Queue", "Queue of the job.")]
    kind: Annotated[str, Doc("Kind", "Kind of the job.")]
    leased_at: Annotated[Time, Doc("Leased at", "Start of the attempt.")]
    deadline: Annotated[Time, Doc("Deadline", "Time at which the lease expires.")]
    payload: Annotated[bytes, Doc("Payload", "First bytes of the payload.", internal=True)]


class WorkerRecord(Record):
    """A worker that was seen recently or holds a job."""

    protocol: Annotated[str, Doc("Protocol", "Protocol of the worker.")]
    wid: Annotated[str, Doc("ID", "ID of the worker; empty for unnamed workers.", name="id")]
    hostname: Annotated[str, Doc("Host", "Host name that the worker reported.")]
    pid: Annotated[int, Doc("PID", "Process ID that the worker reported.")]
    labels: Annotated[list[str], Doc("Labels", "Labels that the worker reported.")]
    rss_kb: Annotated[int, Doc("Memory", "Memory that the worker reported, in KiB.")]
    state: Annotated[str, Doc("State", "Faktory state: running, quiet or terminate.")]
    started_at: Annotated[Time, Doc("Started", "Start of the worker, or of its oldest lease.")]
    heartbeat_at: Annotated[
        Time,
        Doc("Last heartbeat", "Time of the last heartbeat.", name="beat_at", also="heartbeat_at"),
    ]
    connections: Annotated[int, Doc("Connections", "Number of open connections.")]
    count: Annotated[int, Doc("Jobs", "Number of jobs that the worker holds.")]
    stalled: Annotated[int, Doc("Overdue", "Number of held jobs past their deadline.")]
    held: Annotated[list[HeldJob], Doc("Held jobs", "The first 20 held jobs.", name="jobs")]


class WorkerPage(Record):
    """Workers, ordered by protocol and ID."""

    workers: Annotated[list[WorkerRecord], Doc("Workers", "Workers of this page.")]
    count: Annotated[int, Doc("Count", "Number of workers.")]
    next: Cursor
