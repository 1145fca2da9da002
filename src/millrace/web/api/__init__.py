"""The HTTP API. Routes and the OpenAPI document are made from the table in routes.py."""

from typing import Final

from millrace.web.doors import Door

from .endpoints import ApiFallback, route
from .openapi import document
from .table import ROOT, TABLE

_KNOWN: Final[list[Door]] = [
    *(route(endpoint) for endpoint in TABLE),
    Door(ROOT + "/openapi.json", document, role=None, kind="api", name="api_document"),
]
_FALLBACK: Final = ("/health", "/ready", "/stats", "/api", "/api/{rest:path}")
DOORS: Final[list[Door]] = [*_KNOWN, *(ApiFallback(path, _KNOWN) for path in _FALLBACK)]
