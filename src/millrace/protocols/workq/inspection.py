"""The inspect commands: jobs, queues and the server."""

from collections.abc import Callable, Iterator
from heapq import nsmallest
from itertools import islice
from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.queues import Queue
from millrace.engine.states import READY, SCHEDULED
from millrace.protocols.errors import ClientError

from . import arguments, jobs
from .hub import WorkqHub

#: Longer replies are sent in pieces of about this size.
AT_ONCE: Final = 65_536


class NotFound(Exception):
    """The job or queue does not exist."""


def answer(hub: WorkqHub, args: list[bytes], *, flagged: bool) -> Iterator[bytes]:
    """The reply in pieces, because a hundred jobs can have a hundred megabytes."""
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
    job = jobs.find(hub.engine, arguments.job_id(args[0]))
    if job is None:
        raise NotFound
    return _written([job])


def _jobs(hub: WorkqHub, args: list[bytes]) -> Iterator[bytes]:
    queue, offset, limit = _span(hub.engine, args)
    return _written(list(islice(queue.ready.first(offset + limit), offset, None)))


def _scheduled_jobs(hub: WorkqHub, args: list[bytes]) -> Iterator[bytes]:
    queue, offset, limit = _span(hub.engine, args)
    if offset >= queue.counts[SCHEDULED]:
        return _written([])
    mine = (job for job in hub.engine.scheduled.values() if job.queue == queue.name)
    first = nsmallest(offset + limit, mine, key=lambda job: (-job.rank, job.due, job.seq))
    return _written(first[offset:])


def _span(engine: Engine, args: list[bytes]) -> tuple[Queue, int, int]:
    name = arguments.name(args[0])
    offset, limit = arguments.cursor_offset(args[1]), arguments.limit(args[2])
    return _queue_of(engine, name), offset, limit


def _queue(hub: WorkqHub, args: list[bytes]) -> Iterator[bytes]:
    queue = _queue_of(hub.engine, arguments.name(args[0]))
    yield b"+OK 1\r\n" + _lengths(queue)


def _queues(hub: WorkqHub, args: list[bytes]) -> Iterator[bytes]:
    offset, limit = arguments.cursor_offset(args[0]), arguments.limit(args[1])
    known = sorted((queue for queue in hub.engine.queues.values() if queue.known), key=_by_name)
    shown = known[offset : offset + limit]
    yield b"+OK %d\r\n" % len(shown) + b"".join(map(_lengths, shown))


def _by_name(queue: Queue) -> bytes:
    return queue.name.encode()


def _server(hub: WorkqHub, _: list[bytes]) -> Iterator[bytes]:
    yield b"+OK 1\r\nserver 3\r\nactive-clients %d\r\nevicted-jobs %d\r\nstarted %b\r\n" % (
        len(hub.connections),
        hub.engine.clocked.evicted,
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
    if queue is None or not queue.known:
        raise NotFound
    return queue


def _lengths(queue: Queue) -> bytes:
    return b"%b 2\r\nready-len %d\r\nscheduled-len %d\r\n" % (
        arguments.shown_name(queue.name),
        queue.counts[READY],
        queue.counts[SCHEDULED],
    )


def _written(shown: list[Job]) -> Iterator[bytes]:
    piece = b"+OK %d\r\n" % len(shown)
    for job in shown:
        piece += jobs.described(job)
        if len(piece) > AT_ONCE:
            yield piece
            piece = b""
    if piece:
        yield piece
