"""A store without a disk, for our tests and the tests of users."""

from collections.abc import Iterable

from millrace.engine.batch import Batch
from millrace.engine.engine import Engine

from . import changes
from .recovered import Progress, Recovered


class MemoryStore:
    """Keeps committed batches in encoded form, and discards a batch that is not committed."""

    trims = False

    def __init__(self) -> None:
        self._batches: list[bytes] = []
        self._queues: dict[str, bool] = {}
        self._notes: dict[str, bytes] = {}
        self._numbers = (1, 0, 0)
        self._events: list[bytes] = []
        #: Queues with deleted statistics, by the index of the event blob of the deleting batch.
        self._dropped: dict[int, set[str]] = {}
        self._begun: tuple[Batch, bytes, tuple[int, int, int], bytes] | None = None

    def load(self, progress: Progress | None = None) -> Recovered:
        recovered = Recovered()
        touched: dict[int, None] = {}
        for blob in self._batches:
            changes.replay(blob, recovered.jobs, touched)
        recovered.queues = dict(self._queues)
        recovered.notes = dict(self._notes)
        recovered.next_seq, recovered.processed, recovered.failures = self._numbers
        for number, blob in enumerate(self._events):
            recovered.statistics.fold(changes.decode_any(blob))
            recovered.statistics.drop(self._dropped.get(number, ()))
        recovered.statistics.dropped.clear()
        return recovered

    def reread(self, seqs: Iterable[int]) -> Recovered:
        recovered = self.load()
        recovered.jobs = {seq: recovered.jobs[seq] for seq in seqs if seq in recovered.jobs}
        return recovered

    def begin(self, batch: Batch, engine: Engine) -> None:
        numbers = (engine.next_seq, engine.totals.processed, engine.totals.failures)
        events = changes.encode(batch.events)
        self._begun = (batch, changes.encode_batch(batch), numbers, events)
        if engine.statistics.dropped:
            self._dropped[len(self._events)] = {name for name, _ in engine.statistics.dropped}
            engine.statistics.dropped.clear()

    def commit(self) -> None:
        assert self._begun is not None, "nothing was begun"
        batch, blob, self._numbers, events = self._begun
        self._begun = None
        if batch.cleared:
            self._batches.clear()
            self._queues.clear()
        self._batches.append(blob)
        self._events.append(events)
        for name, paused in batch.queues.items():
            if paused is None or name in batch.opened:
                self._queues.pop(name, None)
            if paused is not None:
                self._queues[name] = paused
        for key, value in batch.notes.items():
            if value is None:
                self._notes.pop(key, None)
            else:
                self._notes[key] = value

    def release_reserve(self) -> bool:
        return False

    def restore_reserve(self) -> bool:
        return True

    def probe(self) -> bool:
        return True

    def events(self) -> list[list[object]]:
        """All committed events, in order."""
        return [event for blob in self._events for event in changes.decode_any(blob)]

    def close(self) -> None:
        self._begun = None
