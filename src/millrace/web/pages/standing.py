"""Server, Configuration, Audit."""

from typing import Final

from millrace.web.doors import Door

DOORS: Final[list[Door]] = []
