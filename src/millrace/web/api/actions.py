"""The routes of operator actions, made from the tables in records.actions."""

from typing import Any

from millrace.records import (
    ACTION_BODIES,
    JOB_ACTIONS,
    QUEUE_ACTIONS,
    RECURRING_ACTIONS,
    WORKER_ACTIONS,
    ActionRequest,
    ActionStatus,
    BulkProgress,
    ChangedJobs,
    GetQueue,
    JobFilter,
    JobParameters,
    Ok,
    OperatorAction,
    QueueAction,
    QueueDetail,
    QueueRecord,
    RecurringAction,
    WorkerAction,
)
from millrace.web.context import RequestContext
from millrace.web.errors import HttpError

from .bulk import started
from .endpoints import ApiReply, Endpoint, Handler
from .jobs import microseconds


def _job_route(path: str, action: OperatorAction) -> Endpoint:
    async def handler(context: RequestContext, asked: JobParameters, body: Any) -> ChangedJobs:
        which: dict[str, Any] = (
            {"seqs": [asked.number]} if asked.number else {"jobs": [context.path("id")]}
        )
        request = ActionRequest(action.name, **which, by=context.by, **_argument(action, body))
        progress = await context.ask(BulkProgress, act=request)
        if progress.skipped:
            raise HttpError(409 if progress.total else 404, progress.skipped[0].reason)
        return ChangedJobs(progress.done)

    return _route(path, action, handler)


def _queue_route(path: str, action: OperatorAction) -> Endpoint:
    async def change(context: RequestContext, body: Any) -> QueueRecord:
        name, period = context.path("name"), getattr(body, "keep_results", None)
        retention = -1 if period is None else microseconds(period)
        limit = getattr(body, "limit", None) or 0
        request = QueueAction(name, action.name, context.by, retention, limit)
        await context.ask(dict, act_on_queue=request)
        return (await context.ask(QueueDetail, queue=GetQueue(name))).queue

    async def empty(context: RequestContext) -> ApiReply[ActionStatus]:
        name = context.path("name")
        await context.ask(QueueDetail, queue=GetQueue(name))  # 404 if it does not exist
        request = QueueAction(name, action.name, context.by)
        return await started(context, action.title.format(target=name), act_on_queue=request)

    if action.warning:
        return _route(path, action, empty, statuses=(200, 202))
    return _route(path, action, change)


def failure_route(path: str, name: str, summary: str) -> Endpoint:
    async def handler(context: RequestContext) -> ApiReply[ActionStatus]:
        fingerprint = context.path("fingerprint")
        query = JobFilter(fingerprint=fingerprint, failing=True)
        target = f"jobs of failure group {fingerprint}"
        title = JOB_ACTIONS[name].title.format(target=target)
        return await started(context, title, act=ActionRequest(name, query=query, by=context.by))

    handler.__name__ = f"{name}_failure"
    return change(f"{path}/{name}", handler, summary, (200, 202))


def _worker_route(path: str, action: OperatorAction) -> Endpoint:
    async def handler(context: RequestContext) -> Ok:
        if context.path("protocol") != "faktory":
            raise HttpError(409, "Only Faktory workers accept signals.")
        request = WorkerAction(context.path("wid"), action.name, context.by)
        return await context.ask(Ok, act_on_worker=request)

    return _route(path, action, handler)


def _recurring_route(path: str, action: OperatorAction) -> Endpoint:
    async def handler(context: RequestContext, body: Any) -> Ok:
        argument = _argument(action, body)
        request = RecurringAction(context.path("id"), action.name, by=context.by, **argument)
        return await context.ask(Ok, act_on_recurring=request)

    return _route(path, action, handler)


def _route(
    path: str, action: OperatorAction, handler: Handler, statuses: tuple[int, ...] = (200,)
) -> Endpoint:
    handler.__name__ = action.operation
    if "body" in handler.__annotations__:
        handler.__annotations__["body"] = ACTION_BODIES[action.argument]
    return change(f"{path}/{action.name}", handler, action.effect, statuses)


def change(path: str, handler: Handler, summary: str, statuses: tuple[int, ...]) -> Endpoint:
    return Endpoint(
        "POST", path, handler, "operate", summary, statuses=statuses, refusals=(404, 409)
    )


def _argument(action: OperatorAction, body: Any) -> dict[str, Any]:
    return {action.argument: getattr(body, action.argument)} if action.argument else {}


def job_routes(path: str) -> list[Endpoint]:
    return [_job_route(path, action) for action in JOB_ACTIONS.values()]


def queue_routes(path: str) -> list[Endpoint]:
    return [_queue_route(path, action) for action in QUEUE_ACTIONS.values()]


def worker_routes(path: str) -> list[Endpoint]:
    return [_worker_route(path, action) for action in WORKER_ACTIONS.values()]


def recurring_routes(path: str) -> list[Endpoint]:
    return [_recurring_route(path, action) for action in RECURRING_ACTIONS.values()]
