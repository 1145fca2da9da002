"""What one may ask of the API, from which both its doors and its OpenAPI document are made.

An endpoint is a function of a visit and of what was asked. The types say the rest:

    async def queues(visit: Visit, asked: AskedQueues) -> QueueList: ...
    async def move_job(visit: Visit, body: ToQueue) -> Done: ...

`asked` are the query parameters, `body` is the body, and what is returned is the answer. A Reply
has another status or more headers than usual.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, unquote, urlencode

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from millrace.web.doors import MOST_BODY, Door, Refusal, Visit
from millrace.web.settings import Role

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
Handler = Callable[..., Awaitable[Any]]

JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
#: Stands for a slash that is part of a name, while the path is matched.
_SLASH: Final = "\udc2f"

_encode = msgspec.json.Encoder().encode


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No members."""


class Reply(Generic[T]):
    """An answer with a status, or headers, of its own."""

    def __init__(self, answer: T, status: int, headers: dict[str, str] | None = None) -> None:
        self.answer, self.status, self.headers = answer, status, headers or {}


class Endpoint:
    """`Endpoint("GET", "/queues", queues, "read", "Queues by name")`."""

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        role: Role | None,
        summary: str,
        *,
        statuses: tuple[int, ...] = (200,),
        refusals: tuple[int, ...] = (),
        media: str = JSON,
        most: int = MOST_BODY,
    ) -> None:
        self.method, self.path, self.handler, self.role = method, path, handler, role
        self.summary, self.statuses, self.media, self.most = summary, statuses, media, most
        hints = get_type_hints(handler, include_extras=True)
        self.asked: type[msgspec.Struct] = hints.get("asked", Nothing)
        self.body: Any = hints.get("body", Nothing)
        returned = hints["return"]
        self.answer: Any = get_args(returned)[0] if get_origin(returned) is Reply else returned
        self.refusals = refusals
        self._takes = inspect.signature(handler).parameters.keys()

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def needs_body(self) -> bool:
        """Has the body a member that must be there?"""
        if not isinstance(self.body, type):
            return True
        return any(field.required for field in msgspec.structs.fields(self.body))

    async def answer_to(self, visit: Visit) -> Response:
        more: dict[str, Any] = {}
        asked = parameters(visit, self.asked)
        if "asked" in self._takes:
            more["asked"] = asked
        if self.method != "GET":
            body = await self._read(visit)
            if "body" in self._takes:
                more["body"] = body
        found = await self.handler(visit, **more)
        if isinstance(found, Response):
            return found
        if not isinstance(found, Reply):
            found = Reply(found, self.statuses[0])
        after = getattr(found.answer, "next", None)
        if after:
            found.headers["Link"] = f'<{_next(visit, after)}>; rel="next"'
        return Response(_encode(found.answer), found.status, found.headers, media_type=JSON)

    async def _read(self, visit: Visit) -> Any:
        """The body. What has none may leave out its type; a page's form never passes."""
        kind = visit.request.headers.get("content-type")
        if kind is not None and kind.partition(";")[0].strip().lower() != JSON:
            raise Refusal(415, "send JSON, and say so (Content-Type: application/json)")
        data = await visit.body(self.most)
        if not data:
            if self.needs_body:
                raise Refusal(400, "a body is missing: send JSON")
            return self.body()
        if kind is None:
            raise Refusal(415, "say that it is JSON (Content-Type: application/json)")
        return decoded(data, self.body)


def decoded(data: bytes, type_: Any) -> Any:
    try:
        data.decode()  # what is kept as it came is not looked at otherwise
        return msgspec.json.decode(data, type=type_)
    except msgspec.ValidationError as error:
        raise Refusal(422, f"the body is not as it should be: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"the body is no JSON: {error}") from None
    except RecursionError:
        raise Refusal(400, "the body is nested too deep") from None


def parameters(visit: Visit, type_: type[S]) -> S:
    """The query parameters."""
    fields = msgspec.structs.fields(type_)
    lists = {field.name for field in fields if field.default_factory is list}
    found: dict[str, Any] = {}
    try:
        pairs = parse_qsl(
            visit.request.url.query, keep_blank_values=True, max_num_fields=100, errors="strict"
        )
    except ValueError as error:
        raise Refusal(422, f"the parameters cannot be read: {error}") from None
    for name, value in pairs:
        if name in lists:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise Refusal(422, f"the parameter `{name}` was given twice")
        else:
            found[name] = value
    try:
        return msgspec.convert(found, type_, strict=False)
    except msgspec.ValidationError as error:
        text = str(error).replace("Object contains unknown field", "there is no parameter")
        raise Refusal(422, f"{text} (in the address)") from None


def _next(visit: Visit, cursor: str) -> str:
    pairs = parse_qsl(visit.request.url.query, keep_blank_values=True)
    kept = [(name, value) for name, value in pairs if name != "cursor"]
    path = visit.request.scope["raw_path"].decode("ascii", "replace")
    if not path.startswith(visit.prefix):
        path = visit.prefix + path
    return f"{path}?{urlencode([*kept, ('cursor', cursor)])}"


# Addresses


class Name(Convertor[str]):
    """A stranger's name in a path: of any characters, a slash as %2F."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.replace(_SLASH, "/")

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", Name())


class ApiDoor(Door):
    """A slash in a name is none of the address, if it is written as %2F."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        raw: bytes = scope.get("raw_path") or b""
        if scope["type"] == "http" and b"%2f" in raw.lower():
            text = raw.decode("ascii", "replace").replace("%2f", "%2F")
            path = _SLASH.join(unquote(part) for part in text.split("%2F"))
            prefix = scope.get("root_path", "")
            if not path.startswith(prefix):
                path = prefix + path
            scope = {**scope, "path": path}
        return super().matches(scope)


class Elsewhere(ApiDoor):
    """Every other address below a path, and every other method: a problem that says which."""

    def __init__(self, path: str, doors: list[Door]) -> None:
        self._doors = doors
        super().__init__(path, self._refuse, role="read", kind="api", name="api_elsewhere")
        self.methods = None  # all of them

    async def _refuse(self, visit: Visit) -> Response:
        scope = visit.request.scope
        there = [door for door in self._doors if door.matches(scope)[0] is not Match.NONE]
        allowed = {method for door in there for method in door.methods or ()}
        if not allowed:
            raise Refusal(404, "there is nothing at this address; /api/v1/openapi.json says where")
        headers = {"Allow": ", ".join(sorted(allowed | {"OPTIONS"}))}
        if visit.request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
        raise Refusal(405, f"{visit.request.method} is not what this address is for", headers)


def door(endpoint: Endpoint) -> Door:
    return ApiDoor(
        endpoint.path,
        endpoint.answer_to,
        role=endpoint.role,
        methods=(endpoint.method,),
        kind="api",
        name="api_" + endpoint.name,
    )
