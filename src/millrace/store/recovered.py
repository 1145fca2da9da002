"""What the server and a store say to each other."""

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from millrace.engine.batch import Batch
from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.stats import Statistics
from millrace.engine.transitions import in_order

#: Called with how many records were read, of how many.
Progress = Callable[[int, int], None]


class Recovered(msgspec.Struct):
    """Everything a store holds."""

    jobs: dict[int, Job] = {}
    queues: dict[str, bool] = {}
    notes: dict[str, bytes] = {}
    next_seq: int = 1
    processed: int = 0
    failures: int = 0
    statistics: Statistics = msgspec.field(default_factory=Statistics)

    def put_into(self, engine: Engine) -> None:
        """Fill an engine that is new."""
        engine.restore(in_order(self.jobs.values()), self.queues)
        engine.next_seq = max(engine.next_seq, self.next_seq)
        self.put_counters(engine)

    def put_counters(self, engine: Engine) -> None:
        """What is not of single jobs or queues."""
        engine.totals.processed = self.processed
        engine.totals.failures = self.failures
        engine.statistics = self.statistics
        engine.notes = self.notes


def must_write(batch: Batch, store: "Store") -> bool:
    """Whether a turn needs a transaction: it changed something, or shipped events can be removed.

    The server and every test that commits turns ask this function.
    """
    return bool(batch) or store.trims


class Store(Protocol):
    """`begin` and everything else run on the loop's thread; only `commit` runs on a helper's. They
    never overlap: the next `begin` comes after the last `commit` has returned.
    """

    #: Is there something to remove that an empty batch would do for?
    trims: bool

    def load(self, progress: Progress | None = None) -> Recovered:
        """All that was committed. Called once, before the first batch, and again after a batch that
        cleared everything could not be written.
        """
        ...

    def reread(self, seqs: Iterable[int]) -> Recovered:
        """What was committed of these jobs; queues and counters in full."""
        ...

    def begin(self, batch: Batch, engine: Engine) -> None:
        """Execute a batch's statements without making them durable."""
        ...

    def commit(self) -> None:
        """Make what was begun durable."""
        ...

    def probe(self) -> bool:
        """After a failure: does it look as if a batch could be written again?"""
        ...

    def release_reserve(self) -> bool:
        """Give the space of the reserve file to the store; return whether there was any."""
        ...

    def restore_reserve(self) -> bool:
        """Allocate the reserve file again; return whether it exists."""
        ...

    def close(self) -> None: ...
