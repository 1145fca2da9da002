"""MILLRACE: bulk loads and reads, and the commands that a plain Faktory server does not have."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from millrace.engine.errors import QueueRefused
from millrace.engine.job import SECOND, Job, payload_size
from millrace.engine.waiters import Waiter
from millrace.protocols.errors import ClientError, StoreUnavailable
from millrace.protocols.registry import FAKTORY

from . import bulk as bulk_requests
from . import extensions
from .hub import FETCH_WAIT
from .replies import (
    encode_bulk,
    error_reply,
    require_argument,
)

if TYPE_CHECKING:
    from .connection import FaktoryConnection

#: Number of jobs that are acknowledged in one slice.
ACK_BATCH_SIZE: Final = 100


def millrace(connection: "FaktoryConnection", argument: bytes | None, now: int) -> None:
    """MILLRACE: the extension requests that bulk.py lists."""
    line = require_argument(argument)
    request = bulk_requests.parse(line)
    if connection.hub.rule is not None and request.read is None:
        raise QueueRefused(
            "MILLRACE is not allowed on this port, except read: it has a rule for queues"
        )
    if connection.engine.unavailable_reason and request.changes:
        raise StoreUnavailable(connection.engine.unavailable_reason)
    if connection.engine.push_refusal_reason and request.stage is not None:
        raise StoreUnavailable(connection.engine.push_refusal_reason)
    if request.result is not None:
        _result(connection, request.result, now)
    elif request.fetch is not None:
        _fetch_bulk(connection, request.fetch, now)
    elif request.ack is not None:
        connection.begin_long_command(
            _acknowledge_in_slices(connection, request.ack, now), len(line)
        )
    else:
        connection.begin_long_command(_execute_bulk_request(connection, request, now), len(line))


def _fetch_bulk(
    connection: "FaktoryConnection", request: "extensions.FetchRequest", now: int
) -> None:
    """Lease up to `count` jobs; without a ready job, wait for one as FETCH does."""
    worker, engine = connection.worker, connection.engine
    holder = "" if worker is None else worker.wid
    queues = tuple(dict.fromkeys(request.queues))
    if (worker is not None and worker.state) or connection.hub.stopping:
        queues = ()
    jobs: list[Job] = []
    size = 0
    while len(jobs) < request.count and size < extensions.FETCH_BYTES_LIMIT:
        job = engine.lease(queues, holder, FAKTORY, now)
        if job is None:
            break
        jobs.append(job)
        size += payload_size(job)
    if jobs:
        connection.deliver_bulk(jobs)
        return
    connection.is_bulk_fetch = True
    connection.waiter = Waiter(queues, holder, FAKTORY, connection)
    engine.add_waiter(connection.waiter, now + FETCH_WAIT)


def _acknowledge_in_slices(
    connection: "FaktoryConnection", acks: "list[extensions.Acknowledgement]", now: int
) -> Iterator[None]:
    """Complete several jobs in slices. As with ACK, unknown jobs are not an error."""
    engine = connection.engine
    reverts, done = engine.revert_count, 0
    try:
        results = [extensions.result_of_ack(ack.result) for ack in acks]
        for number, (ack, result) in enumerate(zip(acks, results, strict=True), 1):
            job = connection.find_leased_job(ack.jid, now)
            if job is not None:
                engine.complete(job, now, FAKTORY, result=result)
                done += 1
            if number % ACK_BATCH_SIZE == 0:
                yield
                connection.check_not_reverted(reverts)
    except ClientError as problem:
        connection.caller.wait()
        connection.reply_error(error_reply(str(problem)))
        return
    connection.caller.wait()
    connection.reply(encode_bulk(b'{"acknowledged":%d}' % done))


def _result(connection: "FaktoryConnection", request: "extensions.ResultRequest", now: int) -> None:
    """Reply with the state of a job, at once or when it ends."""
    job = extensions.newest_job(connection.engine, request.jid)
    if job is None or not request.wait or extensions.has_ended(job) or connection.hub.stopping:
        connection.caller.wait()
        connection.reply(encode_bulk(extensions.describe_job(request.jid, job)))
        return
    connection.awaited_id = request.jid
    connection.waiter = Waiter((), "", FAKTORY, connection)
    connection.waiter.reports_removal = True
    connection.engine.add_waiter(connection.waiter, now + round(request.wait * SECOND), job)


def _execute_bulk_request(
    connection: "FaktoryConnection", request: "bulk_requests.BulkRequest", now: int
) -> Iterator[None]:
    engine = connection.engine
    check_store = partial(connection.check_not_reverted, engine.revert_count)
    try:
        body = yield from bulk_requests.execute_bulk(
            engine, request, connection.hub.read_cursors, connection, check_store, now
        )
    except ClientError as problem:
        connection.caller.wait()
        connection.reply_error(error_reply(str(problem)))
        return
    connection.caller.wait()
    connection.reply(encode_bulk(body))
