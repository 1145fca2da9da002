"""The list of queues, and the page of a queue."""

import base64
import binascii
import contextlib
import time
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from starlette.responses import Response

from millrace.admin.query_language import write
from millrace.engine.states import READY
from millrace.records import (
    QUEUE_ACTIONS,
    ActionRequest,
    BulkProgress,
    GetQueue,
    JobFilter,
    JobPage,
    ListQueues,
    OperatorAction,
    Order,
    PageRequest,
    QueueAction,
    QueueDetail,
    QueuePage,
    RecurringPage,
    RecurringRecord,
    SearchJobs,
    State,
    job_actions,
)
from millrace.records.types import MAX_LIMIT, MAX_RETENTION
from millrace.web.charts import slots
from millrace.web.context import Form, RequestContext, day_number
from millrace.web.errors import HttpError
from millrace.web.long_actions import BulkAction
from millrace.web.page_numbers import first_page
from millrace.web.render import SECOND, clean_text, count, page, queue_url
from millrace.web.routing import PageRoute, form_route

from .long_actions import run, run_action

QUEUE_PAGE_SIZE: Final = 50
JOB_PAGE_SIZE: Final = 25
#: The pages mark a queue if no worker has requested jobs from it for this time.
NO_WORKER_AFTER: Final = 60 * SECOND
#: Maximum seconds to search for the jobs of a page.
SEARCH_TIMEOUT: Final = 0.1
#: Maximum recurring jobs to search for the recurring jobs of a queue.
MAX_RECURRING: Final = 2000


class Tab(NamedTuple):
    """The jobs of one state, as the queue's page shows them."""

    name: State
    order: Order
    columns: tuple[str, ...]

    @property
    def none(self) -> str:
        return "No retained jobs." if self.name == "done" else f"No {self.name} jobs."


def _tab(name: State, order: Order, columns: str) -> Tab:
    return Tab(name, order, ("job", "payload", *columns.split(), "protocol"))


TABS: Final = {
    tab.name: tab
    for tab in (
        _tab("ready", "queue", "priority attempts ready"),
        _tab("leased", "newest", "worker attempts leased deadline"),
        _tab("scheduled", "due", "due attempts error"),
        _tab("blocked", "newest", "created priority"),
        _tab("dead", "ended", "error attempts failed"),
        _tab("done", "ended", "worker attempts ended"),
    )
}
#: Names of the tabs in the URLs of Qless, after the queue name.
QLESS_TABS: Final = {
    "stats": "statistics",
    "running": "leased",
    "waiting": "ready",
    "scheduled": "scheduled",
    "stalled": "leased",
    "depends": "blocked",
    "recurring": "recurring",
}
#: Names of actions in Faktory's forms.
FAKTORY_ACTIONS: Final = {"delete": "remove"}


# List of queues


async def queues(context: RequestContext) -> Response:
    paused = context.query("paused") == "yes"
    asked = ListQueues(context.query("text"), paused, QUEUE_PAGE_SIZE, context.query("after"))
    found = await context.ask(QueuePage, queues=asked)
    return page(
        context,
        "queues.html",
        found=found,
        asked=asked,
        first=_listed(asked, ""),
        more=_listed(asked, found.next),
        unasked=_now() - NO_WORKER_AFTER,
    )


def _listed(asked: ListQueues, after: str) -> str:
    return _with("/queues", text=asked.text, paused="yes" if asked.paused else "", after=after)


# Page of a queue


async def queue(context: RequestContext) -> Response:
    name = _name(context)
    tab = context.query("state", "ready")
    day = day_number("day", context.query("day"))
    detail = await context.find(QueueDetail, queue=GetQueue(name, day))
    if detail is None:
        return _elsewhere(context, name)
    told: dict[str, Any] = {"detail": detail, "queue": detail.queue, "tab": tab, "tabs": TABS}
    told["unasked"] = _now() - NO_WORKER_AFTER
    if tab in TABS:
        return page(context, "queue.html", **told, **await _jobs(context, name, TABS[tab]))
    if tab == "recurring":
        return page(context, "queue.html", **told, recurring=await _recurring(context, name))
    if tab == "statistics":
        charts = {"wait": slots(detail.day.wait), "run": slots(detail.day.run)}
        return page(context, "queue.html", charts=True, **told, slots=charts)
    raise HttpError(404, f"Unknown list. Lists: {', '.join(TABS)}, recurring, statistics.")


async def _jobs(context: RequestContext, name: str, tab: Tab) -> dict[str, Any]:
    """Return a page of jobs. Continue the search until the page is full or the time limit ends."""
    query = JobFilter(queue=name, state=tab.name)
    until = time.monotonic() + SEARCH_TIMEOUT
    search = SearchJobs(query, tab.order, "", JOB_PAGE_SIZE)
    found, cursor = await first_page(context, search)
    while found.next and len(found.jobs) < JOB_PAGE_SIZE and time.monotonic() < until:
        wanted = JOB_PAGE_SIZE - len(found.jobs)
        more = await context.ask(JobPage, search=SearchJobs(query, tab.order, found.next, wanted))
        more.jobs[:0] = found.jobs
        found = more
    return {
        "found": found,
        "cursor": cursor,
        "q": write(query),
        "full": JOB_PAGE_SIZE,
        "actions": job_actions(tab.name),
    }


async def _recurring(context: RequestContext, name: str) -> list[RecurringRecord]:
    found: list[RecurringRecord] = []
    looked, after = 0, ""
    while looked < MAX_RECURRING:
        rows = await context.ask(RecurringPage, recurring=PageRequest(500, after))
        found += [row for row in rows.recurring if row.queue == name]
        looked, after = looked + len(rows.recurring), rows.next
        if not after:
            break
    return found


