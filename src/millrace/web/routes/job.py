"""The page of an existing or removed job."""

import re
from typing import Any, Final, NamedTuple

import msgspec
from starlette.responses import Response

from millrace.admin.errors import AdminError
from millrace.records import GetJob, JobDetail, ListQueues, QueuePage
from millrace.web import history
from millrace.web.doors import Door, Refusal, Visit
from millrace.web.payload_view import Shown, show, whole
from millrace.web.render import count, page
from millrace.web.timeline import draw
from millrace.web.urls import job_path

#: Characters that are replaced in file names.
_NAMEABLE: Final = re.compile(r"[^A-Za-z0-9._-]+")
#: Actions for each state, in addition to the actions available in all states.
_ACTIONS: Final[dict[str, tuple[str, ...]]] = {
    "scheduled": ("run", "kill", "delete"),
    "blocked": ("kill", "delete"),
    "ready": ("kill", "delete"),
    "leased": ("timeout", "delete"),
    "done": ("delete",),
    "dead": ("retry", "delete"),
}
_TITLES: Final = {
    "retry": "Retry",
    "run": "Run now",
    "kill": "Kill",
    "delete": "Delete",
    "timeout": "Time out",
}
_QUESTIONS: Final = {
    "kill": "Kill this job? It moves to the dead set.",
    "delete": "Delete this job? This cannot be undone.",
    "timeout": "End the lease of this job? Another worker may run it.",
}
#: Maximum number of queues offered as the target of a move.
_MOST_QUEUES: Final = 100


class Action(NamedTuple):
    name: str
    title: str
    question: str


async def job(visit: Visit) -> Response:
    name, seq = visit.path("id"), _seq(visit)
    try:
        detail = await _detail(visit, name, seq)
    except AdminError as error:
        if error.code != "not found":
            raise
        return await _gone(visit, name, seq)
    thorough = visit.query("journal") == "all"
    known = await history.read(
        visit.settings, detail.job.seq, detail.job.jid, detail, thorough=thorough
    )
    queues = await visit.ask(QueuePage, queues=ListQueues(most=_MOST_QUEUES))
    return page(
        visit,
        "job.html",
        detail=detail,
        job=detail.job,
        address=job_path(detail.job.jid, detail.job.seq),
        actions=_actions(detail),
        payload=show(detail.payload, detail.job.size),
        result=None if detail.result is None else show(detail.result, detail.result_size),
        own=_own(detail.own),
        queues=[each.name for each in queues.queues],
        **_happened(known, thorough=thorough),
    )


async def _gone(visit: Visit, name: str, seq: int) -> Response:
    """Display a removed job from its events in the journal."""
    thorough = visit.query("journal") == "all"
    jid = "" if seq else name
    known = await history.read(visit.settings, seq, jid, None, thorough=thorough)
    if not known.events and not seq and name.isascii() and name.isdigit() and len(name) < 19:
        known = await history.read(visit.settings, int(name), "", None, thorough=thorough)
    if not known.events:
        more = (
            ""
            if known.whole
            else (
                " Not all of the journal was looked at: add ?journal=all to the address, and it is."
            )
        )
        raise Refusal(404, f"Job not found. The journal has no events of it.{more}")
    return page(visit, "gone.html", last=known.events[-1], **_happened(known, thorough=thorough))


def _happened(known: history.History, *, thorough: bool) -> dict[str, Any]:
    return {
        "history": known,
        "thorough": thorough,
        "attempts": history.attempts(known.events),
        "timeline": draw(known.events, history.now()),
    }


async def payload(visit: Visit) -> Response:
    """Send the unchanged payload as a file."""
    raw: bytes = visit.request.scope.get("raw_path", b"")
    if raw and not raw.partition(b"?")[0].endswith(b"/payload"):
        visit.request.path_params["id"] += "/payload"  # part of the ID
        return await job(visit)
    detail = await _detail(visit, visit.path("id"), _seq(visit))
    name = _NAMEABLE.sub("_", detail.job.jid)[:80] or str(detail.job.seq)
    headers = {"Content-Disposition": f'attachment; filename="{name}.payload"'}
    data = await whole(visit, detail)
    return Response(data, headers=headers, media_type="application/octet-stream")


async def _detail(visit: Visit, name: str, seq: int) -> JobDetail:
    return await visit.ask(JobDetail, job=GetJob(name, seq))


def _seq(visit: Visit) -> int:
    text = visit.query("seq", "0")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Refusal(400, "`seq` must be a job number.")
    return int(text)


def _actions(detail: JobDetail) -> list[Action]:
    found = []
    for name in _ACTIONS[detail.job.state]:
        question = _QUESTIONS.get(name, "")
        if name == "delete":
            question += _let_go(len(detail.dependents) + detail.dependents_more)
        found.append(Action(name, _TITLES[name], question))
    return found


def _let_go(waiting: int) -> str:
    """Describe the effect of a deletion on dependent jobs."""
    if not waiting:
        return ""
    if waiting == 1:
        return " One job waits for it, and will wait for it no longer: it may run."
    return f" {count(waiting)} jobs depend on it and may run."


def _own(own: dict[str, Any]) -> Shown | None:
    return show(msgspec.json.encode(own)) if own else None


DOORS: Final = [
    Door("/jobs/{id:path}/payload", payload, role="read"),
    Door("/jobs/{id:path}", job, role="read"),
]
