"""A house whose server is only pretended: what it answers is given, and what it was asked is kept.

house = pretended(workers=Workers([...], 1, ""))
answer = get(house, "/busy")
"""

import asyncio
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
from knocking import FORM, TOKENS, House, bearer, told

from millrace.admin.errors import AdminError
from millrace.records import SocketRequest

READER, OPERATOR, CHIEF = TOKENS
#: A house that asks who one is.
GUARDED = {"tokens": TOKENS}


class PretendedControl:
    """What is no request of the contract, or no answer of it, fails as it would with a server."""

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


def pretended(settings: dict[str, Any] | None = None, **answers: Any) -> House:
    """Open to everybody, unless its settings say otherwise. Answers go by the name of what is
    asked.
    """
    house = House(told(**{"password": "", "tokens": []} | (settings or {})))
    house.control = house.room.control = PretendedControl(answers)
    return house


def refusing(reason: str) -> AdminError:
    return AdminError(reason, "unavailable")


def get(house: House, path: str, secret: str = "") -> Answer:
    return _knock(house, "GET", path, {"accept": "text/html"}, b"", secret)


def post(house: House, path: str, form: dict[str, Any], secret: str = "") -> Answer:
    return _knock(house, "POST", path, FORM, urlencode(form, doseq=True).encode(), secret)


def _knock(
    house: House, method: str, path: str, headers: dict[str, str], body: bytes, secret: str
) -> Answer:
    if secret:
        headers = headers | bearer(secret)
    found = asyncio.run(house.knock(method, path, headers, body, client="127.0.0.1"))
    return Answer(found.status, dict(found.headers), found.body)
