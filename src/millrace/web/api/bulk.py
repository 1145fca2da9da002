"""Actions on several jobs: they run on their own and can be observed and stopped."""

from typing import Any, Final

from millrace.admin.errors import AdminError
from millrace.admin.query_language import is_all
from millrace.records import (
    JOB_ACTIONS,
    ActionBody,
    ActionPage,
    ActionRequest,
    ActionStatus,
    JobFilter,
)
from millrace.web.context import RequestContext
from millrace.web.errors import HttpError
from millrace.web.long_actions import SYNC_WAIT, BulkAction

from .endpoints import ApiReply
from .jobs import job_filter

_MICROSECONDS: Final = 1_000_000


async def begin_action(context: RequestContext, body: ActionBody) -> ApiReply[ActionStatus]:
    named = body.jobs or body.numbers
    given = (body.jobs, body.numbers, body.query is not None, body.q)
    if sum(map(bool, given)) != 1:
        raise HttpError(400, "Give exactly one of `jobs`, `numbers`, `query` and `q`.")
    if body.all and named:
        raise HttpError(400, "`all` cannot be combined with `jobs` or `numbers`.")
    query = None if named else _filter(body)
    argument = JOB_ACTIONS[body.action].argument
    if argument in {"queue", "tags"} and not getattr(body, argument):
        raise HttpError(400, f"The action `{body.action}` requires `{argument}`.")
    request = ActionRequest(
        action=body.action,
        jobs=body.jobs,
        seqs=body.numbers,
        query=query,
        queue=body.queue,
        priority=body.priority,
        tags=body.tags,
        waits_for=body.waits_for,
        by=context.by,
    )
    return await started(context, _title(body), act=request)


async def actions(context: RequestContext) -> ActionPage:
    known = list(context.app_state.tasks.known.values())
    return ActionPage([_status(task) for task in reversed(known)])


async def action(context: RequestContext) -> ActionStatus:
    return _status(context.app_state.tasks.find(context.path("number")))


async def stop_action(context: RequestContext) -> ActionStatus:
    tasks = context.app_state.tasks
    task = tasks.find(context.path("number"))
    tasks.stop(task)
    await tasks.wait(task, SYNC_WAIT)
    return _status(task)


async def started(context: RequestContext, title: str, **request: Any) -> ApiReply[ActionStatus]:
    """Start an action; the reply is 202 if it has not ended shortly after."""
    task = await context.app_state.tasks.run(title, context.by, **request)
    if task.code is not None and not task.progress.done:
        raise AdminError(task.error, task.code)
    if task.ended:
        return ApiReply(_status(task), 200)
    address = context.url(f"/api/v1/actions/{task.number}")
    return ApiReply(_status(task), 202, {"Location": address})


def _filter(body: ActionBody) -> JobFilter:
    """The filter. Every job only if `all` confirms it: an empty search may be a mistake."""
    query = job_filter(body.q, body.query)
    if is_all(query) and not (body.all and body.query is not None):
        raise HttpError(
            400, 'This matches every job. To confirm, send `"query": {}` and `"all": true`.'
        )
    if body.all and not is_all(query):
        raise HttpError(400, "`all` requires `query` to be {}.")
    return query


def _title(body: ActionBody) -> str:
    named = body.jobs or body.numbers
    if named:
        which = f"{len(named)} jobs" if len(named) > 1 else f"job {named[0]}"
    elif body.q:
        which = f"jobs that match {body.q}"
    else:
        which = "all jobs" if body.all else "jobs that match a filter"
    return JOB_ACTIONS[body.action].describe(which, body)


def _status(task: BulkAction) -> ActionStatus:
    progress = task.progress
    return ActionStatus(
        number=task.number,
        title=task.title,
        by=task.by,
        state=task.state,
        started_at=int(task.began * _MICROSECONDS),
        ended_at=int(task.ended * _MICROSECONDS),
        done=progress.done,
        skipped=progress.skipped_count or len(progress.skipped),
        skipped_jobs=progress.skipped,
        examined=progress.examined,
        total=progress.total,
        error=task.error,
    )
