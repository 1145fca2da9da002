"""Progress reports for long operations."""

from typing import Protocol


class Progress(Protocol):
    def __call__(self, step: str, done: int, total: int) -> None:
        """Report that `done` of `total` units of a step are complete; total 0 is unknown."""


def silent(step: str, done: int, total: int) -> None:
    """Ignore progress reports."""
