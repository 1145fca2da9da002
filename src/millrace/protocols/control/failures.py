"""`failures`: jobs that failed, by what they failed of."""

from typing import Final

from .answering import Answering, Telling

ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {}
