"""`workers`: workers and their leased jobs.

Workers of Faktory and Qless register with a name. Workers of other protocols are known only while
they hold a job. In Workq and Go Job Queue, workers have no name, and any client with the id can end
the job; the list has one row for each of these protocols.
"""

from collections.abc import Iterator
from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.workers import QUIET, TERMINATE, WORKER_STATES, Worker
from millrace.protocols.registry import PROTOCOL_NAMES
from millrace.records import HeldJob, ListWorkers, Ok, WorkerAction, WorkerPage, WorkerRecord

from .errors import AdminError, TargetNotFound, require_writable
from .jobs import MAX_PAGE_TEXT, payload_excerpt, shorten, time_or_zero
from .query_language import quoted
from .scans import page_of
from .service import AdminService

#: Maximum listed jobs per worker.
MAX_HELD_JOBS: Final = 20
#: Leases examined per slice.
LEASE_SLICE_SIZE: Final = 1000
#: Worker records built per slice.
WORKER_SLICE_SIZE: Final = 10
MAX_LABELS: Final = 50

#: Protocol and worker name.
Name = tuple[str, str]


class WorkerLeases:
    """The leases of a worker."""

    __slots__ = ("count", "first", "since", "stalled")

    def __init__(self, since: int) -> None:
        self.count = self.stalled = 0
        self.first: list[int] = []
        #: Time of the first lease.
        self.since = since


def list_workers(hub: AdminService, request: ListWorkers, now: int) -> Iterator[WorkerPage | None]:
    engine = hub.engine
    held: dict[Name, WorkerLeases] = {}
    seqs = list(engine.tables.leased)
    for first in range(0, len(seqs), LEASE_SLICE_SIZE):
        if first:
            yield None
        for job in map(engine.tables.leased.get, seqs[first : first + LEASE_SLICE_SIZE]):
            if job is not None:
                name = (PROTOCOL_NAMES[job.holder_protocol], job.holder)
                holding = held.get(name)
                if holding is None:
                    holding = held[name] = WorkerLeases(job.leased_at)
                holding.count += 1
                if holding.count <= MAX_HELD_JOBS:
                    holding.first.append(job.seq)
                if job.deadline <= now:
                    holding.stalled += 1
    known = _known(hub)
    names = list(held.keys() | known)
    if request.protocol:
        names = [
            name for name in [(request.protocol, request.wid)] if name in held or name in known
        ]
    after = _after(request.cursor) if request.cursor else None
    page, is_more = yield from page_of(names, after, request.limit)
    rows: list[WorkerRecord] = []
    size = 0
    for number, name in enumerate(page, 1):
        rows.append(_row(hub, name, held.get(name)))
        size += _weight(rows[-1])
        if size >= MAX_PAGE_TEXT:
            is_more |= number < len(page)
            page = page[:number]
            break
        if number % WORKER_SLICE_SIZE == 0:
            yield None
    more = f"{page[-1][0]} {page[-1][1]}" if is_more else ""
    yield WorkerPage(rows, len(names), more)


def _after(text: str) -> Name:
    protocol, space, wid = text.partition(" ")
    if not space:
        raise AdminError("`after` must be `more` of the previous reply.")
    return protocol, wid


def _known(hub: AdminService) -> set[Name]:
    """Return the registered workers, with or without jobs."""
    found: set[Name] = set()
    if hub.faktory is not None:
        found.update(("faktory", wid) for wid in hub.faktory.connections_by_worker)
    if hub.qless is not None:
        found.update(("qless", wid) for wid in hub.qless.workers.last_seen)
    return found


def _row(hub: AdminService, name: Name, holding: WorkerLeases | None) -> WorkerRecord:
    protocol, wid = name
    row = WorkerRecord(
        protocol=protocol,
        wid=wid,
        hostname="",
        pid=0,
        labels=[],
        rss_kb=0,
        state="",
        started_at=0 if holding is None else holding.since,
        heartbeat_at=0,
        connections=0,
        held=[],
        count=0 if holding is None else holding.count,
        stalled=0 if holding is None else holding.stalled,
    )
    if holding is not None:
        jobs = map(hub.engine.tables.leased.get, holding.first)
        row.held = [_held(hub.engine, job) for job in jobs if job is not None and job.holder == wid]
    if protocol == "faktory" and hub.faktory is not None:
        worker = hub.faktory.workers.known.get(wid)
        if worker is not None:
            _introduce(row, worker)
    elif protocol == "qless" and hub.qless is not None:
        row.heartbeat_at = hub.qless.workers.last_seen.get(wid, 0)
    return row


def _introduce(row: WorkerRecord, worker: Worker) -> None:
    """Copy the registration of a Faktory worker into the record."""
    row.hostname = shorten(worker.hostname)
    row.pid, row.rss_kb = worker.pid, worker.rss_kb
    row.labels = [shorten(label) for label in worker.labels[:MAX_LABELS]]
    row.state = WORKER_STATES[worker.state]
    row.started_at, row.heartbeat_at = worker.started_at, worker.last_heartbeat_at
    row.connections = worker.connections


def _weight(row: WorkerRecord) -> int:
    """Return the number of characters of text in the record."""
    own = len(row.wid) + len(row.hostname) + sum(map(len, row.labels))
    return own + sum(len(each.jid) + len(each.queue) + len(each.kind) for each in row.held)


def _held(engine: Engine, job: Job) -> HeldJob:
    deadline = time_or_zero(job.deadline)
    return HeldJob(
        jid=shorten(job.jid),
        seq=job.seq,
        queue=shorten(job.queue),
        kind=shorten(job.kind),
        leased_at=job.leased_at,
        deadline=deadline,
        payload=payload_excerpt(engine, job),
    )


# Actions on workers


def signal_worker(hub: AdminService, request: WorkerAction, now: int) -> Ok:
    require_writable(hub.engine)
    faktory = hub.faktory
    if faktory is None:
        raise TargetNotFound("The Faktory port is off.")
    if request.wid == "all":
        workers = faktory.workers.connected()
        if not workers:
            raise TargetNotFound("No Faktory worker is connected.")
    else:
        worker = faktory.workers.known.get(request.wid)
        if worker is None or not worker.connections:
            raise TargetNotFound(f"Worker {quoted(request.wid)} is not connected.")
        workers = [worker]
    hub.audit.add(now, request.by, f"{request.action} worker", request.wid)
    for worker in workers:
        faktory.advance(worker, QUIET if request.action == "quiet" else TERMINATE)
    return Ok()
