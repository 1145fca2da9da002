"""`workers`: who works, and on what.

Faktory's and Qless's workers have names and are heard of; of the others is known who holds a job.
Workq and Go Job Queue name nobody: whoever has the id may end the job, so theirs are one row each.
"""

from collections.abc import Iterator
from typing import Final

from millrace.engine.job import PROTOCOLS, Job
from millrace.engine.policy import BOUND
from millrace.engine.workers import WORKER_STATES, Worker

from .answering import Answering, Telling
from .errors import Refused
from .hub import ControlHub
from .messages import AskedWorkers, Held, WorkerRow, Workers
from .paging import page_of
from .rows import LARGE_LIST, MOST_PAYLOAD, moment, text

#: So many of a worker's jobs are told.
MOST_HELD: Final = 20
#: So many leases are looked at before others have their turn.
SLICE: Final = 1000
#: And so many workers are told of.
ROWS: Final = 10
MOST_LABELS: Final = 50

#: A protocol and a worker's name there.
Name = tuple[str, str]


class Holding:
    """What a worker has."""

    __slots__ = ("count", "first", "since", "stalled")

    def __init__(self, since: int) -> None:
        self.count = self.stalled = 0
        self.first: list[int] = []
        #: When it leased the first of them.
        self.since = since


def workers(hub: ControlHub, asked: AskedWorkers, now: int) -> Iterator[Workers | None]:
    engine = hub.engine
    held: dict[Name, Holding] = {}
    seqs = list(engine.leased)
    for first in range(0, len(seqs), SLICE):
        if first:
            yield None
        for job in map(engine.leased.get, seqs[first : first + SLICE]):
            if job is not None:
                name = (PROTOCOLS[job.actor], job.holder)
                holding = held.get(name)
                if holding is None:
                    holding = held[name] = Holding(job.leased_at)
                holding.count += 1
                if holding.count <= MOST_HELD:
                    holding.first.append(job.seq)
                if job.deadline <= now:
                    holding.stalled += 1
    known = _known(hub)
    names = list(held.keys() | known)
    if asked.protocol:
        names = [name for name in [(asked.protocol, asked.wid)] if name in held or name in known]
    after = _after(asked.after) if asked.after else None
    page, is_more = yield from page_of(names, after, asked.most)
    rows: list[WorkerRow] = []
    size = 0
    for number, name in enumerate(page, 1):
        rows.append(_row(hub, name, held.get(name)))
        size += _weight(rows[-1])
        if size >= LARGE_LIST:
            is_more |= number < len(page)
            page = page[:number]
            break
        if number % ROWS == 0:
            yield None
    more = f"{page[-1][0]} {page[-1][1]}" if is_more else ""
    yield Workers(rows, len(names), more)


def _after(text: str) -> Name:
    protocol, space, wid = text.partition(" ")
    if not space:
        raise Refused("`after` is a protocol and a worker's name, as the answer before gave them")
    return protocol, wid


def _known(hub: ControlHub) -> set[Name]:
    """Workers that are heard of, whether they have jobs or not."""
    found: set[Name] = set()
    if hub.faktory is not None:
        found.update(("faktory", wid) for wid in hub.faktory.of_worker)
    if hub.qless is not None:
        found.update(("qless", wid) for wid in hub.qless.workers)
    return found


def _row(hub: ControlHub, name: Name, holding: Holding | None) -> WorkerRow:
    protocol, wid = name
    row = WorkerRow(
        protocol=protocol,
        wid=wid,
        hostname="",
        pid=0,
        labels=[],
        rss_kb=0,
        state="",
        started_at=0 if holding is None else holding.since,
        beat_at=0,
        connections=0,
        held=[],
        count=0 if holding is None else holding.count,
        stalled=0 if holding is None else holding.stalled,
    )
    if holding is not None:
        jobs = map(hub.engine.leased.get, holding.first)
        row.held = [_held(job) for job in jobs if job is not None and job.holder == wid]
    if protocol == "faktory" and hub.faktory is not None:
        worker = hub.faktory.workers.known.get(wid)
        if worker is not None:
            _introduce(row, worker)
    elif protocol == "qless" and hub.qless is not None:
        row.beat_at = hub.qless.workers.get(wid, 0)
    return row


def _introduce(row: WorkerRow, worker: Worker) -> None:
    """What a worker of Faktory has said of itself."""
    row.hostname = text(worker.hostname)
    row.pid, row.rss_kb = worker.pid, worker.rss_kb
    row.labels = [text(label) for label in worker.labels[:MOST_LABELS]]
    row.state = WORKER_STATES[worker.state]
    row.started_at, row.beat_at = worker.started_at, worker.beat_at
    row.connections = worker.connections


def _weight(row: WorkerRow) -> int:
    """How many characters of names it has."""
    own = len(row.wid) + len(row.hostname) + sum(map(len, row.labels))
    return own + sum(len(each.jid) + len(each.queue) + len(each.kind) for each in row.held)


def _held(job: Job) -> Held:
    deadline = 0 if job.actor in BOUND else moment(job.deadline)
    return Held(
        jid=text(job.jid),
        seq=job.seq,
        queue=text(job.queue),
        kind=text(job.kind),
        leased_at=job.leased_at,
        deadline=deadline,
        payload=job.payload[:MOST_PAYLOAD],
    )


ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {"workers": workers}
