"""Redirects from the URLs of Faktory and Qless to the corresponding pages.

Identical URLs (`/busy`, `/queues`, `/retries`, `/scheduled`, `/morgue`, `/completed`) need no
redirect. The page of a queue handles the Qless URLs for parts of a queue (`/queues/mail/running`).
"""

from typing import Final
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from millrace.admin.query_language import quoted
from millrace.web.doors import Door, Endpoint, Visit

#: Old paths and the corresponding new paths.
MOVED: Final = {
    "/workers": "/busy",
    "/dead": "/morgue",
    "/failed": "/failures",
    "/track": "/tracked",
    "/config": "/configuration/qless",
    "/about": "/server",
    "/debug": "/server",
    "/queues.json": "/api/v1/queues",
    "/failed.json": "/api/v1/failures",
}


async def worker(visit: Visit) -> Response:
    """Redirect `/workers/NAME`. In Qless, all workers use the Qless protocol."""
    return _to(visit, f"/workers/qless/{quote(visit.path('wid'), safe='')}")


async def group(visit: Visit) -> Response:
    """Redirect `/failed/GROUP`."""
    return _search(visit, f"group:{quoted(visit.path('group'))}")


async def tag(visit: Visit) -> Response:
    """Redirect `/tag?tag=NAME`."""
    wanted = visit.query("tag")
    if not wanted:
        return _to(visit, "/tags")
    return _search(visit, f"tag:{quoted(wanted)}")


def _moved(path: str, there: str) -> Door:
    async def moved(visit: Visit) -> Response:
        query = visit.request.url.query
        return _to(visit, there + (f"?{query}" if query else ""))

    endpoint: Endpoint = moved
    return Door(path, endpoint, role="read", name=f"moved{path.replace('/', '_')}")


def _search(visit: Visit, text: str) -> Response:
    return _to(visit, f"/jobs?q={quote(text, safe='')}")


def _to(visit: Visit, path: str) -> Response:
    return RedirectResponse(visit.url(path), status_code=302)


DOORS: Final = [
    *(_moved(path, there) for path, there in MOVED.items()),
    Door("/workers/{wid}", worker, role="read", name="worker_of_qless"),
    Door("/failed/{group:path}", group, role="read", name="group_of_qless"),
    Door("/tag", tag, role="read", name="tag_of_qless"),
]
