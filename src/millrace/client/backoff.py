"""Delays between attempts to reach the server: exponential, with jitter."""

from random import uniform
from typing import Final

FIRST_DELAY: Final = 0.05
MAX_DELAY: Final = 5.0


class Backoff:
    """Delays in seconds that double up to a maximum; each is random between half and all of it."""

    def __init__(self, first: float = FIRST_DELAY, maximum: float = MAX_DELAY) -> None:
        self._first = first
        self._maximum = maximum
        self._next = first

    def next_delay(self) -> float:
        delay = self._next
        self._next = min(self._maximum, delay * 2)
        return uniform(delay / 2, delay)

    def reset(self) -> None:
        self._next = self._first
