"""Failures: failed jobs grouped by error, and actions on all jobs of a group."""

from typing import Final

from starlette.responses import Response

from millrace.admin.query_language import write
from millrace.records import (
    JOB_ACTIONS,
    ActionRequest,
    FailureGroup,
    FailurePage,
    JobFilter,
    JobPage,
    ListFailures,
    SearchJobs,
    job_actions,
)
from millrace.web.context import RequestContext
from millrace.web.errors import HttpError
from millrace.web.render import clean_text, page
from millrace.web.routing import PageRoute, form_route
from millrace.web.urls import own_path

from .jobs import known, title
from .long_actions import run_action

#: Maximum groups on the list, and maximum jobs on the page of a group.
MAX_GROUPS: Final = 200
PAGE_SIZE: Final = 50


async def failures(context: RequestContext) -> Response:
    found = await context.ask(FailurePage, failures=ListFailures(MAX_GROUPS))
    return page(context, "failures.html", failures=found)


async def group(context: RequestContext) -> Response:
    fingerprint, cursor = context.path("fingerprint"), context.query("cursor")
    query = JobFilter(fingerprint=fingerprint, failing=True)
    found = await context.ask(JobPage, search=SearchJobs(query, cursor=cursor, limit=PAGE_SIZE))
    about = await _group(context, fingerprint)
    if about is None and not found.jobs and not cursor:
        raise HttpError(404, "No failed jobs in this group. They may have been retried or removed.")
    return page(
        context,
        "failure.html",
        fingerprint=fingerprint,
        group=about,
        found=found,
        cursor=cursor,
        q=write(query),
        total=f"{about.dead + about.retrying:,}" if about else known(found, first=not cursor),
        actions=job_actions("retrying", "dead"),
    )


async def act(context: RequestContext) -> Response:
    """Act on all jobs of a group; without a group, on all dead jobs."""
    form = await context.form()
    action = form.one("action")
    if action not in JOB_ACTIONS or JOB_ACTIONS[action].has_input:
        raise HttpError(400, f"Unknown action for a group: {clean_text(action, 60)}.")
    fingerprint = form.one("fingerprint")
    back = own_path(form.one("back"), "/failures")
    if fingerprint:
        wanted = ActionRequest(action, query=JobFilter(fingerprint=fingerprint, failing=True))
        named = f"all jobs that failed with {clean_text(form.one('group'), 80) or fingerprint}"
    else:
        wanted = ActionRequest(action, query=JobFilter(state="dead"))
        named = "all dead jobs"
    if form.one("sure") != "yes":
        return page(
            context,
            "sure.html",
            title=title(wanted, named),
            total=form.one("total") or "some",
            fields=[pair for pair in form if pair[0] != "sure"],
            back=back,
            to="/failures/act",
        )
    return await run_action(context, wanted, title(wanted, named), back)


async def _group(context: RequestContext, fingerprint: str) -> FailureGroup | None:
    found = await context.ask(FailurePage, failures=ListFailures(500))
    return next((each for each in found.groups if each.fingerprint == fingerprint), None)


ROUTES: Final = [
    PageRoute("/failures", failures, "failures, grouped by error", menu="Failures"),
    form_route("/failures/act", act, "retry or delete the jobs of a group"),
    PageRoute("/failures/{fingerprint}", group, "one group of failures and its jobs"),
]
