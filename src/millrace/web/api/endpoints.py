"""Endpoints of the API: the table of routes is made of them, and so is the OpenAPI document.

A handler takes the request context and what its annotations declare:

    async def get_queue(visit: Visit, asked: QueueParameters) -> QueueDetail: ...
    async def push(visit: Visit, body: JobBodies) -> PushedJobs: ...

`asked` are the query parameters and `body` is the body. The result is a record, which is sent in
its HTTP form, or a ApiReply with a status or headers of its own.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, unquote, urlencode

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from millrace.records import NoMembers, Record
from millrace.records.forms import http, to_http
from millrace.records.types import Doc
from millrace.web.context import MAX_BODY_BYTES, RequestContext
from millrace.web.errors import HttpError
from millrace.web.routing import PageRoute
from millrace.web.settings import Role

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
Handler = Callable[..., Awaitable[Any]]

JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
MAX_PARAMETERS: Final = 100
#: Stands for a slash that is part of a name, while the path is matched.
_SLASH: Final = "\udc2f"

_encode = msgspec.json.Encoder().encode


class ProblemDetails(msgspec.Struct):
    """Problem details (RFC 9457)."""

    type: Annotated[str, Doc("Type", "Always `about:blank`.")]
    title: Annotated[str, Doc("Title", "Phrase of the status code.")]
    status: Annotated[int, Doc("Status", "HTTP status code.")]
    detail: Annotated[str, Doc("Detail", "Reason, for a person.")]


class ApiReply(Generic[T]):
    """A result with a status or headers of its own."""

    def __init__(self, answer: T, status: int, headers: dict[str, str] | None = None) -> None:
        self.answer, self.status, self.headers = answer, status, headers or {}


class Endpoint:
    """`Endpoint("GET", "/queues", list_queues, "read", "List queues by name")`."""

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
        most: int = MAX_BODY_BYTES,
    ) -> None:
        self.method, self.path, self.handler, self.role = method, path, handler, role
        self.summary, self.statuses, self.media, self.most = summary, statuses, media, most
        hints = get_type_hints(handler, include_extras=True)
        self.asked: type[msgspec.Struct] = hints.get("asked", NoMembers)
        self.body: Any = hints.get("body", NoMembers)
        returned = hints["return"]
        answer = get_args(returned)[0] if get_origin(returned) is ApiReply else returned
        is_record = isinstance(answer, type) and issubclass(answer, Record)
        self.answer: Any = http(answer).type if is_record else answer
        self.refusals = refusals
        self._takes = inspect.signature(handler).parameters.keys()

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def needs_body(self) -> bool:
        """True if the body has a required member."""
        if not isinstance(self.body, type):
            return True
        return any(field.required for field in msgspec.structs.fields(self.body))

    async def answer_to(self, context: RequestContext) -> Response:
        more: dict[str, Any] = {}
        asked = parameters(context, self.asked)
        if "asked" in self._takes:
            more["asked"] = asked
        if self.method != "GET":
            body = await self._read(context)
            if "body" in self._takes:
                more["body"] = body
        found = await self.handler(context, **more)
        if isinstance(found, Response):
            return found
        if not isinstance(found, ApiReply):
            found = ApiReply(found, self.statuses[0])
        answer = to_http(found.answer) if isinstance(found.answer, Record) else found.answer
        after = getattr(answer, "next", None)
        if after:
            found.headers["Link"] = f'<{_next(context, after)}>; rel="next"'
        return Response(_encode(answer), found.status, found.headers, media_type=JSON)

    async def _read(self, context: RequestContext) -> Any:
        """The body. A request without one may omit the content type; HTML forms never match."""
        kind = context.request.headers.get("content-type")
        if kind is not None and kind.partition(";")[0].strip().lower() != JSON:
            raise HttpError(415, "Send JSON with Content-Type: application/json.")
        data = await context.body(self.most)
        if not data:
            if self.needs_body:
                raise HttpError(400, "The request needs a JSON body.")
            return self.body()
        if kind is None:
            raise HttpError(415, "Send JSON with Content-Type: application/json.")
        return decoded(data, self.body)


def decoded(data: bytes, type_: Any) -> Any:
    try:
        data.decode()  # msgspec does not check raw members
        return msgspec.json.decode(data, type=type_)
    except msgspec.ValidationError as error:
        raise HttpError(422, f"Invalid request body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HttpError(400, f"The request body is not valid JSON: {error}") from None
    except RecursionError:
        raise HttpError(400, "The request body is nested too deeply.") from None


def parameters(context: RequestContext, type_: type[S]) -> S:
    """The query parameters."""
    fields = msgspec.structs.fields(type_)
    lists = {field.encode_name for field in fields if field.default_factory is list}
    found: dict[str, Any] = {}
    try:
        pairs = parse_qsl(
            context.request.url.query,
            keep_blank_values=True,
            max_num_fields=MAX_PARAMETERS,
            errors="strict",
        )
    except ValueError as error:
        raise HttpError(422, f"Invalid query parameters: {error}") from None
    for name, value in pairs:
        if name in lists:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise HttpError(422, f"Parameter `{name}` was given more than once.")
        else:
            found[name] = value
    try:
        asked = msgspec.convert(found, type_, strict=False)
    except msgspec.ValidationError as error:
        text = str(error).replace("Object contains unknown field", "Unknown parameter")
        raise HttpError(422, f"Invalid query parameters: {text}") from None
    for field in fields:  # a lenient conversion reads the text `null` as None
        if field.encode_name in found and getattr(asked, field.name) is None:
            raise HttpError(422, f"Invalid query parameters: `{field.encode_name}` is null")
    return asked


def _next(context: RequestContext, cursor: str) -> str:
    pairs = parse_qsl(context.request.url.query, keep_blank_values=True)
    kept = [(name, value) for name, value in pairs if name != "cursor"]
    path = context.request.scope["raw_path"].decode("ascii", "replace")
    if not path.startswith(context.prefix):
        path = context.prefix + path
    return f"{path}?{urlencode([*kept, ('cursor', cursor)])}"


# Paths


class NameConvertor(Convertor[str]):
    """A name in a path: any characters, a slash as %2F."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.replace(_SLASH, "/")

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", NameConvertor())


class ApiRoute(PageRoute):
    """A route in which %2F is part of a name and not a separator."""

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


class ApiFallback(ApiRoute):
    """All other paths and methods: problem details with 404 or 405."""

    def __init__(self, path: str, routes: list[PageRoute]) -> None:
        self._routes = routes
        super().__init__(path, self._refuse, "", kind="api")
        self.methods = None  # all of them

    async def _refuse(self, context: RequestContext) -> Response:
        scope = context.request.scope
        there = [route for route in self._routes if route.matches(scope)[0] is not Match.NONE]
        allowed = {method for route in there for method in route.methods or ()}
        if not allowed:
            raise HttpError(404, "No route matches this path. See /api/v1/openapi.json.")
        headers = {"Allow": ", ".join(sorted(allowed | {"OPTIONS"}))}
        if context.request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
        raise HttpError(
            405, f"Method {context.request.method} is not allowed for this path.", headers
        )


def route(endpoint: Endpoint) -> PageRoute:
    return ApiRoute(
        endpoint.path,
        endpoint.answer_to,
        endpoint.summary,
        role=endpoint.role,
        method=endpoint.method,
        kind="api",
    )
