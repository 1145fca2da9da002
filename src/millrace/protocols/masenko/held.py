"""The tasks that a connection has."""

from collections.abc import Iterator

from millrace.engine.engine import Engine


class Held:
    """Ids of fetched tasks, in their order, until they are acknowledged.

    An end that cannot be made durable is undone, and the client may try again: so what was
    ended in the turn that is being filled, or in the one before it, which may still be syncing, is
    remembered that long.
    """

    __slots__ = ("_before", "_ended", "_engine", "_reverts", "_tasks", "_turn")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: dict[int, None] = {}
        self._ended: list[int] = []
        self._before: list[int] = []
        self._turn = engine.turn
        self._reverts = engine.reverts

    def add(self, seq: int) -> None:
        self._tasks[seq] = None

    def end(self, seq: int) -> None:
        self._settle()
        self._tasks.pop(seq, None)
        self._ended.append(seq)

    def __contains__(self, seq: int) -> bool:
        self._settle()
        return seq in self._tasks

    def __iter__(self) -> Iterator[int]:
        self._settle()
        return iter(list(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    def _settle(self) -> None:
        engine = self._engine
        if engine.reverts != self._reverts:
            self._reverts = engine.reverts
            ended = (*self._before, *self._ended)
            self._tasks |= {seq: None for seq in ended if seq in engine.jobs}
            self._before, self._ended = [], []
        if engine.turn != self._turn:
            self._turn = engine.turn
            self._before, self._ended = self._ended, []
