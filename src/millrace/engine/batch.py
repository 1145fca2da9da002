"""All changes of one turn, which the store writes as one transaction."""

from collections.abc import Iterable

from .events import Row
from .job import Job


class Batch:
    """Changed jobs by seq, and events in order. A job that is pushed and removed within the batch
    leaves only its events.
    """

    __slots__ = (
        "changed",
        "cleared",
        "events",
        "folded",
        "gone",
        "new",
        "notes",
        "opened",
        "queues",
        "rewritten",
    )

    def __init__(self) -> None:
        self.new: dict[int, Job] = {}
        self.changed: dict[int, Job] = {}
        #: Jobs with changed pushed fields.
        self.rewritten: dict[int, Job] = {}
        self.gone: dict[int, None] = {}
        #: Name -> paused, or None for a removed queue.
        self.queues: dict[str, bool | None] = {}
        #: Queues that move behind all existing queues.
        self.opened: set[str] = set()
        #: Key -> value, or None for a deleted setting.
        self.notes: dict[str, bytes | None] = {}
        self.events: list[Row] = []
        #: The number of events that the statistics include.
        self.folded = 0
        #: The batch starts with the removal of all jobs, queues and counters.
        self.cleared = False

    def __bool__(self) -> bool:
        """Whether anything changed. Every field counts except `folded`, which only describes
        `events`: an edit of a job (tags, priority, dependencies) has no event.
        """
        return bool(
            self.events
            or self.changed
            or self.new
            or self.rewritten
            or self.gone
            or self.queues
            or self.opened
            or self.notes
            or self.cleared
        )

    def touches(self, seq: int) -> bool:
        """Whether the batch has a change of that job."""
        return seq in self.changed or seq in self.new or seq in self.rewritten or seq in self.gone

    def parts(self) -> tuple[Iterable[int], ...]:
        """The seqs of all jobs that the batch touched."""
        return self.new, self.changed, self.rewritten, self.gone
