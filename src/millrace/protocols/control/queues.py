"""`queues` and `queue`: what is in them, who asks for it, how long it takes."""

from typing import Final

from .answering import Answering, Telling

ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {}
