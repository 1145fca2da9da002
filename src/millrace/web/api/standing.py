"""Failures, workers, what Qless keeps, the pipeline and the server."""

from typing import Any

from millrace import records as messages
from millrace.admin.client import SHIPPED_WITHIN
from millrace.admin.errors import AdminError
from millrace.web.doors import Refusal, Visit

from . import shapes
from .actions import begun
from .asked import (
    AuditAsked,
    FailuresAsked,
    FlushConfirmed,
    GroupAsked,
    Paged,
    QlessSetting,
    TagsAsked,
    ToPriority,
    ToQueue,
    WithTags,
)
from .endpoints import Reply
from .jobs import search

# Failures


async def failures(visit: Visit, asked: FailuresAsked) -> shapes.FailureList:
    found = await visit.ask(messages.FailurePage, failures=messages.PageRequest(most=asked.limit))
    groups = [shapes.FailureGroup.of(group) for group in found.groups]
    return shapes.FailureList(groups, found.count, found.jobs)


async def failure(visit: Visit, asked: GroupAsked) -> shapes.JobList:
    query = messages.JobFilter(fingerprint=visit.path("fingerprint"), failing=True)
    found = await search(visit, query, "newest", asked.limit, asked.cursor)
    if not (found.jobs or found.next or asked.cursor):
        raise Refusal(404, "no job fails of this: there was none, or they are gone meanwhile")
    return found


async def retry_failure(visit: Visit) -> Reply[shapes.Action]:
    return await _act_on_group(visit, "retry")


async def delete_failure(visit: Visit) -> Reply[shapes.Action]:
    return await _act_on_group(visit, "delete")


async def _act_on_group(visit: Visit, action: Any) -> Reply[shapes.Action]:
    fingerprint = visit.path("fingerprint")
    query = messages.JobFilter(fingerprint=fingerprint, failing=True)
    request = messages.ActionRequest(action, query=query, by=visit.by)
    return await begun(visit, f"{action} the failures {fingerprint}", act=request)


# Workers


async def workers(visit: Visit, asked: Paged) -> shapes.WorkerList:
    request = messages.PageRequest(asked.cursor, asked.limit)
    found = await visit.ask(messages.WorkerPage, workers=request)
    rows = [shapes.Worker.of(row) for row in found.workers]
    return shapes.WorkerList(rows, found.count, found.more or None)


async def worker(visit: Visit) -> shapes.Worker:
    protocol, wid = visit.path("protocol"), visit.path("wid")
    request = messages.ListWorkers(most=1, protocol=protocol, wid=wid)
    found = await visit.ask(messages.WorkerPage, workers=request)
    if not found.workers:
        raise Refusal(404, f'no worker "{wid}" is known: it has ended, or holds no job')
    return shapes.Worker.of(found.workers[0])


async def quiet_worker(visit: Visit) -> shapes.Ok:
    return await _signal(visit, "quiet")


async def terminate_worker(visit: Visit) -> shapes.Ok:
    return await _signal(visit, "terminate")


async def _signal(visit: Visit, action: Any) -> shapes.Ok:
    if visit.path("protocol") != "faktory":
        raise Refusal(409, "only workers of Faktory can be told to stop")
    await visit.ask(dict, act_on_worker=messages.WorkerAction(visit.path("wid"), action, visit.by))
    return shapes.Ok()


# What Qless keeps


async def recurring(visit: Visit, asked: Paged) -> shapes.RecurringList:
    request = messages.PageRequest(asked.cursor, asked.limit)
    found = await visit.ask(messages.RecurringPage, recurring=request)
    rows = [shapes.Recurring.of(row) for row in found.recurring]
    return shapes.RecurringList(rows, found.count, found.more or None)


async def cancel_recurring(visit: Visit) -> shapes.Ok:
    return await _arrange(visit, "cancel")


async def move_recurring(visit: Visit, body: ToQueue) -> shapes.Ok:
    return await _arrange(visit, "move", queue=body.queue)


async def change_recurring_priority(visit: Visit, body: ToPriority) -> shapes.Ok:
    return await _arrange(visit, "priority", priority=body.priority)


async def tag_recurring(visit: Visit, body: WithTags) -> shapes.Ok:
    return await _arrange(visit, "tag", tags=body.tags)


