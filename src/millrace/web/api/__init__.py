"""The HTTP API. Routes and the OpenAPI document are made from the table in table.py."""

from typing import Final

from millrace.web.routing import PageRoute

from .endpoints import ApiFallback, route
from .openapi import document
from .table import ROOT, TABLE

_KNOWN: Final[list[PageRoute]] = [
    *(route(endpoint) for endpoint in TABLE),
    PageRoute(ROOT + "/openapi.json", document, "the OpenAPI document", role=None, kind="api"),
]
_FALLBACK: Final = ("/health", "/ready", "/stats", "/api", "/api/{rest:path}")
ROUTES: Final[list[PageRoute]] = [*_KNOWN, *(ApiFallback(path, _KNOWN) for path in _FALLBACK)]
