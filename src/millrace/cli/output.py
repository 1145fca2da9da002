"""Progress bars on a terminal."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class ProgressBar:
    """A bar on stderr that disappears at the end. Prints nothing if stderr is not a terminal."""

    def __init__(self, label: str) -> None:
        self._progress = Progress(
            TextColumn(label),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, visible=False)

    def __enter__(self) -> Self:
        if self._progress.console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress.console.is_terminal:
            self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        """Called by the store and the shipper with the work done so far."""
        if total:
            self._progress.update(self._task, completed=done, total=total, visible=True)
