"""The list of queues, and the page of a queue."""

import base64
import binascii
import contextlib
import time
from datetime import date
from typing import Any, Final, Literal, NamedTuple, cast
from urllib.parse import quote, urlencode

import msgspec
from starlette.responses import Response

from millrace.admin.errors import AdminError
from millrace.admin.query_language import write
from millrace.engine.states import READY
from millrace.records import (
    ActionRequest,
    BulkProgress,
    GetQueue,
    JobFilter,
    JobPage,
    ListQueues,
    PageRequest,
    QueueAction,
    QueueDetail,
    QueuePage,
    RecurringPage,
    RecurringRecord,
    SearchJobs,
    State,
)
from millrace.web.charts import slots
from millrace.web.doors import Door, Form, Refusal, Visit
from millrace.web.render import SECOND, count, page, shown, to_queue

from .long_actions import carry_out

MOST_QUEUES: Final = 50
MOST_JOBS: Final = 25
#: The pages mark a queue if no worker has requested jobs from it for this time.
UNASKED: Final = 60 * SECOND
#: Seconds to wait for an action. If it takes longer, the response redirects to its progress page.
SOON: Final = 0.5
#: Maximum seconds to search for the jobs of a page.
PATIENCE: Final = 0.1
#: Maximum recurring jobs to search for the recurring jobs of a queue.
MOST_RECURRING: Final = 2000

Action = Literal["pause", "resume", "clear", "remove"]
Order = Literal["newest", "due", "queue", "ended"]


class Tab(NamedTuple):
    """The jobs of one state, as the queue's page shows them."""

    name: str
    title: str
    order: Order
    columns: tuple[str, ...]
    actions: tuple[str, ...]
    none: str


