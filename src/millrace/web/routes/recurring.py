"""The pages Recurring, Tracked, Tags and Throttles."""

import time
from typing import Final

from starlette.responses import Response

from millrace.records import (
    RECURRING_ACTIONS,
    ActionRequest,
    BulkProgress,
    LimitPage,
    ListTags,
    Ok,
    PageRequest,
    RecurringAction,
    RecurringPage,
    TagPage,
    TrackedJob,
    TrackedPage,
)
from millrace.web.context import RequestContext
from millrace.web.errors import HttpError
from millrace.web.render import clean_text, page
from millrace.web.routing import PageRoute, form_route

from .jobs import read_argument

PAGE_SIZE: Final = 50
#: Maximum number of tracked jobs that the page counts and displays.
MAX_TRACKED: Final = 1000
MAX_TAGS: Final = 500
#: Titles of the tabs, by the state of the tracked jobs.
TABS: Final = {
    "leased": "Leased",
    "ready": "Ready",
    "scheduled": "Scheduled",
    "stalled": "Overdue",
    "done": "Completed",
    "dead": "Dead",
    "blocked": "Blocked",
    "gone": "Removed",
}


async def recurring(context: RequestContext) -> Response:
    after = context.query("after")
    found = await context.ask(RecurringPage, recurring=PageRequest(PAGE_SIZE, after))
    return page(context, "recurring.html", found=found, after=after)


async def act_on_recurring(context: RequestContext) -> Response:
    form = await context.form()
    jid, action = form.one("jid"), form.one("action")
    if action not in RECURRING_ACTIONS:
        raise HttpError(400, f"Unknown action: {clean_text(action, 60)}.")
    declared, wanted = RECURRING_ACTIONS[action], RecurringAction(jid, action, by=context.by)
    read_argument(form, declared, wanted)
    await context.ask(Ok, act_on_recurring=wanted)
    return context.redirect(
        "/recurring", f"{clean_text(declared.describe(jid, wanted), 200)}: done."
    )


async def tracked(context: RequestContext) -> Response:
    found = await context.ask(TrackedPage, tracked=PageRequest(limit=MAX_TRACKED))
    now = time.time_ns() // 1000
    states = [_state(row, now) for row in found.tracked]
    tab = context.query("state")
    rows = [
        (row, state)
        for row, state in zip(found.tracked, states, strict=True)
        if not tab or state == tab
    ]
    tabs = [(name, title, states.count(name)) for name, title in TABS.items()]
    return page(context, "tracked.html", rows=rows, tabs=tabs, tab=tab, found=found, titles=TABS)


async def untrack(context: RequestContext) -> Response:
    form = await context.form()
    jobs = form.all("job")
    if not jobs:
        raise HttpError(400, "No jobs selected.")
    done = await context.ask(
        BulkProgress, act=ActionRequest("untrack", jobs[:MAX_TRACKED], by=context.by)
    )
    notice = f"{done.done} {'job' if done.done == 1 else 'jobs'} untracked."
    if done.skipped:
        notice += f" {done.skipped[0].job}: {done.skipped[0].reason}"
    return context.redirect("/tracked", notice)


async def tags(context: RequestContext) -> Response:
    found = await context.ask(TagPage, tags=ListTags(MAX_TAGS))
    return page(context, "tags.html", found=found)


async def throttles(context: RequestContext) -> Response:
    found = await context.ask(LimitPage, limits=True)
    return page(context, "throttles.html", limits=found.limits)


def _state(row: TrackedJob, now: int) -> str:
    if row.job is None:
        return "gone"
    is_late = row.job.state == "leased" and 0 < row.job.deadline < now
    return "stalled" if is_late else row.job.state


ROUTES: Final = [
    PageRoute("/recurring", recurring, "recurring jobs", menu="Recurring"),
    form_route("/recurring", act_on_recurring, "change or remove a recurring job"),
    PageRoute("/tracked", tracked, "tracked jobs", menu="Tracked"),
    form_route("/tracked", untrack, "stop tracking a job"),
    PageRoute("/tags", tags, "tags, the most used first", menu="Tags"),
    PageRoute("/throttles", throttles, "limits: holders and waiting jobs"),
]
