"""Job search, and actions on the jobs found."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.background import BackgroundTask
from starlette.responses import Response

from millrace.admin.query_language import QueryError, is_all, key_texts, parse, write
from millrace.records import (
    JOB_ACTIONS,
    MAX_PRIORITY,
    ActionRequest,
    JobFilter,
    JobPage,
    OperatorAction,
    SearchJobs,
    job_actions,
)
from millrace.web import history
from millrace.web.context import Form, RequestContext
from millrace.web.errors import HttpError
from millrace.web.render import clean_text, count, page
from millrace.web.routing import PageRoute, form_route
from millrace.web.urls import own_path

from .long_actions import run_action

#: Maximum jobs per page.
PAGE_SIZE: Final = 50
#: Maximum jobs that the search examines for the first page, and for each later page.
FIRST_PAGE_LIMIT: Final = 10_000
NEXT_PAGE_LIMIT: Final = 40_000
EXAMPLES: Final = (
    ("state:dead", "dead jobs"),
    ("is:retrying error:timeout", "retrying after a timeout"),
    ("queue:mail state:ready", "waiting in one queue"),
    ("state:leased", "held by a worker"),
    ("protocol:qless tag:daily", "by protocol and tag"),
    ('"connection refused"', "text in the payload, ID, kind or error"),
)
MAX_SELECTED: Final = 1000


async def jobs(context: RequestContext) -> Response:
    text, cursor = context.query("q").strip(), context.query("cursor")
    found, wrong = JobPage([], 0, 0, ""), ""
    actions = list(JOB_ACTIONS.values())
    try:
        query = parse(text)
        if query.state:
            actions = job_actions(query.state)
        look = NEXT_PAGE_LIMIT if cursor else FIRST_PAGE_LIMIT
        search = SearchJobs(query, cursor=cursor, limit=PAGE_SIZE, max_examined=look)
        found = await context.ask(JobPage, search=search)
    except QueryError as error:
        wrong = str(error)
    response = page(
        context,
        "jobs.html",
        q=text,
        cursor=cursor,
        found=found,
        wrong=wrong,
        total=known(found, first=not cursor),
        actions=actions,
        examples=EXAMPLES,
        keys=key_texts(),
    )
    response.background = BackgroundTask(history.warm)  # a job page often follows
    return response


def known(found: JobPage, *, first: bool) -> str:
    """Return the number of matching jobs, or a lower bound."""
    number = count(len(found.jobs))
    if first and not found.next:
        return number
    return f"{number} or more"


async def act(context: RequestContext) -> Response:
    """Handle the form of a list of jobs or of a job's page."""
    form = await context.form()
    wanted = read(form)
    back = own_path(form.one("back"), "/jobs")
    if wanted.query is None:
        count_ = len(wanted.seqs)
        if not count_:
            raise HttpError(400, "No jobs selected. Go back and select some.")
        return await run_action(context, wanted, title(wanted, _some(count_)), back)
    named, agreed = f"all jobs that match {clean_text(write(wanted.query), 200)}", "yes"
    if is_all(wanted.query):  # the form may lack its query
        named, agreed = "all jobs", "everything"
    if form.one("sure") == agreed:
        return await run_action(context, wanted, title(wanted, named), back)
    found = await context.ask(JobPage, search=SearchJobs(wanted.query, limit=PAGE_SIZE))
    return page(
        context,
        "sure.html",
        title=title(wanted, named),
        total=known(found, first=True),
        fields=[pair for pair in form if pair[0] != "sure"],
        agreed=agreed,
        back=back,
        to="/jobs/act",
    )


def read(form: Form) -> ActionRequest:
    """Read the action and its jobs from a form."""
    action = form.one("action")
    action = "retry" if action in {"run", "add_to_queue"} else action
    if action not in JOB_ACTIONS:
        raise HttpError(400, f"Unknown action: {clean_text(action, 60)}.")
    wanted = ActionRequest(action)
    if form.one("scope") == "all":
        wanted.query = _query(form.one("q"))
    else:
        wanted.seqs = [_number(each) for each in form.all("job")]
        if len(wanted.seqs) > MAX_SELECTED:
            raise HttpError(400, f"More than {MAX_SELECTED} jobs selected.")
    read_argument(form, JOB_ACTIONS[action], wanted)
    return wanted


def read_argument(form: Form, action: OperatorAction, wanted: msgspec.Struct) -> None:
    """Set the argument of the action in the request."""
    if action.argument is not None:
        setattr(wanted, action.argument, _ARGUMENTS[action.argument](form))


def title(wanted: ActionRequest, jobs: str) -> str:
    return JOB_ACTIONS[wanted.action].describe(jobs, wanted)


def _query(text: str) -> JobFilter:
    try:
        return parse(text)
    except QueryError as error:
        raise HttpError(400, str(error)) from None


def _some(number: int) -> str:
    return "a job" if number == 1 else f"{count(number)} jobs"


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise HttpError(400, f"Invalid job number: {clean_text(text, 60)}.")
    return int(text)


def _queue(form: Form) -> str:
    """Return the target queue of a form."""
    if not (queue := form.one("queue")):
        raise HttpError(400, "Name the target queue.")
    return queue


def _priority(form: Form) -> float:
    """Return the priority of a form."""
    try:
        found = float(form.one("priority"))
    except ValueError:
        found = float("nan")
    if not abs(found) <= MAX_PRIORITY:
        raise HttpError(400, "The priority must be a number such as 25, 0 or -25.")
    return found


def _tags(form: Form) -> list[str]:
    """Return the tags of a form: one field per tag, or one field with commas between tags."""
    parts = [part.strip() for part in form.one("tags").split(",")] + form.all("tag")
    found = [part for part in parts if part]
    if not found:
        raise HttpError(400, "Name one or more tags, separated by commas.")
    return found


_ARGUMENTS: Final[dict[str, Callable[[Form], Any]]] = {
    "queue": _queue,
    "priority": _priority,
    "tags": _tags,
    "waits_for": lambda form: form.all("waits_for"),
}

ROUTES: Final = [
    PageRoute("/jobs", jobs, "search, with actions on all results", menu="Jobs"),
    form_route("/jobs/act", act, "act on the selected jobs, or on all results of a search"),
]
