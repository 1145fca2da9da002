"""What is done to many jobs: it is begun, goes on by itself, and can be watched and stopped."""

from typing import Any, Final

from millrace import records as messages
from millrace.admin.errors import AdminError
from millrace.admin.query_language import is_all
from millrace.web.doors import Refusal, Visit
from millrace.web.tasks import Task

from . import shapes
from .asked import NewAction
from .endpoints import Reply
from .jobs import meant

#: What is over within so many seconds is answered at once.
SOON: Final = 0.5


async def begin_action(visit: Visit, body: NewAction) -> Reply[shapes.Action]:
    named = body.jobs or body.numbers
    given = (body.jobs, body.numbers, body.query is not None, body.q)
    if sum(map(bool, given)) != 1:
        raise Refusal(400, "which jobs? Give one of `jobs`, `numbers`, `query` and `q`")
    if body.all and named:
        raise Refusal(400, "all jobs, or those that are named?")
    query = None if named else _query(body)
    if body.action == "move" and not body.queue:
        raise Refusal(400, "where to? Give a `queue`")
    if body.action in {"tag", "untag"} and not body.tags:
        raise Refusal(400, "which? Give `tags`")
    request = messages.ActionRequest(
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
    return await begun(visit, _title(body), act=request)


async def actions(visit: Visit) -> shapes.ActionList:
    known = list(visit.room.tasks.known.values())
    return shapes.ActionList([_action(task) for task in reversed(known)])


async def action(visit: Visit) -> shapes.Action:
    return _action(_found(visit))


async def stop_action(visit: Visit) -> shapes.Action:
    task = _found(visit)
    visit.room.tasks.stop(task)
    await visit.room.tasks.wait(task, SOON)
    return _action(task)


async def begun(visit: Visit, title: str, **request: Any) -> Reply[shapes.Action]:
    """Begin it; if that takes no time, it is over in the answer."""
    tasks = visit.room.tasks
    task = tasks.begin(title, visit.by, **request)
    await tasks.wait(task, SOON)
    if task.code is not None and not task.progress.done:
        raise AdminError(task.error, task.code)
    if task.ended:
        return Reply(_action(task), 200)
    address = visit.url(f"/api/v1/actions/{task.number}")
    return Reply(_action(task), 202, {"Location": address})


def _query(body: NewAction) -> messages.JobFilter:
    """Every job there is, only if that is said: a search that came out empty means none."""
    query = meant(body.q, body.query)
    if is_all(query) and not (body.all and body.query is not None):
        raise Refusal(
            400, "which jobs? That means every one: if so, give `query` as {} and `all` as true"
        )
    if body.all and not is_all(query):
        raise Refusal(400, "all jobs, or those of a search? With `all`, `query` is {}")
    return query


def _found(visit: Visit) -> Task:
    number = visit.path("number")
    known = visit.room.tasks.known
    task = (
        known.get(int(number))
        if number.isascii() and number.isdigit() and len(number) < 20
        else None
    )
    if task is None:
        raise Refusal(404, f"there is no action {number}, or it is long over")
    return task


def _title(body: NewAction) -> str:
    named = body.jobs or body.numbers
    if named:
        which = f"{len(named)} jobs" if len(named) > 1 else f"the job {named[0]}"
    elif body.q:
        which = f"jobs that match {body.q}"
    else:
        which = "all jobs" if body.all else "jobs of a query"
    return f"{body.action} {which}"


def _action(task: Task) -> shapes.Action:
    told = task.progress
    return shapes.Action(
        number=task.number,
        title=task.title,
        by=task.by,
        state=task.state,  # type: ignore[arg-type]
        began_at=shapes.moment(int(task.began * shapes.SECOND)),
        ended_at=shapes.moment(int(task.ended * shapes.SECOND)),
        done=told.done,
        refused=told.refused_count or len(told.refused),
        refusals=[shapes.NotDone(each.job, each.reason) for each in told.refused],
        looked=told.looked,
        of=told.of,
        error=task.error,
    )
