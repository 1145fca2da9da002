"""A memory store that takes every committed payload out of the engine's memory."""

from millrace.engine.change_set import ChangeSet
from millrace.store import MemoryStore
from millrace.store.store import StoreState


class PayloadStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.payloads: dict[int, bytes] = {}
        self._stored: dict[int, bytes] = {}
        self.payload_reader = self

    def prepare(self, change_set: ChangeSet, state: StoreState) -> None:
        super().prepare(change_set, state)
        jobs = {**change_set.new, **change_set.rewritten}
        self._stored = {seq: job.inline_payload for seq, job in jobs.items() if job.inline_payload}

    def commit(self) -> None:
        super().commit()
        self.payloads |= self._stored

    def take_stored_payloads(self) -> dict[int, bytes]:
        stored, self._stored = self._stored, {}
        return stored

    def read(self, seq: int) -> bytes:
        return self.payloads.get(seq, b"")

    def read_large(self, seq: int) -> bytes:
        return self.read(seq)

    def open_another(self) -> "PayloadStore":
        return self

    def read_part(self, seq: int, start: int, size: int) -> bytes:
        return self.read(seq)[start : start + size]
