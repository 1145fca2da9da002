"""What people do to queues, workers, recurring jobs and settings, and to everything at once."""

from collections.abc import Iterator
from typing import Final

from millrace.engine.job import QLESS, Job
from millrace.engine.queues import Queue
from millrace.engine.workers import QUIET, TERMINATE
from millrace.protocols.qless import recurring
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.state import Qless, Recurring
from millrace.records import (
    MAX_OPTION_NAME,
    MAX_OPTION_VALUE,
    BulkProgress,
    Flush,
    Ok,
    QueueAction,
    RecurringAction,
    RunPipeline,
    SetQlessOption,
    WorkerAction,
)

from .actions import remove
from .answering import Answering, Telling
from .bulk import (
    ACTION_SLICE_SIZE,
    PROGRESS_INTERVAL,
    check_priority,
    check_queue,
    check_tags,
    go_on,
    quoted,
)
from .errors import AdminError, NotFound, require_writable
from .service import AdminService

#: Jobs that came while a queue is cleared stay. So many of them may be ahead of the others.
MAX_NEWER_JOBS: Final = 200

# Queues


def act_on_queue(hub: AdminService, asked: QueueAction, now: int) -> Iterator[BulkProgress | None]:
    engine = hub.engine
    require_writable(engine)
    queue = engine.queues.get(asked.name)
    if queue is None or not (queue.known or any(queue.counts)):
        raise NotFound(f"there is no queue {quoted(asked.name)}")
    number = hub.audit.add(now, asked.by, f"{asked.action} queue", asked.name)
    if asked.action in {"pause", "resume"}:
        engine.open_queue(asked.name)
        engine.pause(asked.name, paused=asked.action == "pause", now=now)
        yield BulkProgress(1, [])
    else:
        yield from _clear(hub, queue, asked, number)


def _clear(
    hub: AdminService, queue: Queue, asked: QueueAction, number: int
) -> Iterator[BulkProgress | None]:
    """Remove the jobs that are ready now, some at a time, and at last the queue."""
    engine = hub.engine
    undone, last = engine.reverts, (engine.next_seq, engine.clock)
    acted = BulkProgress(0, [], of=len(queue.ready), over=False)
    told = 0
    try:
        while gone := _remove_some(hub, queue, last, min(ACTION_SLICE_SIZE, acted.of - acted.done)):
            acted.done = acted.looked = acted.done + gone
            tell = acted.done - told >= PROGRESS_INTERVAL
            told = acted.done if tell else told
            yield acted if tell else None
            go_on(engine, undone, acted)
            if engine.queues.get(asked.name) is not queue:
                break
        if asked.action == "remove":
            _forget(hub, queue, hub.now)
    finally:
        if not engine.halted and engine.reverts == undone:
            hub.audit.count(number, acted.done)
    acted.looked, acted.over = acted.of, True
    yield acted


def _remove_some(hub: AdminService, queue: Queue, last: tuple[int, int], most: int) -> int:
    """Remove so many of the first ready jobs that were ready before; how many were they?"""
    ready, (next_seq, clock) = queue.ready, last
    taken: list[Job] = []
    newer: list[Job] = []
    while len(taken) < most and len(newer) < MAX_NEWER_JOBS and (job := ready.pop()) is not None:
        came_later = job.seq >= next_seq or (job.origin != QLESS and job.ready_at > clock)
        (newer if came_later else taken).append(job)
    for job in (*taken, *newer):
        ready.add(job)
    for job in taken:
        remove(hub, job, hub.now)
    return len(taken)


def _forget(hub: AdminService, queue: Queue, now: int) -> None:
    """Away with the name and the pause. Jobs that have come meanwhile, or are elsewhere, stay."""
    if hub.engine.queues.get(queue.name) is not queue:
        return
    if len(queue.ready):
        hub.engine.pause(queue.name, paused=False, now=now)
        return
    hub.engine.remove_queue(queue.name, now)
    qless = hub.qless
    if qless is not None:
        qless.unsee(queue.name)


# Workers