async def untag_recurring(visit: Visit, body: WithTags) -> shapes.Ok:
    return await _arrange(visit, "untag", tags=body.tags)


async def _arrange(visit: Visit, action: Any, **more: Any) -> shapes.Ok:
    request = messages.RecurringAction(visit.path("id"), action, by=visit.by, **more)
    await visit.ask(dict, act_on_recurring=request)
    return shapes.Ok()


async def tracked(visit: Visit, asked: Paged) -> shapes.TrackedList:
    request = messages.PageRequest(asked.cursor, asked.limit)
    found = await visit.ask(messages.TrackedPage, tracked=request)
    rows = [
        shapes.Tracked(
            row.jid, shapes.moment(row.since), None if row.job is None else shapes.Job.of(row.job)
        )
        for row in found.tracked
    ]
    return shapes.TrackedList(rows, found.count, found.more or None)


async def tags(visit: Visit, asked: TagsAsked) -> shapes.TagList:
    found = await visit.ask(messages.TagPage, tags=messages.PageRequest(most=asked.limit))
    return shapes.TagList([shapes.Tag(row.tag, row.count) for row in found.tags], found.count)


async def throttles(visit: Visit) -> shapes.ThrottleList:
    found = await visit.ask(messages.LimitPage, throttles=True)
    rows = [
        shapes.Throttle(t.name, t.maximum, shapes.moment(t.expires), t.holders, t.waiting)
        for t in found.throttles
    ]
    return shapes.ThrottleList(rows)


# The server


async def server(visit: Visit) -> shapes.Server:
    found = await visit.ask(messages.ServerStatus, server=True)
    return shapes.Server(
        version=found.version,
        pid=found.pid,
        host=found.host,
        started_at=shapes.moment(found.started_at),
        now=shapes.moment(found.now),
        memory_mb=found.memory_mb,
        durability=found.durability,
        halted=found.halted,
        tls=found.tls,
        sizes=found.sizes,
        store_bytes=found.store_bytes,
        disk_free=found.disk_free,
        disk_size=found.disk_size,
        protocols=[shapes.ProtocolInfo.of(row) for row in found.protocols],
        shipping=await _shipping(visit),
        pipeline=shapes.Pipeline.of(found.pipeline),
    )


async def _shipping(visit: Visit) -> shapes.Shipping | None:
    try:
        return shapes.Shipping.of(await visit.ask(messages.ShippingStatus, journal=True))
    except AdminError as error:
        if error.code != "unavailable":
            raise
        return None  # nothing is kept


async def ship(visit: Visit) -> shapes.Shipping:
    told = await visit.room.control.ask(messages.ShippingStatus, patience=SHIPPED_WITHIN, ship=True)
    await visit.ask(dict, note=messages.AuditNote("ship", by=visit.by))
    return shapes.Shipping.of(told)


async def configuration(visit: Visit) -> shapes.Configuration:
    found = await visit.ask(messages.ServerStatus, server=True)
    settings = [
        shapes.Setting(s.key, s.value, s.source, s.about, s.reloadable) for s in found.settings
    ]
    return shapes.Configuration(found.data, found.lake, settings, found.qless)


async def set_qless(visit: Visit, body: QlessSetting) -> shapes.Ok:
    await visit.ask(dict, set_qless=messages.SetQlessOption(body.option, body.value, visit.by))
    return shapes.Ok()


async def audit(visit: Visit, asked: AuditAsked) -> shapes.AuditList:
    found = await visit.ask(messages.AuditPage, audit=messages.ListAudit(asked.cursor, asked.limit))
    rows = [
        shapes.Audited(a.number, shapes.moment(a.at), a.by, a.action, a.target, a.count)
        for a in found.audit
    ]
    return shapes.AuditList(rows, str(found.more) if found.more else None)


async def pipeline(visit: Visit) -> shapes.Pipeline:
    return shapes.Pipeline.of(await visit.ask(messages.PipelineRun, pipeline=True))


async def run_pipeline(visit: Visit) -> shapes.Pipeline:
    await visit.ask(dict, run_pipeline=messages.RunPipeline(visit.by))
    return await pipeline(visit)


async def flush(visit: Visit, body: FlushConfirmed) -> shapes.Ok:  # noqa: ARG001 - it says so
    await visit.ask(dict, flush=messages.Flush(visit.by))
    return shapes.Ok()
