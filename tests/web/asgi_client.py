"""Requests to the web application without a socket, over ASGI."""

import asyncio
import itertools
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from millrace.admin.errors import AdminError
from millrace.config.values import Token
from millrace.web.app import application
from millrace.web.settings import WebSettings
from millrace.web.state import AppState

PASSWORD = "correct horse"
READ, OPERATE, ADMIN = "r" * 16, "o" * 16, "a" * 16
TOKENS = [
    Token("read", "reader", READ),
    Token("operate", "operator", OPERATE),
    Token("admin", "chief", ADMIN),
]
FORM = {"content-type": "application/x-www-form-urlencoded"}


def web_settings(**changes: Any) -> WebSettings:
    """WebSettings of a server with a password and tokens, unless changed."""
    usual: dict[str, Any] = {
        "control": "/nowhere/control",
        "data": "",
        "lake": "",
        "host": "127.0.0.1",
        "password": PASSWORD,
        "tokens": TOKENS,
        "read_only": False,
        "hosts": [],
        "session": 3600.0,
        "cert": "",
        "key": "",
        "sockets": [],
    }
    return msgspec.convert(usual | changes, WebSettings)


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name.lower()), None)

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies as set, with their attributes."""
        found = [value for name, value in self.headers if name == "set-cookie"]
        return {value.partition("=")[0]: value for value in found}

    @property
    def session(self) -> str:
        """The session cookie, as a browser sends it back."""
        return self.cookies["millrace_session"].partition(";")[0]


class Silent:
    """A server that answers no request, and records the requests."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def ask(self, _type: object, **request: Any) -> Any:
        return await self.raw(**request)

    async def raw(self, **request: Any) -> bytes:
        request.pop("patience", None)
        self.asked.append(request)
        raise AdminError("no server", "unavailable")

    async def follow(self, _type: object, **request: Any) -> Any:
        await self.raw(**request)
        yield None

    def close(self) -> None:
        pass

    @property
    def noted(self) -> list[tuple[str, str]]:
        """The entries for the audit log: action and user."""
        notes = [request["note"] for request in self.asked if "note" in request]
        return [(note.action, note.by) for note in notes]


class AppClient:
    """A web application with a silent server."""

    def __init__(self, settings: WebSettings | None = None) -> None:
        self.now = 1_800_000_000.0
        self.room = AppState(settings or web_settings())
        self.control = Silent()
        self.room.control = self.room.tasks._control = self.room.live._control = self.control
        self.room.authenticator._clock = self.room.authenticator._steady = lambda: self.now
        self._app = application(self.room)

    async def exchange(
        self,
        method: str,
        target: str,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        client: str = "192.0.2.1",
        scheme: str = "http",
        pieces: int = 100,
    ) -> Answer:
        """Send one request. Read this number of parts of an endless response."""
        raw_path, _, query = target.partition("?")
        named = {"host": "localhost:7420"} | (headers or {})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": ("127.0.0.1", 7420),
            "client": (client, 50_000),
            "scheme": scheme,
            "method": method,
            "root_path": "",
            "path": unquote(raw_path),
            "raw_path": raw_path.encode(),
            "query_string": query.encode(),
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in named.items()],
        }
        sent: list[Any] = []
        enough = asyncio.Event()
        messages = itertools.chain([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            for message in messages:
                return message
            await enough.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if len(sent) > pieces:
                enough.set()
                await asyncio.sleep(0)

        await asyncio.wait_for(self._app(scope, receive, send), 20)
        start, *parts = sent
        return Answer(
            start["status"],
            [(k.decode().lower(), v.decode("latin-1")) for k, v in start["headers"]],
            b"".join(piece.get("body", b"") for piece in parts),
        )

    async def settle(self) -> None:
        """Wait until the audit entries are written."""
        while self.room._noting:
            await asyncio.wait(self.room._noting)

    async def log_in(self, secret: str = PASSWORD, **more: Any) -> Answer:
        body = f"password={secret.replace(' ', '+')}&next={more.pop('next', '/')}".encode()
        headers = FORM | more.pop("headers", {})
        return await self.exchange("POST", "/login", headers, body, **more)


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}
