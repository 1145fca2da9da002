"""The pages Recurring, Tracked, Tags and Throttles."""

import time
from typing import Final

from starlette.responses import Response

from millrace.records import (
    ActionRequest,
    BulkProgress,
    LimitPage,
    Ok,
    PageRequest,
    RecurringAction,
    RecurringPage,
    TagPage,
    TrackedJob,
    TrackedPage,
)
from millrace.web.doors import Door, Refusal, Visit
from millrace.web.render import page

from .jobs import tags_in

MOST: Final = 50
#: Maximum number of tracked jobs that the page counts and displays.
MOST_TRACKED: Final = 1000
MOST_TAGS: Final = 500
#: Titles of the tabs, by the state of the tracked jobs.
TABS: Final = {
    "leased": "Running",
    "ready": "Waiting",
    "scheduled": "Scheduled",
    "stalled": "Stalled",
    "done": "Completed",
    "dead": "Dead",
    "blocked": "Blocked",
    "gone": "Gone",
}


async def recurring(visit: Visit) -> Response:
    after = visit.query("after")
    found = await visit.ask(RecurringPage, recurring=PageRequest(after, MOST))
    return page(visit, "recurring.html", found=found, after=after)


async def act_on_recurring(visit: Visit) -> Response:
    form = await visit.form()
    jid, action = form.one("jid"), form.one("action")
    match action:
        case "cancel":
            wanted = RecurringAction(jid, "cancel", by=visit.by)
            said = f"Canceled recurring job {jid}."
        case "move":
            queue = form.one("queue")
            if not queue:
                raise Refusal(400, "Name the target queue.")
            wanted = RecurringAction(jid, "move", queue=queue, by=visit.by)
            said = f"Moved recurring job {jid} to queue {queue}."
        case "priority":
            rank = _number(form.one("priority"))
            wanted = RecurringAction(jid, "priority", priority=rank, by=visit.by)
            said = f"Set the priority of {jid} to {rank:g}."
        case "tag" | "untag":
            wanted = RecurringAction(jid, action, tags=tags_in(form), by=visit.by)
            said = f"Changed the tags of {jid}."
        case _:
            raise Refusal(400, f'"{action}" cannot be done to a recurring job')
    await visit.ask(Ok, act_on_recurring=wanted)
    return visit.back("/recurring", said)


async def tracked(visit: Visit) -> Response:
    found = await visit.ask(TrackedPage, tracked=PageRequest(most=MOST_TRACKED))
    now = time.time_ns() // 1000
    states = [_state(row, now) for row in found.tracked]
    tab = visit.query("state")
    rows = [
        (row, state)
        for row, state in zip(found.tracked, states, strict=True)
        if not tab or state == tab
    ]
    tabs = [(name, title, states.count(name)) for name, title in TABS.items()]
    return page(visit, "tracked.html", rows=rows, tabs=tabs, tab=tab, found=found, titles=TABS)


async def untrack(visit: Visit) -> Response:
    form = await visit.form()
    jobs = form.all("job")
    if not jobs:
        raise Refusal(400, "No jobs selected.")
    done = await visit.ask(
        BulkProgress, act=ActionRequest("untrack", jobs[:MOST_TRACKED], by=visit.by)
    )
    said = f"{done.done} {'job' if done.done == 1 else 'jobs'} untracked."
    if done.refused:
        said += f" {done.refused[0].job}: {done.refused[0].reason}"
    return visit.back("/tracked", said)


async def tags(visit: Visit) -> Response:
    found = await visit.ask(TagPage, tags=PageRequest(most=MOST_TAGS))
    return page(visit, "tags.html", found=found)


async def throttles(visit: Visit) -> Response:
    found = await visit.ask(LimitPage, throttles=True)
    return page(visit, "throttles.html", throttles=found.throttles)


def _state(row: TrackedJob, now: int) -> str:
    if row.job is None:
        return "gone"
    is_late = row.job.state == "leased" and 0 < row.job.deadline < now
    return "stalled" if is_late else row.job.state


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise Refusal(400, f'"{text}" is no number: a priority is one') from None
    if not -1e15 < number < 1e15:
        raise Refusal(400, f"Invalid number: {text}.")
    return number


DOORS: Final = [
    Door("/recurring", recurring, role="read"),
    Door("/recurring", act_on_recurring, role="operate", methods=("POST",)),
    Door("/tracked", tracked, role="read"),
    Door("/tracked", untrack, role="operate", methods=("POST",)),
    Door("/tags", tags, role="read"),
    Door("/throttles", throttles, role="read"),
]
