"""The page of an existing or removed job."""

import re
from typing import Any, Final

import msgspec
from starlette.responses import Response

from millrace.records import (
    GetJob,
    JobDetail,
    JobRecord,
    ListQueues,
    OperatorAction,
    QueuePage,
    job_actions,
)
from millrace.web import history
from millrace.web.context import RequestContext
from millrace.web.errors import HttpError
from millrace.web.payload_view import PayloadView, show, whole
from millrace.web.render import page
from millrace.web.routing import PageRoute
from millrace.web.timeline import draw
from millrace.web.urls import job_url

#: Characters that are replaced in file names.
_NAMEABLE: Final = re.compile(r"[^A-Za-z0-9._-]+")
#: Maximum number of queues offered as the target of a move.
_MAX_QUEUES: Final = 100


async def job(context: RequestContext) -> Response:
    name, seq = context.path("id"), _seq(context)
    detail = await context.find(JobDetail, job=GetJob(name, seq))
    if detail is None:
        return await _gone(context, name, seq)
    thorough = context.query("journal") == "all"
    known = await history.read(
        context.settings, detail.job.seq, detail.job.jid, detail, thorough=thorough
    )
    queues = await context.ask(QueuePage, queues=ListQueues(limit=_MAX_QUEUES))
    return page(
        context,
        "job.html",
        detail=detail,
        job=detail.job,
        address=job_url(detail.job.jid, detail.job.seq),
        actions=_actions(detail.job),
        payload=show(detail.job.payload, detail.job.size),
        result=None if detail.result is None else show(detail.result, detail.result_size),
        own=_own(detail.protocol_data),
        queues=[each.name for each in queues.queues],
        **_happened(known, thorough=thorough),
    )


async def _gone(context: RequestContext, name: str, seq: int) -> Response:
    """Display a removed job from its events in the journal."""
    thorough = context.query("journal") == "all"
    jid = "" if seq else name
    known = await history.read(context.settings, seq, jid, None, thorough=thorough)
    if not known.events and not seq and name.isascii() and name.isdigit() and len(name) < 19:
        known = await history.read(context.settings, int(name), "", None, thorough=thorough)
    if not known.events:
        more = (
            ""
            if known.complete
            else " Only part of the journal was searched: add ?journal=all to search all of it."
        )
        raise HttpError(404, f"Job not found. The journal has no events for it either.{more}")
    return page(context, "gone.html", last=known.events[-1], **_happened(known, thorough=thorough))


def _happened(known: history.JobHistory, *, thorough: bool) -> dict[str, Any]:
    return {
        "history": known,
        "thorough": thorough,
        "attempts": history.attempts(known.events),
        "timeline": draw(known.events, history.now()),
    }


async def payload(context: RequestContext) -> Response:
    """Send the unchanged payload as a file."""
    raw: bytes = context.request.scope.get("raw_path", b"")
    if raw and not raw.partition(b"?")[0].endswith(b"/payload"):
        context.request.path_params["id"] += "/payload"  # part of the ID
        return await job(context)
    detail = await context.ask(JobDetail, job=GetJob(context.path("id"), _seq(context)))
    name = _NAMEABLE.sub("_", detail.job.jid)[:80] or str(detail.job.seq)
    headers = {"Content-Disposition": f'attachment; filename="{name}.payload"'}
    data = await whole(context, detail)
    return Response(data, headers=headers, media_type="application/octet-stream")


def _seq(context: RequestContext) -> int:
    text = context.query("seq", "0")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise HttpError(400, "`seq` must be a job number.")
    return int(text)


def _actions(job: JobRecord) -> list[OperatorAction]:
    state = "retrying" if job.state == "scheduled" and job.failures else job.state
    hidden = "track" if job.tracked else "untrack"
    return [action for action in job_actions(state) if action.name != hidden]


def _own(own: dict[str, Any]) -> PayloadView | None:
    return show(msgspec.json.encode(own)) if own else None


ROUTES: Final = [
    PageRoute("/jobs/{id:path}/payload", payload, "download of the job's payload"),
    PageRoute(
        "/jobs/{id:path}", job, "one job: payload, timeline, attempts, dependencies, reasons"
    ),
]
