"""The inspect commands: jobs, queues and the server."""

from collections.abc import Callable, Iterator
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.queues import Queue
from millrace.engine.states import READY, SCHEDULED
from millrace.protocols.errors import ClientError
from millrace.protocols.payload_reads import forget, read_ahead

from . import arguments, jobs
from .hub import WorkqHub

#: Longer replies are sent in pieces of about this size.
PIECE_BYTES: Final = 65_536
_NAME: Final = attrgetter("name")


class UnknownObject(Exception):
    """The job or queue does not exist."""


def inspect_object(hub: WorkqHub, args: list[bytes], *, flagged: bool) -> Iterator[bytes]:
    """The reply in pieces, because a hundred jobs can take a hundred megabytes."""
    if not args:
        raise ClientError(arguments.INVALID_ARGS)
    known = _OBJECTS.get(args[0])
    if known is None:
        raise ClientError(arguments.UNKNOWN_COMMAND)
    count, show = known
    if len(args) != count + 1 or flagged:
        raise ClientError(arguments.INVALID_ARGS)
    return show(hub, args[1:])


def _job(hub: WorkqHub, args: list[bytes]) -> Iterator[bytes]:
    job = jobs.find(hub.engine, arguments.parse_job_id(args[0]))
    if job is None:
        raise UnknownObject
    return _written(hub.engine, [job])


def _jobs(hub: WorkqHub, args: list[bytes]) -> Iterator[bytes]:
    queue, offset, limit = _span(hub.engine, args)
    return _written(hub.engine, list(islice(queue.ready.first(offset + limit), offset, None)))


def _scheduled_jobs(hub: WorkqHub, args: list[bytes]) -> Iterator[bytes]:
    queue, offset, limit = _span(hub.engine, args)
    if offset >= queue.counts[SCHEDULED]:
        return _written(hub.engine, [])
    mine = _scheduled_in(hub.engine, queue.name)
    first = nsmallest(offset + limit, mine, key=lambda job: (-job.rank, job.due_at, job.seq))
    return _written(hub.engine, first[offset:])


def _scheduled_in(engine: Engine, queue: str) -> Iterator[Job]:
    for job in engine.scheduled.values():
        if job.queue == queue:
            yield job


def _span(engine: Engine, args: list[bytes]) -> tuple[Queue, int, int]:
    name = arguments.parse_name(args[0])
    offset, limit = arguments.parse_cursor_offset(args[1]), arguments.parse_limit(args[2])
    return _queue_of(engine, name), offset, limit


def _queue(hub: WorkqHub, args: list[bytes]) -> Iterator[bytes]:
    queue = _queue_of(hub.engine, arguments.parse_name(args[0]))
    yield b"+OK 1\r\n" + _lengths(queue)


def _queues(hub: WorkqHub, args: list[bytes]) -> Iterator[bytes]:
    offset, limit = arguments.parse_cursor_offset(args[0]), arguments.parse_limit(args[1])
    # The order of code points is the order of the names in UTF-8.
    known = sorted(filter(attrgetter("registered"), hub.engine.queues.values()), key=_NAME)
    shown = known[offset : offset + limit]
    yield b"+OK %d\r\n" % len(shown) + b"".join(map(_lengths, shown))


def _server(hub: WorkqHub, _: list[bytes]) -> Iterator[bytes]:
    yield b"+OK 1\r\nserver 3\r\nactive-clients %d\r\nevicted-jobs %d\r\nstarted %b\r\n" % (
        len(hub.connections),
        hub.engine.timer_counts.evicted,
        arguments.whole_second(hub.started_at),
    )


_OBJECTS: Final[dict[bytes, tuple[int, Callable[[WorkqHub, list[bytes]], Iterator[bytes]]]]] = {
    b"job": (1, _job),
    b"jobs": (3, _jobs),
    b"scheduled-jobs": (3, _scheduled_jobs),
    b"queue": (1, _queue),
    b"queues": (2, _queues),
    b"server": (0, _server),
}


def _queue_of(engine: Engine, name: str) -> Queue:
    queue = engine.queues.get(name)
    if queue is None or not queue.registered:
        raise UnknownObject
    return queue


def _lengths(queue: Queue) -> bytes:
    return b"%b 2\r\nready-len %d\r\nscheduled-len %d\r\n" % (
        arguments.write_name(queue.name),
        queue.counts[READY],
        queue.counts[SCHEDULED],
    )


def _written(engine: Engine, shown: list[Job]) -> Iterator[bytes]:
    piece = b"+OK %d\r\n" % len(shown)
    for job in shown:
        for _ in read_ahead(engine, job):
            yield b""
        piece += jobs.described(job, engine.payload(job))
        forget(engine, job)
        if len(piece) > PIECE_BYTES:
            yield piece
            piece = b""
    if piece:
        yield piece
