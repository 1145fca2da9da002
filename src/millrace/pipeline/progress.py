"""How far long work is: whoever does it tells, whoever shows it listens."""

from typing import Protocol


class Progress(Protocol):
    def __call__(self, step: str, done: int, total: int) -> None:
        """So much of a step is done; a total of 0 is not known."""


def silent(step: str, done: int, total: int) -> None:
    """Nobody listens."""
