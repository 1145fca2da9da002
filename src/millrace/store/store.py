"""The interface of a store. Everything outside `store/` uses only this module and `folders.py`.

- `Store`: the jobs and settings of a server, written one change set per turn;
- `Outbox`: the committed events that are not shipped yet, as the server sees them;
- `OutboxReader`: the same events for another process;
- `StoreSnapshot`: all data of a store after one commit.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from millrace.engine.change_set import ChangeSet
from millrace.engine.counters import Totals
from millrace.engine.engine import Engine
from millrace.engine.events import EventTuple
from millrace.engine.job import Job
from millrace.engine.jobs_by_seq import JobsBySeq
from millrace.engine.payloads import PayloadReader
from millrace.engine.restoration import is_sorted_for_restore, sort_for_restore
from millrace.engine.statistics import Statistics

#: Called with the number of records or pages that were read, and their total.
Progress = Callable[[int, int], None]


class StoreSnapshot(msgspec.Struct):
    """All data of a store."""

    jobs: JobsBySeq = msgspec.field(default_factory=JobsBySeq)
    queues: dict[str, bool] = {}
    settings: dict[str, bytes] = {}
    next_seq: int = 1
    #: The number of the next event.
    next_event: int = 1
    processed: int = 0
    failures: int = 0
    statistics: Statistics = msgspec.field(default_factory=Statistics)

    def fill(self, engine: Engine) -> None:
        """Fill a new engine with this data. The engine takes over the jobs, and this object drops
        its own table of them to save memory.
        """
        table = self.jobs
        if table is not engine.jobs:
            self.jobs = JobsBySeq()
        # A list of all jobs of a backlog would need more memory than normal operation.
        is_sorted = is_sorted_for_restore(table.each())
        jobs = table.each() if is_sorted else sort_for_restore(table.values())
        engine.restoration.restore(jobs, self.queues, in_table=table is engine.jobs)
        engine.next_seq = max(engine.next_seq, self.next_seq)
        self.fill_counters(engine)

    def fill_counters(self, engine: Engine) -> None:
        """Set the counters, the statistics and the settings of an engine."""
        engine.totals.processed = self.processed
        engine.totals.failures = self.failures
        self.statistics.keep_days = engine.statistics.keep_days
        engine.statistics = self.statistics
        engine.load_settings(self.settings)


def must_write(change_set: ChangeSet, store: "Store") -> bool:
    """Whether a turn needs a transaction: it changed data, or shipped events can be deleted.

    The server and all tests that commit turns call this function.
    """
    return bool(change_set) or store.outbox.has_shipped_events


def release_payloads(store: "Store", engine: Engine) -> None:
    """After a commit, remove the payloads from memory that the store can read now."""
    for seq, payload in store.take_stored_payloads().items():
        engine.payloads.move_out_of_memory(seq, payload)


class StoreState(Protocol):
    """What a store reads besides a change set: jobs that it writes later, counters and statistics.
    The engine provides it.
    """

    @property
    def next_seq(self) -> int: ...

    @property
    def totals(self) -> Totals: ...

    @property
    def statistics(self) -> Statistics:
        """The store writes the dirty days, and empties the sets of changed days."""
        ...

    @property
    def last_known_time(self) -> int:
        """The server's clock, for the age of statistics."""
        ...

    def job(self, seq: int) -> Job | None:
        """The job with this seq, or None if it was removed."""
        ...


class Outbox(Protocol):
    """The events that a store keeps until they are shipped."""

    #: The maximum size in bytes. Above it, the store deletes the oldest events.
    max_bytes: int
    #: Whether there are shipped events that an empty change set would delete.
    has_shipped_events: bool
    #: The number of events that were deleted before they were shipped.
    dropped: int
    #: The number of the next event after the committed events.
    next_committed: int

    @property
    def first_event(self) -> int:
        """The oldest event in the outbox."""
        ...

    @property
    def next_event(self) -> int:
        """The number of the next event, including the events of an uncommitted change set."""
        ...

    @property
    def size(self) -> int:
        """The size of the events in bytes."""
        ...

    def mark_shipped(self, until: int) -> None:
        """Record that the events before `until` are in the lake: change sets may delete them."""
        ...


class Store(Protocol):
    """A store. All methods run on the thread of the event loop, except `commit`, which runs on a
    helper thread. They never overlap: the next `prepare` follows the return of the last `commit`.
    """

    #: The store keeps larger payloads of new jobs outside memory. The server lowers this limit
    #: while it uses a lot of memory.
    max_inline_payload: int

    @property
    def outbox(self) -> Outbox: ...

    def load(
        self, progress: Progress | None = None, jobs: JobsBySeq | None = None
    ) -> StoreSnapshot:
        """Return all committed data. The server calls it once before the first change set, and
        again if a change set that cleared everything could not be written. The jobs are added to
        `jobs`, which can be the table of a new engine.
        """
        ...

    def load_jobs(self, seqs: Iterable[int]) -> StoreSnapshot:
        """Return the committed data of these jobs, with all queues and counters."""
        ...

    def prepare(self, change_set: ChangeSet, state: StoreState) -> None:
        """Execute the statements of a change set without a commit."""
        ...

    def commit(self) -> None:
        """Commit the change set that `prepare` wrote."""
        ...

    def can_write(self) -> bool:
        """After a failure, check whether writing a change set is likely to succeed again."""
        ...

    @property
    def payload_reader(self) -> PayloadReader | None:
        """Reads payloads that the store keeps outside memory; None: it keeps none."""
        ...

    def take_stored_payloads(self) -> dict[int, bytes]:
        """After a commit, the payloads by seq that it made readable through `payload_reader`. The
        engine can remove them from memory.
        """
        ...

    def release_reserve(self) -> bool:
        """Delete the reserve file to free its space; return whether it existed."""
        ...

    def restore_reserve(self) -> bool:
        """Allocate the reserve file again; return whether it exists."""
        ...

    def close(self) -> None: ...


class OutboxRange(NamedTuple):
    """The committed events in an outbox: from `first_event` up to, but not including,
    `next_event`.
    """

    first_event: int
    next_event: int
    bytes: int


class EventRange(NamedTuple):
    """Events of one commit, starting with number `first`; `size` is their size in bytes."""

    first: int
    version: int
    rows: list[EventTuple]
    size: int

    @property
    def next_event(self) -> int:
        """The number of the event that follows."""
        return self.first + len(self.rows)


class OutboxReader(Protocol):
    """Reads an outbox while its server is running, without affecting the server."""

    def range(self) -> OutboxRange:
        """The range of the committed events."""
        ...

    def read(self, start: int) -> Iterator[EventRange]:
        """Yield the events starting with `start`, in order. If event `start` was deleted before it
        was shipped, begin with the oldest event in the outbox. Raise an error if an event is
        damaged or missing.
        """
        ...

    def find(self, encoded: bytes, start: int, end: int) -> Iterator[EventRange]:
        """Yield the ranges from event `start` up to, but not including, `end` that contain these
        bytes. A caller that knows the encoding of an event finds it without decoding all events.
        """
        ...


class CheckReport(msgspec.Struct):
    """The content of a data folder, and its problems."""

    folder: str
    #: The server process that uses the folder; empty if there is none.
    server: str = ""
    format: int = 0
    turn: int = 0
    jobs: dict[str, int] = {}
    queues: int = 0
    paused: int = 0
    #: Events that are not shipped yet.
    events: int = 0
    bytes: int = 0
    #: Whether all checksums were verified; older formats have none.
    summed: bool = False
    problems: list[str] = []
