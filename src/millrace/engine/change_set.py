"""All changes of one turn, which the store writes as one transaction."""

from collections.abc import Iterable

from .events import EventTuple
from .job import Job


class ChangeSet:
    """Changed jobs by seq, and events in order. A job that is pushed and removed within the
    change set leaves only its events.
    """

    __slots__ = (
        "changed",
        "cleared",
        "edits",
        "ended_leases",
        "event_count",
        "events",
        "leases",
        "moved_to_end",
        "new",
        "queues",
        "removed",
        "rewritten",
        "settings",
    )

    def __init__(self) -> None:
        self.new: dict[int, Job] = {}
        self.changed: dict[int, Job] = {}
        #: Jobs whose fields from their push have changed.
        self.rewritten: dict[int, Job] = {}
        self.removed: dict[int, None] = {}
        #: Name -> paused, or None for a removed queue.
        self.queues: dict[str, bool | None] = {}
        #: Queues that move behind all existing queues.
        self.moved_to_end: set[str] = set()
        #: Key -> value, or None for a deleted setting.
        self.settings: dict[str, bytes | None] = {}
        self.events: list[EventTuple] = []
        #: The number of events, including those that were not recorded because there is no store.
        self.event_count = 0
        #: Ended leases of connections: seq -> holder. Only a revert reads them.
        self.ended_leases: dict[int, str] = {}
        #: The number of changes without an event.
        self.edits = 0
        #: The number of `leased` events.
        self.leases = 0
        #: The change set starts with the removal of all jobs, queues and counters.
        self.cleared = False

    def __bool__(self) -> bool:
        """Whether anything changed. Every field counts except `edits`, `leases` and `ended_leases`,
        which only describe other fields: an edit of a job (tags, priority, dependencies) has no
        event.
        """
        return bool(
            self.events
            or self.event_count
            or self.changed
            or self.new
            or self.rewritten
            or self.removed
            or self.queues
            or self.moved_to_end
            or self.settings
            or self.cleared
        )

    @property
    def has_only_leases(self) -> bool:
        """Whether the change set contains only leases. No reply waits until leases are durable."""
        return self.leases == len(self.events) == len(self.changed) and not (
            self.edits
            or self.removed
            or self.queues
            or self.moved_to_end
            or self.settings
            or self.cleared
        )

    @property
    def unlogged_change_count(self) -> int:
        """The number of changed jobs, queues and settings, which need not have an event."""
        changed = len(self.new) + len(self.changed) + len(self.rewritten) + len(self.removed)
        return changed + len(self.queues) + len(self.settings) + len(self.ended_leases)

    def record(self, job: Job) -> None:
        """Record a change to a job without an event. A new job needs no record, because the
        store writes all of its fields.
        """
        if job.seq not in self.new:
            self.changed[job.seq] = job

    def touches(self, seq: int) -> bool:
        """Whether the change set has a change to that job."""
        return (
            seq in self.changed or seq in self.new or seq in self.rewritten or seq in self.removed
        )

    def touched_seqs(self) -> tuple[Iterable[int], ...]:
        """The seqs of all jobs that the change set touched."""
        return self.new, self.changed, self.rewritten, self.removed
