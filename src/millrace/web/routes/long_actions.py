"""Progress and cancellation of long actions."""

from typing import Final

from starlette.responses import Response

from millrace.records import ActionRequest, BulkProgress
from millrace.web.doors import Door, Refusal, Visit
from millrace.web.long_actions import Task
from millrace.web.render import count, page, shown
from millrace.web.urls import own_path

#: Seconds to wait for an action. If it takes longer, the response redirects to its own page.
AT_ONCE: Final = 0.5
#: Maximum digits of an action's number. Python rejects very long numbers.
LONGEST_NUMBER: Final = 18

#: Past participles of the actions, for messages.
_DONE: Final = {
    "retry": "made ready",
    "kill": "killed",
    "cancel": "cancelled",
    "delete": "deleted",
    "move": "moved",
    "priority": "given a new priority",
    "tag": "tagged",
    "untag": "untagged",
    "track": "tracked",
    "untrack": "untracked",
    "undepend": "freed",
    "timeout": "timed out",
}


async def carry_out(visit: Visit, act: ActionRequest, title: str, back: str) -> Response:
    """Perform an action on jobs. Redirect to `back`, or to the action's page if it takes long."""
    act.by = visit.by
    tasks = visit.room.tasks
    task = tasks.begin(title, visit.by, act=act)
    await tasks.wait(task, AT_ONCE)
    if not task.ended:
        return visit.back(f"/tasks/{task.number}")
    if task.error:
        raise Refusal(409, task.error)
    return visit.back(own_path(back), told(act, task.progress, task.number))


def told(act: ActionRequest, progress: BulkProgress, number: int) -> str:
    """Describe the result: `3 jobs were deleted. 1 was not: a1: REASON`."""
    verb = "was" if progress.done <= 1 else "were"
    text = f"{_jobs(progress.done)} {verb} {_DONE[act.action]}."
    if not progress.refused_count and not progress.refused:
        return text
    refused = max(progress.refused_count, len(progress.refused))
    text += f" {count(refused)} {'was' if refused == 1 else 'were'} not"
    if progress.refused:
        first = progress.refused[0]
        text += f": {shown(first.job, 60)}: {shown(first.reason, 200)}"
    return text + (f" (action {number} lists more)" if refused > 1 else "")


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{count(number)} jobs" if number else "No job"


async def tasks(visit: Visit) -> Response:
    known = list(reversed(visit.room.tasks.known.values()))
    return page(visit, "tasks.html", tasks=known)


async def task(visit: Visit) -> Response:
    return page(visit, "task.html", task=_task(visit))


async def stop(visit: Visit) -> Response:
    found = _task(visit)
    there = f"/tasks/{found.number}"
    if found.ended:
        return visit.back(there, "The action had already finished.")
    visit.room.tasks.stop(found)
    await visit.room.tasks.wait(found, AT_ONCE)
    return visit.back(there, "Stopped the action. Completed changes remain.")


def _task(visit: Visit) -> Task:
    number = visit.path("number")
    is_one = number.isascii() and number.isdigit() and len(number) <= LONGEST_NUMBER
    found = visit.room.tasks.known.get(int(number)) if is_one else None
    if found is None:
        raise Refusal(404, "Action not found. Only the newest actions are kept.")
    return found


DOORS: Final = [
    Door("/tasks", tasks, role="read"),
    Door("/tasks/{number}", task, role="read"),
    Door("/tasks/{number}/stop", stop, role="operate", methods=("POST",)),
]