def act_on_worker(hub: AdminService, asked: WorkerAction, now: int) -> Ok:
    require_writable(hub.engine)
    faktory = hub.faktory
    if faktory is None:
        raise NotFound("Faktory's port is off, so there are no workers of it")
    if asked.wid == "all":
        workers = faktory.workers.connected()
        if not workers:
            raise NotFound("no worker of Faktory is connected: nobody was told")
    else:
        worker = faktory.workers.known.get(asked.wid)
        if worker is None or not worker.connections:
            raise NotFound(f"no worker {quoted(asked.wid)} is connected")
        workers = [worker]
    hub.audit.add(now, asked.by, f"{asked.action} worker", asked.wid)
    for worker in workers:
        faktory.advance(worker, QUIET if asked.action == "quiet" else TERMINATE)
    return Ok()


# Of Qless


def act_on_recurring(hub: AdminService, asked: RecurringAction, now: int) -> Ok:
    require_writable(hub.engine)
    qless = _need_qless(hub)
    known = qless.recurring.get(asked.jid)
    if known is None:
        raise NotFound(f"there is no recurring job {quoted(asked.jid)}")
    _change(qless, known, asked, now + hub.engine.theirs)
    hub.audit.add(now, asked.by, f"{asked.action} recurring", asked.jid)
    return Ok()


def _change(qless: Qless, known: Recurring, asked: RecurringAction, now: int) -> None:
    jid, tags = known.jid.encode(), [tag.encode() for tag in asked.tags]
    match asked.action:
        case "cancel":
            qless.unkeep(known.jid)
        case "move":
            check_queue(asked.queue)
            recurring.update(qless, now, [jid, b"queue", asked.queue.encode()])
        case "priority":
            check_priority(asked.priority)
            known.priority = asked.priority
            qless.keep(known)
        case "tag":
            check_tags(asked.tags)
            recurring.tag(qless, now, [jid, *tags])
        case "untag":
            recurring.untag(qless, now, [jid, *tags])


def set_qless(hub: AdminService, asked: SetQlessOption, now: int) -> Ok:
    require_writable(hub.engine)
    qless, option, value = _need_qless(hub), asked.option, asked.value
    if not 0 < len(option) <= MAX_OPTION_NAME or len(value or "") > MAX_OPTION_VALUE:
        raise AdminError(
            f"A setting needs a name of 1 to {MAX_OPTION_NAME} characters and a value of up to "
            f"{MAX_OPTION_VALUE} characters."
        )
    if value is None:
        qless.log({"event": "config_unset", "option": option})
    else:
        qless.log({"option": option, "event": "config_set", "value": value})
    qless.set_config(option, value)
    shown = option if value is None else f"{option} = {value}"
    hub.audit.add(now, asked.by, "unset Qless" if value is None else "set Qless", shown)
    return Ok()


def _need_qless(hub: AdminService) -> Qless:
    qless = hub.qless
    if qless is None:
        raise NotFound("that is of Qless, and its port is off")
    return qless


# Everything


def run_pipeline(hub: AdminService, asked: RunPipeline, now: int) -> Ok:
    require_writable(hub.engine)
    if hub.host is None:
        raise AdminError("there is nobody here who can run it", "unavailable")
    reason = hub.host.run_pipeline()
    if reason:
        raise AdminError(reason, "conflict")
    hub.audit.add(now, asked.by, "run pipeline", "")
    return Ok()


def flush(hub: AdminService, asked: Flush, now: int) -> Ok:
    require_writable(hub.engine)
    count = len(hub.engine.jobs)
    qless_hub = next((each for each in hub.hubs if isinstance(each, QlessHub)), None)
    if qless_hub is None:
        hub.engine.flush(now)
    else:
        qless_hub.flush_server(now)
    hub.audit.add(now, asked.by, "flush", "everything", count)
    return Ok()


ANSWERS: Final[dict[str, Answering]] = {
    "act_on_worker": act_on_worker,
    "act_on_recurring": act_on_recurring,
    "set_qless": set_qless,
    "run_pipeline": run_pipeline,
    "flush": flush,
}
LONG: Final[dict[str, Telling]] = {"act_on_queue": act_on_queue}
