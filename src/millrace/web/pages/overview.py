"""The overview, and the live stream that it listens to."""

from typing import Final

from starlette.responses import Response, StreamingResponse

from millrace.protocols.control.messages import Overview
from millrace.web.doors import Door, Refusal, Visit
from millrace.web.rendering import page


async def overview(visit: Visit) -> Response:
    found = await visit.ask(Overview, overview=True)
    return page(visit, "overview.html", charts=True, overview=found)


async def live(visit: Visit) -> Response:
    if visit.room.live.is_full:
        raise Refusal(503, "too many pages are open")
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        visit.room.live.events(), media_type="text/event-stream", headers=headers
    )


DOORS: Final = [Door("/", overview, role="read"), Door("/live", live, role="read")]
