"""Progress and cancellation of long actions."""

from collections.abc import Callable
from typing import Any, Final

from starlette.responses import Response

from millrace.records import JOB_ACTIONS, ActionRequest, BulkProgress
from millrace.web.context import RequestContext
from millrace.web.errors import HttpError
from millrace.web.long_actions import SYNC_WAIT, BulkAction
from millrace.web.render import clean_text, count, page
from millrace.web.routing import PageRoute, form_route
from millrace.web.urls import own_path


async def run_action(
    context: RequestContext, act: ActionRequest, title: str, back: str
) -> Response:
    """Perform an action on jobs, and redirect to `back`."""
    act.by = context.by
    return await run(
        context, title, lambda task: told(act, task.progress, task.number), back, act=act
    )


async def run(
    context: RequestContext,
    title: str,
    notice: Callable[[BulkAction], str],
    back: str,
    **request: Any,
) -> Response:
    """Run an action. Redirect to `back`, or to the action's page if it takes long."""
    task = await context.app_state.tasks.run(title, context.by, **request)
    if not task.ended:
        return context.redirect(f"/tasks/{task.number}")
    if task.error:
        raise HttpError(409, task.error)
    return context.redirect(own_path(back), notice(task))


def told(act: ActionRequest, progress: BulkProgress, number: int) -> str:
    """Describe the result: `3 jobs were deleted. 1 was not: a1: REASON`."""
    verb = "was" if progress.done <= 1 else "were"
    text = f"{_jobs(progress.done)} {verb} {JOB_ACTIONS[act.action].past}."
    if not progress.skipped_count and not progress.skipped:
        return text
    refused = max(progress.skipped_count, len(progress.skipped))
    text += f" {count(refused)} {'was' if refused == 1 else 'were'} not"
    if progress.skipped:
        first = progress.skipped[0]
        text += f": {clean_text(first.job, 60)}: {clean_text(first.reason, 200)}"
    return text + (f" (action {number} lists more)" if refused > 1 else "")


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{count(number)} jobs" if number else "No job"


async def tasks(context: RequestContext) -> Response:
    known = list(reversed(context.app_state.tasks.known.values()))
    return page(context, "tasks.html", tasks=known)


async def task(context: RequestContext) -> Response:
    return page(context, "task.html", task=context.app_state.tasks.find(context.path("number")))


async def stop(context: RequestContext) -> Response:
    found = context.app_state.tasks.find(context.path("number"))
    there = f"/tasks/{found.number}"
    if found.ended:
        return context.redirect(there, "The action had already finished.")
    context.app_state.tasks.stop(found)
    await context.app_state.tasks.wait(found, SYNC_WAIT)
    return context.redirect(there, "Stopped the action. Completed changes remain.")


ROUTES: Final = [
    PageRoute("/tasks", tasks, "running and recent bulk actions"),
    PageRoute("/tasks/{number}", task, "one bulk action and its progress"),
    form_route("/tasks/{number}/stop", stop, "stop a bulk action"),
]
