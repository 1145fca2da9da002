"""`search`: jobs that match a query, found in slices.

The search selects the smallest index that contains all matching jobs, scans it (scans.py) and tests
each job when the scan reaches it (filters.py). A cursor contains the position of the scan, so that
the next request resumes exactly there.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from heapq import nlargest
from itertools import islice
from typing import Annotated, Final
from zlib import crc32

import msgspec

from millrace.engine.engine import Engine
from millrace.engine.failure_groups import JobFailureGroup
from millrace.engine.job import Job
from millrace.engine.queues import Queue
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED, STATE_NAMES
from millrace.records import FailureGroup, FailurePage, JobFilter, JobPage, ListFailures, SearchJobs

from .errors import AdminError
from .filters import CHUNK_SIZE, FilterMatcher
from .jobs import MAX_PAGE_TEXT, MESSAGE_EXCERPT_SIZE, list_record, shorten, text_size
from .scans import (
    FailureScan,
    HeadScan,
    IdScan,
    IndexScan,
    KeyOf,
    ReadyIndex,
    Scan,
    SequenceScan,
    TailScan,
    due_key,
    ended_key,
    first_due,
    first_ready,
    index_numbers,
    ready_key,
)
from .service import AdminService

MAX_SEARCH_PAGE: Final = 1000
MAX_EXAMINED: Final = 10_000_000
#: Jobs examined per slice.
SEARCH_SLICE_SIZE: Final = 160
#: Jobs that one slice writes.
RECORD_SLICE_SIZE: Final = 100
#: Maximum jobs listed for an index scan; ready jobs cost more.
MAX_INDEX_SIZE: Final = 65_536
MAX_READY_INDEX_SIZE: Final = 10_000
MAX_QUEUES_SCANNED: Final = 1000
#: Maximum jobs sorted by due time, and by end time.
MAX_DUE_SORTED: Final = 20_000
MAX_ENDED_SORTED: Final = 131_072
MAX_CURSOR_LENGTH: Final = 1000
_STATES: Final = [SCHEDULED, BLOCKED, READY, LEASED, DONE, DEAD]


class Cursor(msgspec.Struct, array_like=True):
    """The position of a search."""

    #: Checksum of the query and the order. A cursor is valid only for the same search.
    mark: int
    #: Index of the current scan, and the last key.
    walk: Annotated[int, msgspec.Meta(ge=0)] = 0
    after: list[int | float] = []
    #: The last key of the first scan, for the second scan.
    bound: list[int | float] = []
    examined: Annotated[int, msgspec.Meta(ge=0)] = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Cursor).decode


class Candidates:
    """An iterator over the jobs that match a query. It yields each job once, tests it in its
    current state, and yields None at the end of a slice. It omits jobs pushed after its start.

    It has examined `examined` of about `total` jobs. It ends early after `max_examined` jobs.
    """

    def __init__(
        self,
        hub: AdminService,
        query: JobFilter,
        order: str = "newest",
        cursor: str = "",
        max_examined: int = 0,
        *,
        ids_only: bool = False,
    ) -> None:
        self._engine = hub.engine
        self._meaning = FilterMatcher(hub, query)
        self._walks = _walks(hub, query, order, ids_only=ids_only)
        mark = crc32(order.encode() + msgspec.json.encode(query))
        self._at = Cursor(mark) if not cursor else _read(cursor, mark)
        self.total = sum(walk.total for walk in self._walks)
        self._until = self._at.examined + (max_examined or MAX_EXAMINED)
        self._over = False
        self._jobs = self._look()

    @property
    def examined(self) -> int:
        return self._at.examined

    @property
    def cursor(self) -> str:
        """The cursor to resume the search, or an empty string at the end."""
        return "" if self._over else urlsafe_b64encode(_encode(self._at)).decode().rstrip("=")

    def __iter__(self) -> Iterator[Job | None]:
        return self

    def __next__(self) -> Job | None:
        return next(self._jobs)

    def _look(self) -> Iterator[Job | None]:
        at, engine, meaning = self._at, self._engine, self._meaning
        admits, has_words = meaning.admits, meaning.has_words
        spent = 0
        for seq in self._stops():
            if spent >= CHUNK_SIZE or seq is None:
                spent = 0
                yield None
            job = None if seq is None else engine.job(seq)  # a flush replaces it
            spent += CHUNK_SIZE // SEARCH_SLICE_SIZE
            if job is None:
                continue
            at.examined += 1
            if admits(job):
                cost = meaning.cost(job)
                spent += cost
                if cost <= CHUNK_SIZE:
                    if has_words(job):
                        yield job
                elif (yield from self._through(job)):
                    yield job
            if at.examined >= self._until:
                return
        self._over = True

    def _stops(self) -> Iterator[int | None]:
        at, walks = self._at, self._walks
        while at.walk < len(walks):
            walk = walks[at.walk]
            first = walks[0]
            if at.walk and isinstance(first, HeadScan) and at.bound:
                first.bound = tuple(at.bound)
            for stop in walk.go(tuple(at.after) or None):
                if stop is None:
                    yield None
                else:
                    at.after = list(stop[0])
                    yield stop[1]
            at.walk += 1
            at.after = []
            if isinstance(walk, HeadScan):
                at.bound = list(walk.bound or ())

    def _through(self, job: Job) -> Generator[None, None, bool]:
        """Return whether a large job contains all terms and still matches the query."""
        for found in self._meaning.through(job):
            if found is None:
                yield None
            elif not found:
                return False
        return self._engine.job(job.seq) is job and self._meaning.admits(job)


def matching_jobs(hub: AdminService, query: JobFilter) -> Candidates:
    """Return the matching jobs for an action that changes them."""
    return Candidates(hub, query, ids_only=True)


def search_jobs(hub: AdminService, request: SearchJobs, _: int) -> Iterator[JobPage | None]:
    if not 0 < request.limit <= MAX_SEARCH_PAGE:
        raise AdminError(f"`limit` must be between 1 and {MAX_SEARCH_PAGE}.")
    if not 0 < request.max_examined <= MAX_EXAMINED:
        raise AdminError(f"`max_examined` must be between 1 and {MAX_EXAMINED}.")
    found = Candidates(hub, request.query, request.order, request.cursor, request.max_examined)
    rows, size = [], 0
    for job in found:
        if job is None:
            yield None
            continue
        rows.append(list_record(hub, job))
        size += text_size(rows[-1])
        if len(rows) == request.limit or size >= MAX_PAGE_TEXT:
            break
        if len(rows) % RECORD_SLICE_SIZE == 0:
            yield None
    yield JobPage(rows, found.examined, max(found.total, found.examined), found.cursor)


def _read(cursor: str, mark: int) -> Cursor:
    try:
        read = _decode(urlsafe_b64decode(cursor[:MAX_CURSOR_LENGTH] + "=" * (-len(cursor) % 4)))
    except (ValueError, msgspec.MsgspecError):
        raise AdminError("Invalid cursor.") from None
    if read.mark != mark:
        raise AdminError(
            "The cursor belongs to another search. Repeat the search without a cursor."
        )
    return read


# Selection of scans


def _walks(hub: AdminService, query: JobFilter, order: str, *, ids_only: bool) -> list[Scan]:
    """Return one scan, or a head scan and a tail scan. The choice depends only on the query and the
    order, so that a cursor remains valid.
    """
    engine = hub.engine
    if query.id is not None:
        return [IdScan(engine, query.id, ids_only=ids_only)]
    if query.tag is not None:
        return [IndexScan(hub.engine.annotations.tags.get(query.tag, {}))]
    if query.fingerprint is not None:
        return [FailureScan(engine, query.fingerprint)]
    others = _by_number(engine, query)
    if order == "queue" and query.state == "ready" and query.queue is not None:
        queue = query.queue
        return _in_order(engine, lambda: first_ready(engine, queue), ready_key, others)
    if order == "due" and query.state == "scheduled":
        return _in_order(engine, lambda: _next_due(engine), due_key(engine), others)
    if order == "ended" and query.state in {"done", "dead"}:
        return _in_order(
            engine,
            lambda: index_numbers(_indexes(engine, query, MAX_ENDED_SORTED) or []),
            ended_key,
            others,
        )
    return [others]


def _in_order(
    engine: Engine, first: Callable[[], list[int]], key: KeyOf, others: Scan
) -> list[Scan]:
    beginning = HeadScan(engine, first, key)
    return [beginning, TailScan(engine, others, beginning)]


def _next_due(engine: Engine) -> list[int]:
    few = len(engine.tables.scheduled) <= MAX_DUE_SORTED
    return list(engine.tables.scheduled) if few else first_due(engine)


def _by_number(engine: Engine, query: JobFilter) -> Scan:
    indexes = _indexes(engine, query, MAX_INDEX_SIZE)
    if indexes is not None:
        return IndexScan(*indexes)
    return (
        IndexScan(engine.tables.jobs)
        if len(engine.tables.jobs) <= MAX_INDEX_SIZE
        else SequenceScan(engine)
    )


def _indexes(engine: Engine, query: JobFilter, most: int) -> list[Collection[int]] | None:
    """Return indexes that contain all matching jobs, or None if they exceed `most` jobs."""
    if query.queue is not None and query.queue not in engine.tables.queues:
        return []
    states = _states(query)
    queue = None if query.queue is None else engine.tables.queues[query.queue]
    if queue is not None:
        states = [state for state in states if queue.counts[state]]
    elif states is _STATES:
        return None
    ready = _ready(engine, queue) if READY in states else []
    if ready is None:
        return None
    indexes: list[Collection[int]] = [*ready]
    indexes += (index for state in states for index in _index(engine, state))
    return indexes if sum(map(len, indexes)) <= most else None


def _states(query: JobFilter) -> list[int]:
    if query.state is not None:
        return [STATE_NAMES.index(query.state)]
    return [SCHEDULED, DEAD] if query.failing else _STATES


def _ready(engine: Engine, queue: Queue | None) -> list[ReadyIndex] | None:
    if queue is not None:
        found = [ReadyIndex(queue.ready)]
    elif len(engine.tables.queues) <= MAX_QUEUES_SCANNED:
        found = [ReadyIndex(each.ready) for each in engine.tables.queues.values()]
    else:
        return None
    return found if sum(map(len, found)) <= MAX_READY_INDEX_SIZE else None


def _index(engine: Engine, state: int) -> tuple[Mapping[int, Job], ...]:
    tables = engine.tables
    if state == DONE:
        return tables.done, tables.done_untrimmed
    if state == DEAD:
        return tables.dead, tables.dead_untrimmed
    return {
        SCHEDULED: (tables.scheduled,),
        BLOCKED: (tables.blocked,),
        LEASED: (tables.leased,),
    }.get(state, ())


#: Groups examined per slice.
GROUP_SLICE_SIZE: Final = 1000
#: Maximum listed queues per group, and the number of jobs sampled to find them.
MAX_GROUP_QUEUES: Final = 5
GROUP_SAMPLE_SIZE: Final = 50


def list_failures(hub: AdminService, request: ListFailures, _: int) -> Iterator[FailurePage | None]:
    failing = hub.engine.failure_groups
    yield from failing.index_remaining()
    keys, found = list(failing), list[JobFailureGroup]()
    for first in range(0, len(keys), GROUP_SLICE_SIZE):
        some = [failing.get(key) for key in keys[first : first + GROUP_SLICE_SIZE]]
        found += [group for group in some if group is not None]
        found = nlargest(request.limit, found, key=lambda group: len(group.jobs))
        yield None
    groups: list[FailureGroup] = []
    for group in found:
        if group.jobs:  # all jobs may have left the group since
            groups.append(_told(group))
        if len(groups) % 20 == 0:
            yield None
    yield FailurePage(groups, len(failing), failing.count)


def _told(group: JobFailureGroup) -> FailureGroup:
    newest = group.newest
    failure = newest.failure
    some = islice(group.jobs.values(), GROUP_SAMPLE_SIZE)
    names = dict.fromkeys([newest.queue, *(job.queue for job in some)])
    return FailureGroup(
        fingerprint=group.fingerprint,
        group=shorten(group.group),
        message="" if failure is None else failure.message[:MESSAGE_EXCERPT_SIZE],
        dead=group.dead,
        retrying=group.retrying,
        newest_at=0 if failure is None else failure.last_at,
        newest_jid=shorten(newest.jid),
        newest_seq=newest.seq,
        queues=[shorten(name) for name in names][:MAX_GROUP_QUEUES],
    )
