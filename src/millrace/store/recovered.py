"""The interface between the server and a store."""

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from millrace.engine.batch import Batch
from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.stats import Statistics
from millrace.engine.transitions import in_order

#: Called with the number of records that were read, and their total.
Progress = Callable[[int, int], None]


class Recovered(msgspec.Struct):
    """All data of a store."""

    jobs: dict[int, Job] = {}
    queues: dict[str, bool] = {}
    notes: dict[str, bytes] = {}
    next_seq: int = 1
    processed: int = 0
    failures: int = 0
    statistics: Statistics = msgspec.field(default_factory=Statistics)

    def put_into(self, engine: Engine) -> None:
        """Fill a new engine."""
        engine.restore(in_order(self.jobs.values()), self.queues)
        engine.next_seq = max(engine.next_seq, self.next_seq)
        self.put_counters(engine)

    def put_counters(self, engine: Engine) -> None:
        """Set the counters, the statistics and the notes of an engine."""
        engine.totals.processed = self.processed
        engine.totals.failures = self.failures
        engine.statistics = self.statistics
        engine.notes = self.notes


def must_write(batch: Batch, store: "Store") -> bool:
    """Whether a turn needs a transaction: it changed data, or shipped events can be deleted.

    The server and all tests that commit turns call this function.
    """
    return bool(batch) or store.trims


class Store(Protocol):
    """A store. All methods run on the thread of the event loop, except `commit`, which runs on a
    helper thread. They never overlap: the next `begin` follows the return of the last `commit`.
    """

    #: Whether there are shipped events that an empty batch would delete.
    trims: bool

    def load(self, progress: Progress | None = None) -> Recovered:
        """Return all committed data. The server calls it once before the first batch, and again if
        a batch that cleared everything could not be written.
        """
        ...

    def reread(self, seqs: Iterable[int]) -> Recovered:
        """Return the committed data of these jobs, with all queues and counters."""
        ...

    def begin(self, batch: Batch, engine: Engine) -> None:
        """Execute the statements of a batch without a commit."""
        ...

    def commit(self) -> None:
        """Commit the batch that `begin` wrote."""
        ...

    def probe(self) -> bool:
        """After a failure, check whether a batch can probably be written again."""
        ...

    def release_reserve(self) -> bool:
        """Give the space of the reserve file to the store; return whether there was any."""
        ...

    def restore_reserve(self) -> bool:
        """Allocate the reserve file again; return whether it exists."""
        ...

    def close(self) -> None: ...
