"""The HTTP API. `table.py` says what there is; doors and the OpenAPI document are made from it."""

from typing import Final

from millrace.web.doors import Door

from .endpoints import Elsewhere, door
from .openapi import document
from .table import ROOT, TABLE

_KNOWN: Final[list[Door]] = [
    *(door(endpoint) for endpoint in TABLE),
    Door(ROOT + "/openapi.json", document, role=None, kind="api", name="api_document"),
]
_OTHERWISE: Final = ("/health", "/ready", "/stats", "/api", "/api/{rest:path}")
DOORS: Final[list[Door]] = [*_KNOWN, *(Elsewhere(path, _KNOWN) for path in _OTHERWISE)]
