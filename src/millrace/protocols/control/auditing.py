"""`audit` and `note`: who changed what."""

from typing import Final

from .answering import Answering, Telling

ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {}
