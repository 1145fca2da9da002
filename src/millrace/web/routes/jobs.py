"""Job search, and actions on the jobs found."""

from math import isfinite
from typing import Any, Final, get_args

from starlette.background import BackgroundTask
from starlette.responses import Response

from millrace.admin.query_language import QueryError, is_all, parse, write
from millrace.records import ActionRequest, JobFilter, JobPage, SearchJobs
from millrace.web import history
from millrace.web.doors import Door, Form, Refusal, Visit
from millrace.web.render import count, page, shown
from millrace.web.urls import own_path

from .long_actions import carry_out

#: Maximum jobs per page.
MOST: Final = 50
#: Maximum jobs that the search examines for the first page, and for each later page.
FIRST_LOOK: Final = 10_000
NEXT_LOOK: Final = 40_000
ACTIONS: Final = (
    "retry",
    "kill",
    "cancel",
    "delete",
    "track",
    "untrack",
    "move",
    "priority",
    "tag",
    "untag",
)
EXAMPLES: Final = (
    ("state:dead", "dead jobs"),
    ("is:retrying error:timeout", "retrying after a timeout"),
    ("queue:mail state:ready", "waiting in one queue"),
    ("state:leased", "held by a worker"),
    ("protocol:qless tag:daily", "by protocol and tag"),
    ('"connection refused"', "text in the payload, ID, kind or error"),
)
KEYS: Final = (
    ("queue:", "name of the queue"),
    ("state:", "scheduled, blocked, ready, leased, done or dead"),
    ("kind:", "kind: jobtype, klass or name"),
    ("id:", "ID or number"),
    ("protocol:", "pushing protocol: workq, masenko, faktory, qless, goqueue or http"),
    ("tag:", "a tag"),
    ("worker:", "current or last worker"),
    ("error:", "text in the error"),
    ("group:", "class of the error"),
    ("is:", "failing (dead or retrying), retrying, tracked, or a state"),
    ("not:", "failing, retrying or tracked"),
)
#: Titles of the actions; {} is the number or description of the jobs.
_TITLES: Final = {
    "retry": "Retry {}",
    "kill": "Kill {}",
    "cancel": "Cancel {}",
    "delete": "Delete {}",
    "move": "Move {} to {queue}",
    "priority": "Set the priority of {} to {priority:g}",
    "tag": "Tag {} with {tags}",
    "untag": "Remove {tags} from {}",
    "track": "Track {}",
    "untrack": "Stop tracking {}",
    "undepend": "Remove the dependencies of {}",
    "timeout": "Time out {}",
}
_NAMES: Final = frozenset(get_args(ActionRequest.__annotations__["action"]))
MOST_SELECTED: Final = 1000


async def jobs(visit: Visit) -> Response:
    text, cursor = visit.query("q").strip(), visit.query("cursor")
    found, wrong = JobPage([], 0, 0, ""), ""
    try:
        query = parse(text)
        look = NEXT_LOOK if cursor else FIRST_LOOK
        search = SearchJobs(query, cursor=cursor, most=MOST, look=look)
        found = await visit.ask(JobPage, search=search)
    except QueryError as error:
        wrong = str(error)
    response = page(
        visit,
        "jobs.html",
        q=text,
        cursor=cursor,
        found=found,
        wrong=wrong,
        total=known(found, first=not cursor),
        actions=ACTIONS,
        examples=EXAMPLES,
        keys=KEYS,
    )
    response.background = BackgroundTask(history.warm)  # a job page often follows
    return response


def known(found: JobPage, *, first: bool) -> str:
    """Return the number of matching jobs, or a lower bound."""
    number = count(len(found.jobs))
    if first and not found.cursor:
        return number
    return f"{number} or more"


async def act(visit: Visit) -> Response:
    """Handle the form of a list of jobs or of a job's page."""
    form = await visit.form()
    wanted = read(form)
    back = own_path(form.one("back"), "/jobs")
    if wanted.query is None:
        count_ = len(wanted.seqs)
        if not count_:
            raise Refusal(400, "No jobs selected. Go back and select some.")
        return await carry_out(visit, wanted, title(wanted, _some(count_)), back)
    named, agreed = f"all jobs that match {shown(write(wanted.query), 200)}", "yes"
    if is_all(wanted.query):  # the form may lack its query
        named, agreed = "all jobs", "everything"
    if form.one("sure") == agreed:
        return await carry_out(visit, wanted, title(wanted, named), back)
    found = await visit.ask(JobPage, search=SearchJobs(wanted.query, most=MOST))
    return page(
        visit,
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
    action: Any = form.one("action")
    action = "retry" if action in {"run", "add_to_queue"} else action
    if action not in _NAMES:
        raise Refusal(400, f"Unknown action: {shown(action, 60)}.")
    wanted = ActionRequest(action)
    if form.one("scope") == "all":
        wanted.query = _query(form.one("q"))
    else:
        wanted.seqs = [_number(each) for each in form.all("job")]
        if len(wanted.seqs) > MOST_SELECTED:
            raise Refusal(400, f"More than {MOST_SELECTED} jobs selected.")
    if action == "move":
        wanted.queue = form.one("queue")
        if not wanted.queue:
            raise Refusal(400, "Name the target queue.")
    elif action == "priority":
        wanted.priority = _priority(form.one("priority"))
    elif action in {"tag", "untag"}:
        wanted.tags = tags_in(form)
    elif action == "undepend":
        wanted.blockers = form.all("blocker")
    return wanted


def title(wanted: ActionRequest, jobs: str) -> str:
    return _TITLES[wanted.action].format(
        jobs,
        queue=shown(wanted.queue, 80),
        priority=wanted.priority,
        tags=", ".join(shown(tag, 40) for tag in wanted.tags),
    )


def _query(text: str) -> JobFilter:
    try:
        return parse(text)
    except QueryError as error:
        raise Refusal(400, str(error)) from None


def _some(number: int) -> str:
    return "a job" if number == 1 else f"{count(number)} jobs"


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise Refusal(400, f"Invalid job number: {shown(text, 60)}.")
    return int(text)


def _priority(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not isfinite(found):
        raise Refusal(400, "The priority must be a number such as 25, 0 or -25.")
    return found


def tags_in(form: Form) -> list[str]:
    """Return the tags of a form: one field per tag, or one field with commas between tags."""
    parts = [part.strip() for part in form.one("tags").split(",")] + form.all("tag")
    found = [part for part in parts if part]
    if not found:
        raise Refusal(400, "Name one or more tags, separated by commas.")
    return found


DOORS: Final = [
    Door("/jobs", jobs, role="read"),
    Door("/jobs/act", act, role="operate", methods=("POST",)),
]
