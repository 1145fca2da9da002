"""What the commands of one loop turn changed: what the store shall write as one transaction."""

from collections.abc import Iterable

from .events import Row
from .job import Job


class Batch:
    """Changed rows by seq, events in order. A job that came and went within the batch leaves only
    its events.
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
        #: Jobs of which also that has changed which was pushed.
        self.rewritten: dict[int, Job] = {}
        self.gone: dict[int, None] = {}
        #: name -> paused, or None for a queue that is no more
        self.queues: dict[str, bool | None] = {}
        #: Those of them that are behind all others, even if they were there before.
        self.opened: set[str] = set()
        #: key -> value, or None for a note that is no more
        self.notes: dict[str, bytes | None] = {}
        self.events: list[Row] = []
        #: So many of them are in the statistics already.
        self.folded = 0
        #: everything that was there before this batch is to be forgotten
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