_CHANGES: Final = ("move", "priority", "tag", "untag")
TABS: Final = {
    tab.name: tab
    for tab in (
        Tab(
            "ready",
            "Ready",
            "queue",
            ("job", "payload", "priority", "attempts", "ready", "protocol"),
            ("kill", "cancel", "track", *_CHANGES),
            "No ready jobs.",
        ),
        Tab(
            "leased",
            "Leased",
            "newest",
            ("job", "payload", "worker", "attempts", "leased", "deadline", "protocol"),
            ("timeout", "delete", "track", *_CHANGES),
            "No leased jobs.",
        ),
        Tab(
            "scheduled",
            "Scheduled",
            "due",
            ("job", "payload", "due", "attempts", "error", "protocol"),
            ("run", "kill", "cancel", "track", *_CHANGES),
            "No scheduled jobs.",
        ),
        Tab(
            "blocked",
            "Blocked",
            "newest",
            ("job", "payload", "created", "priority", "protocol"),
            ("kill", "cancel", "track", *_CHANGES),
            "No blocked jobs.",
        ),
        Tab(
            "dead",
            "Dead",
            "ended",
            ("job", "payload", "error", "attempts", "failed", "protocol"),
            ("retry", "delete", "track", *_CHANGES),
            "No dead jobs.",
        ),
        Tab(
            "done",
            "Done",
            "ended",
            ("job", "payload", "worker", "attempts", "ended", "protocol"),
            ("delete", "track"),
            "No retained jobs.",
        ),
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
SAID: Final = {
    "pause": "Paused {}.",
    "resume": "Resumed {}.",
}


# List of queues


async def queues(visit: Visit) -> Response:
    paused = visit.query("paused") == "yes"
    asked = ListQueues(visit.query("text"), visit.query("after"), MOST_QUEUES, paused)
    found = await visit.ask(QueuePage, queues=asked)
    return page(
        visit,
        "queues.html",
        found=found,
        asked=asked,
        first=_listed(asked, ""),
        more=_listed(asked, found.more),
        unasked=_now() - UNASKED,
    )


def _listed(asked: ListQueues, after: str) -> str:
    return _with("/queues", text=asked.text, paused="yes" if asked.paused else "", after=after)


# Page of a queue


async def queue(visit: Visit) -> Response:
    name = _name(visit)
    tab = visit.query("state", "ready")
    try:
        detail = await visit.ask(QueueDetail, queue=GetQueue(name, _day(visit.query("day"))))
    except AdminError as error:
        if error.code != "not found":
            raise
        return _elsewhere(visit, name)
    told: dict[str, Any] = {"detail": detail, "queue": detail.queue, "tab": tab, "tabs": TABS}
    told["unasked"] = _now() - UNASKED
    if tab in TABS:
        return page(visit, "queue.html", **told, **await _jobs(visit, name, TABS[tab]))
    if tab == "recurring":
        return page(visit, "queue.html", **told, recurring=await _recurring(visit, name))
    if tab == "statistics":
        charts = {"wait": slots(detail.day.wait), "run": slots(detail.day.run)}
        return page(visit, "queue.html", charts=True, **told, slots=charts)
    raise Refusal(404, f"Unknown list. Lists: {', '.join(TABS)}, recurring, statistics.")


async def _jobs(visit: Visit, name: str, tab: Tab) -> dict[str, Any]:
    """Return a page of jobs. Continue the search until the page is full or the time limit ends."""
    query = JobFilter(queue=name, state=cast("State", tab.name))
    cursor, until = visit.query("cursor"), time.monotonic() + PATIENCE
    found = await visit.ask(JobPage, search=SearchJobs(query, tab.order, cursor, MOST_JOBS))
    while found.cursor and len(found.jobs) < MOST_JOBS and time.monotonic() < until:
        wanted = MOST_JOBS - len(found.jobs)
        more = await visit.ask(JobPage, search=SearchJobs(query, tab.order, found.cursor, wanted))
        more.jobs[:0] = found.jobs
        found = more
    return {"found": found, "cursor": cursor, "q": write(query), "full": MOST_JOBS}


async def _recurring(visit: Visit, name: str) -> list[RecurringRecord]:
    found: list[RecurringRecord] = []
    looked, after = 0, ""
    while looked < MOST_RECURRING:
        rows = await visit.ask(RecurringPage, recurring=PageRequest(after, 500))
        found += [row for row in rows.recurring if row.queue == name]
        looked, after = looked + len(rows.recurring), rows.more
        if not after:
            break
    return found


def _elsewhere(visit: Visit, name: str) -> Response:
    """Redirect if the queue does not exist: to the equivalent of a Qless URL, or to the list of
    queues as in Faktory.
    """
    before, _, last = name.rpartition("/")
    if before and last in QLESS_TABS:
        response = visit.back(_with(to_queue(before), state=QLESS_TABS[last]))
    elif name.endswith(".json") and name != ".json":
        response = visit.back(f"/api/v1/queues/{quote(name.removesuffix('.json'), safe='')}")
    else:
        response = visit.back("/queues", f"Queue {shown(name, 100)} not found.")
    response.status_code = 302
    return response


# Actions


async def act(visit: Visit) -> Response:
    """Pause, resume, clear or remove a queue. Faktory's forms use `delete` to remove a queue or
    single jobs.
    """
    name, form = _name(visit), await visit.form()
    action = form.one("action")
    if action == "delete" and form.all("bkey"):
        return await _delete(visit, name, form.all("bkey"))
    action = FAKTORY_ACTIONS.get(action, action)
    if action not in {"pause", "resume", "clear", "remove"}:
        raise Refusal(400, f"Unknown action: {shown(action, 100)}.")
    asked = QueueAction(name, cast("Action", action), visit.by)
    there = _back(name, form, gone=action == "remove")
    if form.one("ask") and not form.one("sure") and action not in SAID:
        return await _sure(visit, name, action, form)
    if action in SAID:
        await visit.ask(BulkProgress, act_on_queue=asked)
        return visit.back(there, SAID[action].format(shown(name, 100)))
    tasks = visit.room.tasks
    task = tasks.begin(f"{action.capitalize()} the queue {name}", visit.by, act_on_queue=asked)
    await tasks.wait(task, SOON)
    if not task.ended:
        return visit.back(f"/tasks/{task.number}")
    if task.error:
        raise Refusal(409, task.error)
    return visit.back(there, _removed(action, shown(name, 100), task.progress.done))


def _removed(action: str, name: str, jobs: int) -> str:
    removed = "1 job" if jobs == 1 else f"{count(jobs)} jobs"
    if action == "clear":
        return f"Cleared {name}: removed {removed}."
    return f"Removed queue {name} and {removed}."


async def _sure(visit: Visit, name: str, action: str, form: Form) -> Response:
    """Request confirmation of an irreversible action if no script of the page did so."""
    detail = await visit.ask(QueueDetail, queue=GetQueue(name))
    return page(
        visit,
        "sure.html",
        title=f"{action.capitalize()} the queue {shown(name, 100)}",
        total=count(detail.queue.counts[READY]),
        fields=form,
        to=to_queue(name),
        back=_back(name, form, gone=False),
    )


async def _delete(visit: Visit, name: str, keys: list[str]) -> Response:
    """Delete jobs by the keys of Faktory's queue page: the JSON of each job in base64. Delete only
    ready jobs, because that page lists only ready jobs.
    """
    jids = [_jid(key) for key in keys]
    wanted = ActionRequest("delete", jids, only=JobFilter(queue=name, state="ready"))
    told = (
        f"Delete {'a job' if len(jids) == 1 else f'{count(len(jids))} jobs'} of {shown(name, 100)}"
    )
    return await carry_out(visit, wanted, told, to_queue(name))


def _jid(key: str) -> str:
    class Named(msgspec.Struct):
        jid: str

    with contextlib.suppress(binascii.Error, ValueError, msgspec.DecodeError):
        text = base64.urlsafe_b64decode(key + "=" * (-len(key) % 4))
        return msgspec.json.decode(text, type=Named).jid
    raise Refusal(400, "`bkey` must be the JSON of a job in base64.")


def _back(name: str, form: Form, *, gone: bool) -> str:
    """Return the path of the page with the form: the queue's page, or the list with its filter."""
    if form.one("back") == "queue" and not gone:
        return _with(to_queue(name), state=form.one("state"))
    return _with(
        "/queues", text=form.one("text"), paused=form.one("paused"), after=form.one("after")
    )


def _with(path: str, **values: str) -> str:
    given = urlencode({key: value for key, value in values.items() if value})
    return path if not given else f"{path}{'&' if '?' in path else '?'}{given}"


def _name(visit: Visit) -> str:
    """Return the queue name. See render.to_queue for names that a path cannot contain."""
    return visit.path("name") or visit.query("name")


def _day(text: str) -> int:
    """Convert a date to days since 1970; -1 is today."""
    if not text:
        return -1
    try:
        found = (date.fromisoformat(text) - date(1970, 1, 1)).days
    except ValueError:
        raise Refusal(400, "The day must have the form 2026-03-01.") from None
    if found < 0:
        raise Refusal(400, "No statistics before 1970.")
    return found


def _now() -> int:
    return int(time.time() * SECOND)


DOORS: Final = [
    Door("/queues", queues, role="read"),
    Door("/queues/{name:path}", queue, role="read"),
    Door("/queues/{name:path}", act, role="operate", methods=("POST",), name="act_on_queue"),
]
