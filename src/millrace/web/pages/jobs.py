"""Searching jobs, and acting on what was found."""

from typing import Final

from millrace.web.doors import Door

DOORS: Final[list[Door]] = []
