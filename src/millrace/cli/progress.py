"""How far long work is, for whoever looks at a terminal."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class Bar:
    """A bar on stderr that goes when the work is done; nothing where stderr is no terminal."""

    def __init__(self, what: str) -> None:
        self._progress = Progress(
            TextColumn(what),
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
        """As the store calls its Progress."""
        if total:
            self._progress.update(self._task, completed=done, total=total, visible=True)
