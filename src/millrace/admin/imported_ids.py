"""The ids that complete imports contain, kept in memory between the steps of an import."""

from millrace.engine import imports
from millrace.engine.engine import Engine


class ImportedIds:
    """The digests of the ids of one source. They are read again after a change."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._state: tuple[str, int, list[int]] | None = None
        self._ids: set[bytes] = set()

    def of(self, source: str) -> set[bytes]:
        engine = self._engine
        state = (source, engine.revert_count, imports.runs_of(engine, source).complete)
        if state != self._state:
            self._state, self._ids = state, imports.known_digests(engine, source)
        return self._ids

    def clear(self) -> None:
        self._state, self._ids = None, set()
