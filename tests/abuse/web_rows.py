"""The requests that each page and each GET route of the HTTP API sends to the server.

The web process is a client of the admin socket. A page is rendered once against a small server,
which records its requests; the large world of measured_server.py then executes them.
"""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent / "web"))

from command_rows import Request, Stage
from told_room import Told, go

from admin_room import Room
from millrace.admin.errors import AdminError
from millrace.protocols.registry import FAKTORY
from millrace.web.app import all_routes

#: Values of path parameters: the largest queue, the job with the most dependents.
PARAMETERS = {
    "name": "big",
    "id": "qless-root",
    "number": "1",
    "fingerprint": "0",
    "protocol": "faktory",
    "wid": "worker-1",
    "key": "1|dead-1",
    "group": "Error1",
    "form": "html",
}
#: The most expensive query string of a route.
QUERIES = {
    "/jobs": "q=nobody+at+all&order=oldest",
    "/api/v1/jobs": "text=nobody&limit=500",
    "/queues": "text=nothing",
    "/api/v1/queues": "text=nothing&limit=500",
    "/tag": "tag=all",
}
REDIRECT = 302
#: Routes that send no request, or a stream that does not end, with the reason.
WITHOUT_REQUESTS = {
    "/api/v1/events": "a stream",
    "/live": "a stream",
    "/api/v1/jobs/{id:name}/events": "reads the lake",
    "/api/v1/actions": "state of the web process",
    "/api/v1/actions/{number:name}": "state of the web process",
    "/api/v1/analytics": "reads the lake",
    "/api/v1/pipeline": "reads the lake",
    "/api/v1/openapi.json": "a file",
    "/health": "state of the web process",
    "/analytics/report.{form}": "reads the lake",
    "/tasks": "state of the web process",
    "/tasks/{number}": "state of the web process",
    "/login": "state of the web process",
    "/static/{name}": "a file",
}


class RecordingControl(Told):
    """Replaces the client of the admin socket: a small server answers."""

    def __init__(self, room: Room) -> None:
        super().__init__()
        self._room = room
        self.requests: list[bytes] = []

    async def raw(self, **request: Any) -> bytes:
        return msgspec.json.encode(self._ask(request)) + b"\n"

    async def follow(self, type_: type[Any], **request: Any) -> AsyncIterator[Any]:
        yield msgspec.convert(self._ask(request), type_)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(msgspec.json.encode(request) + b"\n")
        *_, answer = self._room.says(**request)
        if "error" in answer:
            raise AdminError(answer["error"], answer["code"])
        return answer


def paths() -> list[str]:
    """The path of each GET route."""
    return [route.path for route in all_routes() if "GET" in (route.methods or ())]  # type: ignore[attr-defined]


def requests_of(path: str, room: Room) -> list[bytes]:
    """The requests of one route to the admin socket."""
    control = RecordingControl(room)
    filled = path
    for name, value in PARAMETERS.items():
        for kind in ("", ":name", ":path"):
            filled = filled.replace("{" + name + kind + "}", value)
    assert "{" not in filled, f"{path}: a parameter has no value"
    answer = go(control, filled + (f"?{QUERIES[path]}" if path in QUERIES else ""))
    assert control.requests or answer.status == REDIRECT, f"{path}: {answer.status} {answer.text}"
    return control.requests


def room() -> Room:
    """A small server with the jobs that the parameters name."""
    found = Room()
    found.push("job-1", "big")
    found.push("qless-root", "qless-root")
    found.push("dead-1", "dead")
    found.lease("dead", FAKTORY, "worker-1")
    found.faktory_worker("worker-1")
    return found


def rows() -> Iterator[tuple[str, Callable[[Stage], Request]]]:
    """A name and a request for each request of each route."""
    server = room()
    for path in paths():
        if path in WITHOUT_REQUESTS:
            continue
        for number, request in enumerate(requests_of(path, server), 1):
            yield (
                f"GET {path} ({number})",
                lambda stage, request=request: Request("control", request, stage.name),
            )
