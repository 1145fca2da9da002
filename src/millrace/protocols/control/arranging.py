"""What people do to queues, workers, recurring jobs and settings."""

from typing import Final

from .answering import Answering, Telling

ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {}
