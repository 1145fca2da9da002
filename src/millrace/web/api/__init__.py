"""The HTTP API. Each module has its own DOORS."""

from typing import Final

from millrace.web.doors import Door

DOORS: Final[list[Door]] = []
