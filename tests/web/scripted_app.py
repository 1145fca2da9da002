"""A web application with scripted replies of the server. It records the requests.
app = scripted_app(workers=Workers([...], 1, ""))
answer = get(app, "/busy")
"""

import asyncio
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
from asgi_client import FORM, TOKENS, AppClient, bearer, web_settings

from millrace.admin.errors import AdminError
from millrace.records import SocketRequest

READER, OPERATOR, CHIEF = TOKENS
#: Settings with tokens of all roles.
GUARDED = {"tokens": TOKENS}


class ScriptedAdminClient:
    """Fails like a server for a request or reply that is not in the contract."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []

    async def ask(self, type_: type[Any], *, patience: float = 1.0, **request: Any) -> Any:
        assert patience > 0
        wanted = msgspec.json.decode(msgspec.json.encode(request), type=SocketRequest)
        (name,) = request
        self.asked.append((name, getattr(wanted, name)))
        answer = self.answers.get(name, {"ok": True})
        if isinstance(answer, AdminError):
            raise answer
        return msgspec.json.decode(msgspec.json.encode(answer), type=type_)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def scripted_app(settings: dict[str, Any] | None = None, **answers: Any) -> AppClient:
    """An app without a password, unless the settings have one. Replies are given by the name of the
    request.
    """
    web_app = AppClient(web_settings(**{"password": "", "tokens": []} | (settings or {})))
    web_app.control = web_app.room.control = ScriptedAdminClient(answers)
    return web_app


def refusing(reason: str) -> AdminError:
    return AdminError(reason, "unavailable")


def get(web_app: AppClient, path: str, secret: str = "") -> Answer:
    return _exchange(web_app, "GET", path, {"accept": "text/html"}, b"", secret)


def post(web_app: AppClient, path: str, form: dict[str, Any], secret: str = "") -> Answer:
    return _exchange(web_app, "POST", path, FORM, urlencode(form, doseq=True).encode(), secret)


def _exchange(
    web_app: AppClient, method: str, path: str, headers: dict[str, str], body: bytes, secret: str
) -> Answer:
    if secret:
        headers = headers | bearer(secret)
    found = asyncio.run(web_app.exchange(method, path, headers, body, client="127.0.0.1"))
    return Answer(found.status, dict(found.headers), found.body)
