"""A store without a disk, for the tests of Millrace and of its users."""

from collections.abc import Iterable

from millrace.engine.change_set import ChangeSet
from millrace.engine.jobs_by_seq import JobsBySeq
from millrace.engine.payloads import PayloadReader
from millrace.engine.statistics import QueueDay

from . import records
from .store import Progress, StoreSnapshot, StoreState


class MemoryOutbox:
    """The numbers of the events of a `MemoryStore`, which ships none and deletes none."""

    def __init__(self) -> None:
        self.max_bytes = 0
        self.has_shipped_events = False
        self.dropped = 0
        self.first_event = self.next_event = self.next_committed = 1
        self.size = 0

    def mark_shipped(self, until: int) -> None:
        """No event is deleted."""

    def add(self, count: int, size: int) -> None:
        self.next_event += count
        self.next_committed += count
        self.size += size


class MemoryStore:
    """Keeps committed change sets in encoded form, and discards an uncommitted one."""

    def __init__(self) -> None:
        self.outbox = MemoryOutbox()
        self.max_inline_payload = 0
        self.payload_reader: PayloadReader | None = None
        self._change_sets: list[bytes] = []
        self._queues: dict[str, bool] = {}
        self._settings: dict[str, bytes] = {}
        self._numbers = (1, 0, 0)
        self._events: list[bytes] = []
        #: Queues with deleted statistics, by the index of the event blob of the change set.
        self._dropped: dict[int, set[str]] = {}
        #: Merged statistics, by the index of the event blob of the merging change set.
        self._merged: dict[int, list[QueueDay]] = {}
        self._prepared: tuple[ChangeSet, bytes, tuple[int, int, int], bytes] | None = None

    def load(
        self, progress: Progress | None = None, jobs: JobsBySeq | None = None
    ) -> StoreSnapshot:
        recovered = StoreSnapshot(JobsBySeq() if jobs is None else jobs)
        touched: dict[int, None] = {}
        for blob in self._change_sets:
            records.replay(blob, recovered.jobs, touched)
        recovered.queues = dict(self._queues)
        recovered.settings = dict(self._settings)
        recovered.next_event = self.outbox.next_committed
        recovered.next_seq, recovered.processed, recovered.failures = self._numbers
        for number, blob in enumerate(self._events):
            recovered.statistics.add_events(records.decode_any(blob))
            recovered.statistics.drop(self._dropped.get(number, ()))
            for day in self._merged.get(number, ()):
                recovered.statistics.merge(day)
        recovered.statistics.dropped.clear()
        recovered.statistics.merged.clear()
        return recovered

    def load_jobs(self, seqs: Iterable[int]) -> StoreSnapshot:
        recovered = self.load()
        found = map(recovered.jobs.get, seqs)
        recovered.jobs = JobsBySeq(job for job in found if job is not None)
        return recovered

    def prepare(self, change_set: ChangeSet, state: StoreState) -> None:
        numbers = (state.next_seq, state.totals.processed, state.totals.failures)
        events = records.encode(change_set.events)
        self._prepared = (change_set, records.encode_changes(change_set, 0, None), numbers, events)
        if state.statistics.dropped:
            self._dropped[len(self._events)] = {name for name, _ in state.statistics.dropped}
            state.statistics.dropped.clear()
        if state.statistics.merged:
            self._merged[len(self._events)] = list(state.statistics.merged)
            state.statistics.merged.clear()

    def commit(self) -> None:
        assert self._prepared is not None, "no change set was prepared"
        change_set, blob, self._numbers, events = self._prepared
        self._prepared = None
        if change_set.cleared:
            self._change_sets.clear()
            self._queues.clear()
        self._change_sets.append(blob)
        self._events.append(events)
        self.outbox.add(len(change_set.events), len(events))
        for name, paused in change_set.queues.items():
            if paused is None or name in change_set.moved_to_end:
                self._queues.pop(name, None)
            if paused is not None:
                self._queues[name] = paused
        for key, value in change_set.settings.items():
            if value is None:
                self._settings.pop(key, None)
            else:
                self._settings[key] = value

    def take_stored_payloads(self) -> dict[int, bytes]:
        return {}

    def release_reserve(self) -> bool:
        return False

    def restore_reserve(self) -> bool:
        return True

    def can_write(self) -> bool:
        return True

    def events(self) -> list[list[object]]:
        """All committed events, in order."""
        return [event for blob in self._events for event in records.decode_any(blob)]

    def close(self) -> None:
        self._prepared = None
