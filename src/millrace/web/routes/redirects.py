"""Redirects from the URLs of Faktory and Qless to the corresponding pages.

Identical URLs (`/busy`, `/queues`, `/retries`, `/scheduled`, `/morgue`, `/completed`) need no
redirect. The page of a queue handles the Qless URLs for parts of a queue (`/queues/mail/running`).
"""

from typing import Final
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from millrace.admin.query_language import quoted
from millrace.web.context import RequestContext
from millrace.web.routing import Endpoint, PageRoute

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


async def worker(context: RequestContext) -> Response:
    """Redirect `/workers/NAME`. In Qless, all workers use the Qless protocol."""
    return _to(context, f"/workers/qless/{quote(context.path('wid'), safe='')}")


async def group(context: RequestContext) -> Response:
    """Redirect `/failed/GROUP`."""
    return _search(context, f"group:{quoted(context.path('group'))}")


async def tag(context: RequestContext) -> Response:
    """Redirect `/tag?tag=NAME`."""
    wanted = context.query("tag")
    if not wanted:
        return _to(context, "/tags")
    return _search(context, f"tag:{quoted(wanted)}")


def _moved(path: str, there: str) -> PageRoute:
    async def moved(context: RequestContext) -> Response:
        query = context.request.url.query
        return _to(context, there + (f"?{query}" if query else ""))

    endpoint: Endpoint = moved
    return PageRoute(path, endpoint, f"redirects to `{there}`")


def _search(context: RequestContext, text: str) -> Response:
    return _to(context, f"/jobs?q={quote(text, safe='')}")


def _to(context: RequestContext, path: str) -> Response:
    return RedirectResponse(context.url(path), status_code=302)


ROUTES: Final = [
    *(_moved(path, there) for path, there in MOVED.items()),
    PageRoute("/workers/{wid}", worker, "redirects to `/workers/qless/{wid}`"),
    PageRoute("/failed/{group:path}", group, "redirects to a search for the group"),
    PageRoute("/tag", tag, "redirects to a search for the tag"),
]
