"""Retries, Scheduled, Dead and Completed: jobs of one state, the next or newest first.

The URLs, the forms and the keys (`<time>|<jid>`) are the same as in Faktory's web interface, so
that bookmarks and scripts continue to work.
"""

from typing import Any, Final, NamedTuple

from starlette.background import BackgroundTask
from starlette.responses import RedirectResponse, Response

from millrace.admin.errors import AdminError
from millrace.admin.query_language import parse
from millrace.records import ActionRequest, JobDetail, JobPage, SearchJobs
from millrace.web import history
from millrace.web.doors import Door, Endpoint, Refusal, Visit
from millrace.web.render import page, shown
from millrace.web.urls import job_path

from .jobs import known, title
from .long_actions import carry_out

MOST: Final = 50


class Set(NamedTuple):
    path: str
    title: str
    about: str
    none: str
    #: Search query for the jobs of the set.
    q: str
    order: str
    columns: tuple[str, ...]
    actions: tuple[str, ...]


RETRIES: Final = Set(
    "/retries",
    "Retries",
    "Jobs that failed and will be retried, next first.",
    "No retrying jobs.",
    "is:retrying",
    "due",
    ("next", "attempts", "queue", "job", "payload", "error"),
    ("retry", "delete", "kill", "move", "priority", "tag", "untag"),
)
SCHEDULED: Final = Set(
    "/scheduled",
    "Scheduled",
    "Jobs scheduled for a later time, next first.",
    "No scheduled jobs.",
    "state:scheduled not:retrying",
    "due",
    ("due", "queue", "job", "payload"),
    ("run", "delete", "kill", "move", "priority", "tag", "untag"),
)
DEAD: Final = Set(
    "/morgue",
    "Dead",
    "Jobs that failed permanently, newest first.",
    "No dead jobs.",
    "state:dead",
    "ended",
    ("failed", "attempts", "queue", "job", "payload", "error"),
    ("retry", "delete", "move", "tag", "untag"),
)
COMPLETED: Final = Set(
    "/completed",
    "Completed",
    "Completed jobs that are retained, newest first.",
    "No retained jobs. Qless retains completed jobs for a time, and Workq retains them with their "
    "results. The other protocols remove them.",
    "state:done",
    "ended",
    ("ended", "queue", "job", "worker", "attempts", "payload"),
    ("delete", "move", "tag", "untag"),
)
SETS: Final = (RETRIES, SCHEDULED, DEAD, COMPLETED)
#: Names of actions in Faktory's forms.
_ACTIONS: Final = {"retry": "retry", "add_to_queue": "retry", "delete": "delete", "kill": "kill"}


def _show(one: Set) -> Endpoint:
    async def show(visit: Visit) -> Response:
        cursor = visit.query("cursor")
        search = SearchJobs(parse(one.q), order=one.order, cursor=cursor, most=MOST)  # type: ignore[arg-type]
        found = await visit.ask(JobPage, search=search)
        response = page(
            visit,
            "set.html",
            set=one,
            found=found,
            cursor=cursor,
            total=known(found, first=not cursor),
        )
        response.background = BackgroundTask(history.warm)
        return response

    return show


def _change(one: Set) -> Endpoint:
    """Handle Faktory's form: one or more `key=<time>|<jid>`, or `key=all`, and `action`."""

    async def change(visit: Visit) -> Response:
        form = await visit.form()
        keys = form.all("key")
        if not keys:
            raise Refusal(400, "No jobs selected. Go back and select some.")
        if "all" in keys:
            act = _act(form.one("action"), query=parse(one.q))
            named = f"all jobs of {one.title}"
        else:
            act = _act(form.one("action"), jobs=[_jid(key) for key in keys], only=parse(one.q))
            named = "a job" if len(keys) == 1 else f"{len(keys):,} jobs"
        return await carry_out(visit, act, title(act, named), one.path)

    return change


def _look(one: Set) -> Endpoint:
    async def look(visit: Visit) -> Response:
        jid = _jid(visit.path("key"))
        try:
            job = (await visit.ask(JobDetail, job={"id": jid})).job
        except AdminError as error:
            if error.code != "not found":
                raise
            return RedirectResponse(visit.url(one.path), status_code=302)  # as Faktory does
        return RedirectResponse(visit.url(job_path(job.jid, job.seq)), status_code=302)

    return look


def _change_one(one: Set) -> Endpoint:
    async def change_one(visit: Visit) -> Response:
        form = await visit.form()
        jobs = [_jid(visit.path("key"))]
        act = _act(form.one("action"), jobs=jobs, only=parse(one.q))
        return await carry_out(visit, act, title(act, "a job"), one.path)

    return change_one


def _act(action: str, **which: Any) -> ActionRequest:
    """Build the request. `only` excludes jobs that are not, or are no longer, in the set."""
    if action not in _ACTIONS:
        raise Refusal(400, f"Unknown action: {shown(action, 60)}.")
    return ActionRequest(_ACTIONS[action], **which)  # type: ignore[arg-type]


def _jid(key: str) -> str:
    time, bar, jid = key.partition("|")
    if not bar or not time or not jid:
        raise Refusal(400, f"Invalid key {shown(key, 60)}. A key is a time, a bar and the job ID.")
    return jid


def _doors(one: Set) -> list[Door]:
    name = one.path[1:]
    found = [Door(one.path, _show(one), role="read", name=name)]
    if one is COMPLETED:  # Faktory has no such page
        return found
    return [
        *found,
        Door(one.path, _change(one), role="operate", methods=("POST",), name=f"{name}_act"),
        Door(one.path + "/{key:path}", _look(one), role="read", name=f"{name}_one"),
        Door(
            one.path + "/{key:path}",
            _change_one(one),
            role="operate",
            methods=("POST",),
            name=f"{name}_one_act",
        ),
    ]


DOORS: Final = [door for one in SETS for door in _doors(one)]
