"""Progress of a pipeline run: bars on a terminal, otherwise one line per step."""

import sys
import time
from typing import Final, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

#: Seconds between two lines of a long step.
_AGAIN: Final = 10.0


class StepProgress:
    """Implements millrace.pipeline.progress.Progress."""

    def __init__(self, *, quiet: bool = False) -> None:
        console = Console(stderr=True)
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._is_terminal = console.is_terminal
        self._quiet = quiet
        self._tasks: dict[str, TaskID] = {}
        self._step = ""
        self._told = 0.0

    def __enter__(self) -> Self:
        if self._is_terminal and not self._quiet:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal and not self._quiet:
            self._bars.stop()

    def __call__(self, step: str, done: int, total: int) -> None:
        if self._quiet:
            return
        if self._is_terminal:
            self._show(step, done, total)
        else:
            self._tell(step, done, total)

    def _show(self, step: str, done: int, total: int) -> None:
        if step not in self._tasks:
            for task in self._tasks.values():
                self._bars.update(task, visible=False)
            self._tasks[step] = self._bars.add_task(step, total=None)
        self._bars.update(self._tasks[step], completed=done, total=total or None, visible=True)

    def _tell(self, step: str, done: int, total: int) -> None:
        now = time.monotonic()
        if step == self._step and (done == total or now - self._told < _AGAIN):
            return
        self._step, self._told = step, now
        sys.stderr.write(f"{step}: {done:,} of {total:,}\n" if total else f"{step}\n")
        sys.stderr.flush()
