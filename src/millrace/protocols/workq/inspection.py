"""The inspect commands: jobs, queues and the server."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from millrace.engine.discarded import drain
from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.queues import Queue
from millrace.engine.ready import ReadyQueue
from millrace.engine.states import READY, SCHEDULED
from millrace.engine.tables import jobs_to_examine
from millrace.protocols.connection import MAX_JOINED_BYTES
from millrace.protocols.errors import ClientError
from millrace.protocols.payload_reads import read_ahead, release_payload
from millrace.protocols.slices import sort_in_slices

from . import arguments, jobs
from .hub import WorkqHub

#: Longer replies are sent in pieces of about this size.
PIECE_BYTES: Final = 65_536
#: Size of the jobs that are read before the first piece is sent.
MAX_HELD_BYTES: Final = 4 << 20
#: Maximum sum of offset and limit for which the first jobs are read in one step.
MAX_READY_IN_ONE_STEP: Final = 500

Pieces = Generator[bytes | None, None, None]


class UnknownObject(Exception):
    """The job or queue does not exist, or no longer exists."""


def inspect_object(hub: WorkqHub, args: list[bytes], *, has_flags: bool) -> Pieces:
    """Yield the reply in pieces, because a hundred jobs can take up a hundred megabytes. Yield None
    after a slice without a piece.
    """
    if not args:
        raise ClientError(arguments.INVALID_ARGS)
    known = _OBJECTS.get(args[0])
    if known is None:
        raise ClientError(arguments.UNKNOWN_COMMAND)
    count, show = known
    if len(args) != count + 1 or has_flags:
        raise ClientError(arguments.INVALID_ARGS)
    return show(hub, args[1:])


def _job(hub: WorkqHub, args: list[bytes]) -> Pieces:
    job = jobs.find(hub.engine, arguments.parse_job_id(args[0]))
    if job is None:
        raise UnknownObject
    for _ in read_ahead(hub.engine, job):
        yield None
    parts = _parts_of(hub.engine, job)
    if not parts:  # removed in the meantime
        raise UnknownObject
    yield from _join(b"+OK 1\r\n", parts)


def _jobs(hub: WorkqHub, args: list[bytes]) -> Pieces:
    queue, offset, limit = _page_arguments(hub.engine, args)
    if offset >= queue.counts[READY]:
        shown: list[Job] = []
    elif offset + limit <= MAX_READY_IN_ONE_STEP:
        shown = list(islice(queue.ready.first(offset + limit), offset, None))
    else:
        order = yield from sort_in_slices(_ready_rows(queue.ready))
        shown = _existing_jobs(hub.engine, order[offset : offset + limit])
    yield from _write_jobs(hub.engine, shown)


def _ready_rows(ready: ReadyQueue) -> Iterator[Any]:
    """Yield a sort key for each job, in the order of `first`: parked jobs last. Yield None for a
    removed entry.
    """
    for number, job in enumerate(ready.iter_for_check()):
        if job is None:
            yield None
        elif job.seq in ready.parked:
            yield 1, 0, number, job.seq
        else:
            yield 0, -job.rank, job.position, job.seq


def _scheduled_jobs(hub: WorkqHub, args: list[bytes]) -> Pieces:
    queue, offset, limit = _page_arguments(hub.engine, args)
    shown: list[Job] = []
    if offset < queue.counts[SCHEDULED]:
        order = yield from sort_in_slices(_scheduled_rows(hub.engine, queue.name))
        shown = _existing_jobs(hub.engine, order[offset : offset + limit])
    yield from _write_jobs(hub.engine, shown)


def _scheduled_rows(engine: Engine, queue: str) -> Iterator[Any]:
    for job in jobs_to_examine(engine.tables.scheduled, engine.tables.jobs):
        if job is not None and job.queue == queue:
            yield -job.rank, job.due_at, job.seq
        else:
            yield None


def _existing_jobs(engine: Engine, rows: list[Any]) -> list[Job]:
    """Return the jobs of the rows, whose last item is the seq. Jobs removed in the meantime are
    omitted.
    """
    found = [engine.job(row[-1]) for row in rows]
    return [job for job in found if job is not None]


def _page_arguments(engine: Engine, args: list[bytes]) -> tuple[Queue, int, int]:
    name = arguments.parse_name(args[0])
    offset, limit = arguments.parse_cursor_offset(args[1]), arguments.parse_limit(args[2])
    return _queue_of(engine, name), offset, limit


def _queue(hub: WorkqHub, args: list[bytes]) -> Pieces:
    queue = _queue_of(hub.engine, arguments.parse_name(args[0]))
    yield b"+OK 1\r\n" + _lengths(queue)


def _queues(hub: WorkqHub, args: list[bytes]) -> Pieces:
    offset, limit = arguments.parse_cursor_offset(args[0]), arguments.parse_limit(args[1])
    queues = list(hub.engine.tables.queues.values())
    # The order of code points is the order of the names in UTF-8.
    names = yield from sort_in_slices(_registered_names(queues))
    found = [hub.engine.queue(name) for name in names[offset : offset + limit]]
    shown = [queue for queue in found if queue is not None]
    yield b"+OK %d\r\n" % len(shown) + b"".join(map(_lengths, shown))


def _registered_names(queues: list[Queue]) -> Iterator[str | None]:
    for queue in queues:
        yield queue.name if queue.registered else None


def _server(hub: WorkqHub, _: list[bytes]) -> Pieces:
    yield b"+OK 1\r\nserver 3\r\nactive-clients %d\r\nevicted-jobs %d\r\nstarted %b\r\n" % (
        len(hub.connections),
        hub.engine.timer_counts.evicted,
        arguments.format_second(hub.started_at),
    )


_OBJECTS: Final[dict[bytes, tuple[int, Callable[[WorkqHub, list[bytes]], Pieces]]]] = {
    b"job": (1, _job),
    b"jobs": (3, _jobs),
    b"scheduled-jobs": (3, _scheduled_jobs),
    b"queue": (1, _queue),
    b"queues": (2, _queues),
    b"server": (0, _server),
}


def _queue_of(engine: Engine, name: str) -> Queue:
    queue = engine.queue(name)
    if queue is None or not queue.registered:
        raise UnknownObject
    return queue


def _lengths(queue: Queue) -> bytes:
    return b"%b 2\r\nready-len %d\r\nscheduled-len %d\r\n" % (
        arguments.write_name(queue.name),
        queue.counts[READY],
        queue.counts[SCHEDULED],
    )


def _write_jobs(engine: Engine, shown: list[Job]) -> Pieces:
    """Write the jobs. The store deletes the payload of a removed job, so payloads in the store are
    read before the number of jobs is sent, up to MAX_HELD_BYTES. Removed jobs are omitted.
    """
    held: list[bytes] = []
    count = size = 0
    left = deque(shown)
    while left and size < MAX_HELD_BYTES and any(job.stored_size for job in left):
        job = left.popleft()
        for _ in read_ahead(engine, job):
            yield None
        parts = _parts_of(engine, job)
        held += parts
        count += bool(parts)
        before, size = size, size + sum(map(len, parts))
        if size // PIECE_BYTES > before // PIECE_BYTES:
            yield None
    rest = [job for job in left if not _is_lost(engine, job)]
    head = b"+OK %d\r\n" % (count + len(rest))
    yield from _join(head, _all_parts(engine, held, rest))


def _all_parts(engine: Engine, held: list[bytes], rest: list[Job]) -> Pieces:
    """The held parts, then those of the remaining jobs. Raise UnknownObject if a payload is lost,
    because the number of jobs has already been sent.
    """
    yield from drain(held)
    for job in rest:
        for _ in read_ahead(engine, job):
            yield None
        parts = _parts_of(engine, job)
        if not parts:
            raise UnknownObject
        yield from parts


def _parts_of(engine: Engine, job: Job) -> list[bytes]:
    """The text of a job, in three parts if it is large. Empty if it is lost."""
    lost = _is_lost(engine, job)
    payload = b"" if lost else engine.payload(job)
    release_payload(engine, job)
    if lost:
        return []
    before, after = jobs.inspect_parts(job, len(payload))
    if len(payload) > MAX_JOINED_BYTES:  # only another protocol can push such a payload
        return [before, payload, after]
    return [before + payload + after]


def _is_lost(engine: Engine, job: Job) -> bool:
    """Whether the job was removed and its payload with it."""
    return job.stored_size > 0 and engine.job(job.seq) is None


def _join(piece: bytes, parts: Iterable[bytes | None]) -> Pieces:
    """Join parts into pieces, except large ones."""
    for part in parts:
        if part is None:
            yield None
        elif len(part) > MAX_JOINED_BYTES:
            yield piece
            yield part
            piece = b""
        else:
            piece += part
        if len(piece) > PIECE_BYTES:
            yield piece
            piece = b""
    if piece:
        yield piece
