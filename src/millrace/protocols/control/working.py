"""`push`, `lease` and `end`: jobs by HTTP."""

from typing import Final

from .answering import Answering, Telling

ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {}
