"""Actions on several jobs: they run on their own and can be observed and stopped."""

from typing import Any, Final

from millrace.admin.errors import AdminError
from millrace.admin.query_language import is_all
from millrace.records import (
    ActionBody,
    ActionPage,
    ActionRequest,
    ActionStatus,
    JobFilter,
)
from millrace.web.doors import Refusal, Visit
from millrace.web.long_actions import Task

from .endpoints import Reply
from .jobs import job_filter

#: Seconds to wait for an action to end before the reply is 202.
SYNC_WAIT: Final = 0.5
_MICROSECONDS: Final = 1_000_000
MAX_DIGITS: Final = 19


async def begin_action(visit: Visit, body: ActionBody) -> Reply[ActionStatus]:
    named = body.jobs or body.numbers
    given = (body.jobs, body.numbers, body.query is not None, body.q)
    if sum(map(bool, given)) != 1:
        raise Refusal(400, "Give exactly one of `jobs`, `numbers`, `query` and `q`.")
    if body.all and named:
        raise Refusal(400, "`all` cannot be combined with `jobs` or `numbers`.")
    query = None if named else _filter(body)
    if body.action == "move" and not body.queue:
        raise Refusal(400, "The action `move` requires `queue`.")
    if body.action in {"tag", "untag"} and not body.tags:
        raise Refusal(400, f"The action `{body.action}` requires `tags`.")
    request = ActionRequest(
        action=body.action,
        jobs=body.jobs,
        seqs=body.numbers,
        query=query,
        queue=body.queue,
        priority=body.priority,
        tags=body.tags,
        blockers=body.waits_for,
        by=visit.by,
    )
    return await started(visit, _title(body), act=request)


async def actions(visit: Visit) -> ActionPage:
    known = list(visit.room.tasks.known.values())
    return ActionPage([_status(task) for task in reversed(known)])


async def action(visit: Visit) -> ActionStatus:
    return _status(_find(visit))


async def stop_action(visit: Visit) -> ActionStatus:
    task = _find(visit)
    visit.room.tasks.stop(task)
    await visit.room.tasks.wait(task, SYNC_WAIT)
    return _status(task)


async def started(visit: Visit, title: str, **request: Any) -> Reply[ActionStatus]:
    """Start an action; the reply is 202 if it has not ended shortly after."""
    tasks = visit.room.tasks
    task = tasks.begin(title, visit.by, **request)
    await tasks.wait(task, SYNC_WAIT)
    if task.code is not None and not task.progress.done:
        raise AdminError(task.error, task.code)
    if task.ended:
        return Reply(_status(task), 200)
    address = visit.url(f"/api/v1/actions/{task.number}")
    return Reply(_status(task), 202, {"Location": address})


def _filter(body: ActionBody) -> JobFilter:
    """The filter. Every job only if `all` confirms it: an empty search may be a mistake."""
    query = job_filter(body.q, body.query)
    if is_all(query) and not (body.all and body.query is not None):
        raise Refusal(
            400, 'This matches every job. To confirm, send `"query": {}` and `"all": true`.'
        )
    if body.all and not is_all(query):
        raise Refusal(400, "`all` requires `query` to be {}.")
    return query


def _find(visit: Visit) -> Task:
    number = visit.path("number")
    is_number = number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS
    task = visit.room.tasks.known.get(int(number)) if is_number else None
    if task is None:
        raise Refusal(404, f"Action {number} not found. Only the newest actions are retained.")
    return task


def _title(body: ActionBody) -> str:
    named = body.jobs or body.numbers
    if named:
        which = f"{len(named)} jobs" if len(named) > 1 else f"job {named[0]}"
    elif body.q:
        which = f"jobs that match {body.q}"
    else:
        which = "all jobs" if body.all else "jobs that match a filter"
    return f"{body.action.capitalize()} {which}"


def _status(task: Task) -> ActionStatus:
    progress = task.progress
    return ActionStatus(
        number=task.number,
        title=task.title,
        by=task.by,
        state=task.state,
        began_at=int(task.began * _MICROSECONDS),
        ended_at=int(task.ended * _MICROSECONDS),
        done=progress.done,
        refused=progress.refused_count or len(progress.refused),
        refusals=progress.refused,
        looked=progress.looked,
        of=progress.of,
        error=task.error,
    )
