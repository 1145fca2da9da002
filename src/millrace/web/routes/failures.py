"""Failures: failed jobs grouped by error, and actions on all jobs of a group."""

from typing import Any, Final

from starlette.responses import Response

from millrace.admin.query_language import write
from millrace.records import (
    ActionRequest,
    FailureGroup,
    FailurePage,
    JobFilter,
    JobPage,
    PageRequest,
    SearchJobs,
)
from millrace.web.doors import Door, Refusal, Visit
from millrace.web.render import page, shown
from millrace.web.urls import own_path

from .jobs import known, title
from .long_actions import carry_out

#: Maximum groups on the list, and maximum jobs on the page of a group.
MOST: Final = 200
MOST_JOBS: Final = 50
ACTIONS: Final = ("retry", "delete", "kill", "move", "tag", "untag")
#: Actions on all jobs of a group, or on all dead jobs.
_WHOLE: Final = frozenset({"retry", "delete", "kill", "cancel"})


async def failures(visit: Visit) -> Response:
    found = await visit.ask(FailurePage, failures=PageRequest(most=MOST))
    return page(visit, "failures.html", failures=found)


async def group(visit: Visit) -> Response:
    fingerprint, cursor = visit.path("fingerprint"), visit.query("cursor")
    query = JobFilter(fingerprint=fingerprint, failing=True)
    found = await visit.ask(JobPage, search=SearchJobs(query, cursor=cursor, most=MOST_JOBS))
    about = await _group(visit, fingerprint)
    if about is None and not found.jobs and not cursor:
        raise Refusal(404, "No failed jobs in this group. They may have been retried or removed.")
    return page(
        visit,
        "failure.html",
        fingerprint=fingerprint,
        group=about,
        found=found,
        cursor=cursor,
        q=write(query),
        total=f"{about.dead + about.retrying:,}" if about else known(found, first=not cursor),
        actions=ACTIONS,
    )


async def act(visit: Visit) -> Response:
    """Act on all jobs of a group; without a group, on all dead jobs."""
    form = await visit.form()
    action: Any = form.one("action")
    if action not in _WHOLE:
        raise Refusal(400, f"Unknown action for a group: {shown(action, 60)}.")
    fingerprint = form.one("fingerprint")
    back = own_path(form.one("back"), "/failures")
    if fingerprint:
        wanted = ActionRequest(action, query=JobFilter(fingerprint=fingerprint, failing=True))
        named = f"all jobs that failed with {shown(form.one('group'), 80) or fingerprint}"
    else:
        wanted = ActionRequest(action, query=JobFilter(state="dead"))
        named = "all dead jobs"
    if form.one("sure") != "yes":
        return page(
            visit,
            "sure.html",
            title=title(wanted, named),
            total=form.one("total") or "some",
            fields=[pair for pair in form if pair[0] != "sure"],
            back=back,
            to="/failures/act",
        )
    return await carry_out(visit, wanted, title(wanted, named), back)


async def _group(visit: Visit, fingerprint: str) -> FailureGroup | None:
    found = await visit.ask(FailurePage, failures=PageRequest(most=500))
    return next((each for each in found.groups if each.fingerprint == fingerprint), None)


DOORS: Final = [
    Door("/failures", failures, role="read"),
    Door("/failures/act", act, role="operate", methods=("POST",), name="failures_act"),
    Door("/failures/{fingerprint}", group, role="read", name="failure"),
]
