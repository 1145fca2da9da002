"""Tracks which part of a long command is durable, to choose the error message if it is refused."""

from millrace.engine.engine import Engine


class CommandProgress:
    """The turns in which the slices of a command have made changes."""

    __slots__ = ("_engine", "_first_turn", "_is_committed", "_last_turn", "_reverts", "_version")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reverts = engine.revert_count
        self._version = engine.version
        #: The first and the last turn with changes; -1 if there is none.
        self._first_turn = self._last_turn = -1
        #: The first turn is committed.
        self._is_committed = False

    def begin_slice(self) -> None:
        engine = self._engine
        self._version = engine.version
        if self._first_turn >= 0 and not (self.is_reverted or self._is_committed):
            self._is_committed = not engine.is_turn_uncommitted(self._first_turn)

    def end_slice(self) -> None:
        turn = self._engine.turn
        if self._engine.version != self._version:
            self._last_turn = turn
            if self._first_turn < 0:
                self._first_turn, self._reverts = turn, self._engine.revert_count

    @property
    def is_reverted(self) -> bool:
        """Whether the store has refused a commit since the first change, or since the command began
        if it has changed nothing.
        """
        return self._engine.revert_count != self._reverts

    @property
    def may_be_partly_committed(self) -> bool:
        """Whether an earlier turn may have committed changes of the command."""
        return self._is_committed or self._first_turn < self._last_turn

    @property
    def must_wait_for_commit(self) -> bool:
        """Whether a refused commit could undo only part of the changes, although the client would
        then get an error reply as if nothing had been changed.
        """
        return 0 <= self._first_turn < self._engine.turn

    def is_uncommitted(self, turn: int) -> bool:
        return not self.is_reverted and self._engine.is_turn_uncommitted(turn)
