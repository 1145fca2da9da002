"""Retries, Scheduled, Dead and Completed: jobs of one state, the next or newest first.

The URLs, the forms and the keys (`<time>|<jid>`) are the same as in Faktory's web interface, so
that bookmarks and scripts continue to work.
"""

from typing import Any, Final, NamedTuple

from starlette.background import BackgroundTask
from starlette.responses import RedirectResponse, Response

from millrace.admin.query_language import parse
from millrace.records import ActionRequest, JobDetail, SearchJobs, job_actions
from millrace.web import history
from millrace.web.context import RequestContext
from millrace.web.errors import HttpError
from millrace.web.page_numbers import first_page
from millrace.web.render import clean_text, page
from millrace.web.routing import Endpoint, PageRoute, form_route
from millrace.web.urls import job_url

from .jobs import known, title
from .long_actions import run_action

PAGE_SIZE: Final = 50


class JobSet(NamedTuple):
    path: str
    title: str
    about: str
    none: str
    #: Search query for the jobs of the set.
    q: str
    order: str
    columns: tuple[str, ...]
    #: State of its jobs.
    state: str


RETRIES: Final = JobSet(
    "/retries",
    "Retries",
    "Jobs that failed and will be retried, next first.",
    "No retrying jobs.",
    "is:retrying",
    "due",
    ("next", "attempts", "queue", "job", "payload", "error"),
    "retrying",
)
SCHEDULED: Final = JobSet(
    "/scheduled",
    "Scheduled",
    "Jobs scheduled for a later time, next first.",
    "No scheduled jobs.",
    "state:scheduled not:retrying",
    "due",
    ("due", "queue", "job", "payload"),
    "scheduled",
)
DEAD: Final = JobSet(
    "/morgue",
    "Dead",
    "Jobs that failed permanently, newest first.",
    "No dead jobs.",
    "state:dead",
    "ended",
    ("failed", "attempts", "queue", "job", "payload", "error"),
    "dead",
)
COMPLETED: Final = JobSet(
    "/completed",
    "Completed",
    "Completed jobs that are retained, newest first.",
    "No retained jobs. Qless retains completed jobs for a time, and Workq retains them with their "
    "results. The other protocols remove them.",
    "state:done",
    "ended",
    ("ended", "queue", "job", "worker", "attempts", "payload"),
    "done",
)
SETS: Final = (RETRIES, SCHEDULED, DEAD, COMPLETED)
#: Names of actions in Faktory's forms.
_ACTIONS: Final = {"retry": "retry", "add_to_queue": "retry", "delete": "delete", "kill": "kill"}


def _show(one: JobSet) -> Endpoint:
    async def show(context: RequestContext) -> Response:
        search = SearchJobs(parse(one.q), order=one.order, limit=PAGE_SIZE)  # type: ignore[arg-type]
        found, cursor = await first_page(context, search)
        response = page(
            context,
            "set.html",
            set=one,
            actions=job_actions(one.state),
            found=found,
            cursor=cursor,
            total=known(found, first=not cursor),
        )
        response.background = BackgroundTask(history.warm)
        return response

    return show


def _change(one: JobSet) -> Endpoint:
    """Handle Faktory's form: one or more `key=<time>|<jid>`, or `key=all`, and `action`. The key
    can also be in the path.
    """

    async def change(context: RequestContext) -> Response:
        form = await context.form()
        in_path = context.request.path_params.get("key")
        keys = form.all("key") if in_path is None else [in_path]
        if not keys:
            raise HttpError(400, "No jobs selected. Go back and select some.")
        if "all" in keys and in_path is None:
            act = _act(form.one("action"), query=parse(one.q))
            named = f"all jobs of {one.title}"
        else:
            act = _act(form.one("action"), jobs=[_jid(key) for key in keys], only=parse(one.q))
            named = "a job" if len(keys) == 1 else f"{len(keys):,} jobs"
        return await run_action(context, act, title(act, named), one.path)

    return change


def _look(one: JobSet) -> Endpoint:
    async def look(context: RequestContext) -> Response:
        jid = _jid(context.path("key"))
        found = await context.find(JobDetail, job={"id": jid})
        # As Faktory, redirect to the list if the job does not exist.
        path = one.path if found is None else job_url(found.job.jid, found.job.seq)
        return RedirectResponse(context.url(path), status_code=302)

    return look


def _act(action: str, **which: Any) -> ActionRequest:
    """Build the request. `only` excludes jobs that are not, or are no longer, in the set."""
    if action not in _ACTIONS:
        raise HttpError(400, f"Unknown action: {clean_text(action, 60)}.")
    return ActionRequest(_ACTIONS[action], **which)


def _jid(key: str) -> str:
    time, bar, jid = key.partition("|")
    if not bar or not time or not jid:
        raise HttpError(
            400, f"Invalid key {clean_text(key, 60)}. A key is a time, a bar and the job ID."
        )
    return jid


def _routes(one: JobSet) -> list[PageRoute]:
    keyed = one.path + "/{key:path}"
    about = one.about[0].lower() + one.about[1:].rstrip(".")
    found = [PageRoute(one.path, _show(one), about, menu=one.title, counted=one is not COMPLETED)]
    if one is COMPLETED:  # Faktory has no such page
        return found
    return [
        *found,
        form_route(one.path, _change(one), "act on the selected jobs, or on all of them"),
        PageRoute(keyed, _look(one), "one job, by Faktory's key"),
        form_route(keyed, _change(one), "act on the job"),
    ]


ROUTES: Final = [route for one in SETS for route in _routes(one)]
