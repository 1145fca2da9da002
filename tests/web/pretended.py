"""The web room with a server that is only pretended: pages without a process, a socket or a queue.

room = pretended(Workers=Workers([...], 1, ""))
answer = get(room, "/busy")
"""

import asyncio
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes, urlencode

import msgspec

from millrace.protocols.control.messages import Request
from millrace.web.app import application
from millrace.web.control import ControlError
from millrace.web.room import Room
from millrace.web.settings import Settings, Token

OPEN: dict[str, Any] = {
    "control": "/nowhere/control",
    "data": "",
    "lake": "",
    "host": "127.0.0.1",
    "password": "",
    "tokens": [],
    "read_only": False,
    "hosts": [],
    "session": 3600.0,
    "cert": "",
    "key": "",
    "sockets": [],
}
READER = Token("read", "reader", "sees")
OPERATOR = Token("operate", "operator", "works")
ADMIN = Token("admin", "chief", "does")


class PretendedControl:
    """Answers with what it was given, and remembers what it was asked. What is not a request of the
    contract, or no answer of it, fails as it would with a server.
    """

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []

    async def ask(self, type_: type[Any], *, patience: float | None = None, **request: Any) -> Any:
        assert patience is None or patience > 0
        told = msgspec.json.decode(msgspec.json.encode(request), type=Request)
        (name,) = request
        self.asked.append((name, getattr(told, name)))
        answer = self.answers.get(name, {"ok": True})
        if isinstance(answer, Exception):
            raise answer
        return msgspec.json.decode(msgspec.json.encode(answer), type=type_)

    def close(self) -> None:
        pass


class Pretended(Room):
    control: Any


def pretended(settings: dict[str, Any] | None = None, **answers: Any) -> Pretended:
    """`settings` are those that are not as in OPEN; answers go by the name of what is asked."""
    room = Pretended(Settings(**OPEN | (settings or {})))
    room.control = PretendedControl(answers)
    return room


def refusing(reason: str) -> ControlError:
    return ControlError(reason, "unavailable")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def get(room: Room, path: str, secret: str = "") -> Answer:
    return asyncio.run(_call(room, "GET", path, b"", secret))


def post(room: Room, path: str, form: dict[str, Any], secret: str = "") -> Answer:
    return asyncio.run(_call(room, "POST", path, urlencode(form, doseq=True).encode(), secret))


async def _call(room: Room, method: str, path: str, body: bytes, secret: str) -> Answer:
    there, _, query = path.partition("?")
    headers = {"host": "localhost", "accept": "text/html"}
    if secret:
        headers["authorization"] = f"Bearer {secret}"
    if method == "POST":
        headers |= {
            "content-type": "application/x-www-form-urlencoded",
            "origin": "http://localhost",
        }
    scope = {
        "type": "http",
        "method": method,
        "scheme": "http",
        "path": unquote_to_bytes(there).decode(),
        "raw_path": there.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }
    sent: list[dict[str, Any]] = []
    given = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        try:
            return next(given)
        except StopIteration:
            return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await application(room)(scope, receive, send)
    start = sent[0]
    told = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], told, b"".join(each.get("body", b"") for each in sent[1:]))