def _elsewhere(context: RequestContext, name: str) -> Response:
    """Redirect if the queue does not exist: to the equivalent of a Qless URL, or to the list of
    queues as in Faktory.
    """
    before, _, last = name.rpartition("/")
    if before and last in QLESS_TABS:
        response = context.redirect(_with(queue_url(before), state=QLESS_TABS[last]))
    elif name.endswith(".json") and name != ".json":
        response = context.redirect(f"/api/v1/queues/{quote(name.removesuffix('.json'), safe='')}")
    else:
        response = context.redirect("/queues", f'Queue "{clean_text(name, 100)}" not found.')
    response.status_code = 302
    return response


# Actions


async def act(context: RequestContext) -> Response:
    """Pause, resume, clear or remove a queue. Faktory's forms use `delete` to remove a queue or
    single jobs.
    """
    name, form = _name(context), await context.form()
    action = form.one("action")
    if action == "delete" and form.all("bkey"):
        return await _delete(context, name, form.all("bkey"))
    action = FAKTORY_ACTIONS.get(action, action)
    if action not in QUEUE_ACTIONS:
        raise HttpError(400, f"Unknown action: {clean_text(action, 100)}.")
    declared, asked = QUEUE_ACTIONS[action], QueueAction(name, action, context.by)
    if declared.argument == "keep_results":
        asked.retention = _retention(form.one("keep_results"))
    elif declared.argument == "limit":
        asked.limit = _limit(form.one("limit"))
    there = _back(name, form, gone=declared.removes)
    notice = f"{declared.past.capitalize()} queue {clean_text(name, 100)}."
    if not declared.warning:
        await context.ask(BulkProgress, act_on_queue=asked)
        return context.redirect(there, notice)
    if form.one("ask") and not form.one("sure"):
        return await _sure(context, name, declared, form)

    def told(task: BulkAction) -> str:
        jobs = task.progress.done
        return f"{notice} {'1 job' if jobs == 1 else f'{count(jobs)} jobs'} removed."

    return await run(context, declared.title.format(target=name), told, there, act_on_queue=asked)


async def _sure(context: RequestContext, name: str, action: OperatorAction, form: Form) -> Response:
    """Request confirmation of an irreversible action if no script of the page did so."""
    detail = await context.ask(QueueDetail, queue=GetQueue(name))
    return page(
        context,
        "sure.html",
        title=action.title.format(target=clean_text(name, 100)),
        total=count(detail.queue.counts[READY]),
        fields=form,
        to=queue_url(name),
        back=_back(name, form, gone=False),
    )


async def _delete(context: RequestContext, name: str, keys: list[str]) -> Response:
    """Delete jobs by the keys of Faktory's queue page: the JSON of each job in base64. Delete only
    ready jobs, because that page lists only ready jobs.
    """
    jids = [_jid(key) for key in keys]
    wanted = ActionRequest("delete", jids, only=JobFilter(queue=name, state="ready"))
    jobs = "a job" if len(jids) == 1 else f"{count(len(jids))} jobs"
    return await run_action(context, wanted, f"Delete {jobs} of {name}", queue_url(name))


def _jid(key: str) -> str:
    class Named(msgspec.Struct):
        jid: str

    with contextlib.suppress(binascii.Error, ValueError, msgspec.DecodeError):
        text = base64.urlsafe_b64decode(key + "=" * (-len(key) % 4))
        return msgspec.json.decode(text, type=Named).jid
    raise HttpError(400, "`bkey` must be the JSON of a job in base64.")


def _retention(text: str) -> int:
    """Convert seconds to microseconds; an empty field removes the setting."""
    try:
        seconds = float(text) if text.strip() else -1.0
    except ValueError:
        seconds = float("nan")
    if text.strip() and not 0 <= seconds <= MAX_RETENTION / SECOND:
        raise HttpError(400, "Give a number of seconds, or nothing to remove the setting.")
    return -1 if seconds < 0 else int(seconds * SECOND)


def _limit(text: str) -> int:
    """Convert the maximum number of leased jobs; an empty field removes the limit."""
    text = text.strip()
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= MAX_LIMIT):
        raise HttpError(400, "Give a number of jobs, or nothing to remove the limit.")
    return int(text)


def _back(name: str, form: Form, *, gone: bool) -> str:
    """Return the path of the page with the form: the queue's page, or the list with its filter."""
    if form.one("back") == "queue" and not gone:
        return _with(queue_url(name), state=form.one("state"))
    return _with(
        "/queues", text=form.one("text"), paused=form.one("paused"), after=form.one("after")
    )


def _with(path: str, **values: str) -> str:
    given = urlencode({key: value for key, value in values.items() if value})
    return path if not given else f"{path}{'&' if '?' in path else '?'}{given}"


def _name(context: RequestContext) -> str:
    """Return the queue name. See render.to_queue for names that a path cannot contain."""
    return context.path("name") or context.query("name")


def _now() -> int:
    return int(time.time() * SECOND)


ROUTES: Final = [
    PageRoute(
        "/queues",
        queues,
        "all queues: jobs by state, oldest job, wait times, throughput",
        menu="Queues",
        counted=True,
    ),
    PageRoute(
        "/queues/{name:path}",
        queue,
        "one queue: its jobs by state, limit, and Qless statistics of a day",
    ),
    form_route(
        "/queues/{name:path}", act, "pause, resume, clear or remove the queue; set its limit"
    ),
]
