"""Errors that end a request, and problem details (RFC 9457)."""

from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

STATUS: Final = {
    "bad request": 400,
    "not found": 404,
    "conflict": 409,
    "refused": 403,
    "too large": 413,
    "stopped": 409,
    "unavailable": 503,
}
TITLES: Final = {
    400: "Bad request",
    401: "Sign in",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Request too large",
    415: "Unsupported media type",
    422: "Invalid input",
    429: "Too many failed attempts",
    500: "Internal server error",
    503: "Server unavailable",
}


class HttpError(Exception):
    """The answer is an error."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers or {}


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error in the format of RFC 9457."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    body["detail"] = detail
    return Response(
        msgspec.json.encode(body), status, headers, media_type="application/problem+json"
    )
