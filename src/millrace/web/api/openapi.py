"""The OpenAPI document, made from the table of routes."""

import functools
import re
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.responses import Response

from millrace import __version__
from millrace.pipeline.report.model import Report
from millrace.records import NoMembers
from millrace.web.context import RequestContext

from .endpoints import BYTES, JSON, Endpoint, ProblemDetails
from .report_schema import describe
from .table import ROOT, TABLE

PROBLEM: Final = "application/problem+json"
_REF: Final = "#/components/schemas/{name}"
#: The prefix of the schemas of the report, which has queues, days and workers of its own.
_REPORTED: Final = "Analytics"
_PARAMETER: Final = re.compile(r"{(\w+)(?::\w+)?}")
_GROUPS: Final = {
    "overview": "Overview",
    "analytics": "Analytics",
    "queues": "Queues",
    "jobs": "Jobs",
    "actions": "Actions",
    "failures": "Failures",
    "workers": "Workers",
    "leases": "Leases",
    "recurring": "Recurring and limits",
    "tracked": "Recurring and limits",
    "tags": "Recurring and limits",
    "throttles": "Recurring and limits",
}
#: The parameters in paths.
_PATH: Final = {
    "name": "Name of the queue.",
    "id": "ID of the job, or its number if no job has this ID.",
    "number": "Number of the bulk action.",
    "fingerprint": "Fingerprint of the failure group.",
    "protocol": "Protocol of the worker.",
    "wid": "ID of the worker.",
    "token": "Token of the lease.",
}
_ABOUT: Final = """\
All functions of the web interface, and pushing and working jobs from scripts.

Errors are problem details (RFC 9457). Times are RFC 3339 in UTC, durations are seconds. Names in
paths are percent-encoded, a slash as `%2F`. Lists are paged: pass `next` of a response as `cursor`
of the next request; the header `Link` has its address. Unknown parameters and members are errors.
"""


async def document(context: RequestContext) -> Response:
    made = _document() | {"servers": [{"url": context.prefix or "/"}]}
    return Response(msgspec.json.encode(made), media_type=JSON)


@functools.cache
def _document() -> dict[str, Any]:
    return make()


def make() -> dict[str, Any]:
    types: list[Any] = [ProblemDetails]
    for endpoint in TABLE:
        types += [endpoint.body, endpoint.answer]
    wanted = [each for each in dict.fromkeys(types) if each not in {NoMembers, Response, Report}]
    _, components = msgspec.json.schema_components(wanted, ref_template=_REF)
    _, reported = msgspec.json.schema_components([Report], ref_template=_template(Report))
    describe(reported)
    components |= {_REPORTED + name: schema for name, schema in reported.items()}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in TABLE:
        address = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(address, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millrace", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{"token": []}, {"password": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    role = f"Requires the role `{endpoint.role}`." if endpoint.role else "Requires no role."
    made: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": role,
        "tags": [_group(endpoint)],
        "parameters": [*_in_path(endpoint), *_in_query(endpoint)],
        "responses": _responses(endpoint),
    }
    if endpoint.role is None:
        made["security"] = []
    if endpoint.body is not NoMembers:
        (schema,), _ = msgspec.json.schema_components([endpoint.body], ref_template=_REF)
        made["requestBody"] = {
            "required": endpoint.needs_body,
            "content": {JSON: {"schema": schema}},
        }
    return made


def _group(endpoint: Endpoint) -> str:
    first = endpoint.path.removeprefix(ROOT + "/").partition("/")[0]
    return _GROUPS.get(first, "Server")


def _in_path(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PATH[name],
            "schema": {"type": "string", "minLength": 1},
        }
        for name in _PARAMETER.findall(endpoint.path)
    ]


def _in_query(endpoint: Endpoint) -> list[dict[str, Any]]:
    (_,), components = msgspec.json.schema_components([endpoint.asked], ref_template=_REF)
    found = []
    for name, schema in components[endpoint.asked.__name__]["properties"].items():
        described = {"description": schema.pop("description")} if "description" in schema else {}
        # A parameter may be absent, and never is null.
        plain = _without_null(schema) if schema.get("default", "") is None else schema
        found.append({"name": name, "in": "query", **described, "schema": plain})
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of `X | None`, as the schema of `X`."""
    kept = {key: value for key, value in schema.items() if key not in {"anyOf", "enum", "default"}}
    if "enum" in schema:
        return kept | {"enum": [value for value in schema["enum"] if value is not None]}
    (plain,) = (each for each in schema["anyOf"] if each != {"type": "null"})
    return {**plain, **kept}


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.media == BYTES:
        content: dict[str, Any] = {BYTES: {}}
    else:
        template = _template(endpoint.answer)
        (schema,), _ = msgspec.json.schema_components([endpoint.answer], ref_template=template)
        content = {JSON: {"schema": schema}}
    made = {}
    for status in endpoint.statuses:
        made[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    problem = {PROBLEM: {"schema": {"$ref": _REF.format(name="ProblemDetails")}}}
    for status in _refusals(endpoint):
        made[str(status)] = {"description": HTTPStatus(status).phrase, "content": problem}
    return made


def _template(type_: Any) -> str:
    return _REF.format(name=_REPORTED + "{name}") if type_ is Report else _REF


def _refusals(endpoint: Endpoint) -> list[int]:
    found = {400, 403, 422, 503, *endpoint.refusals}
    if endpoint.role is not None:
        found |= {401, 429}
    if endpoint.method == "POST":
        found |= {413, 415}
    return sorted(found)
