"""`recurring`, `tracked`, `tags`, `throttles`: what is kept beside jobs."""

from typing import Final

from .answering import Answering, Telling

ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {}
