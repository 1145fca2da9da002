"""What the commands of one loop turn changed: what the store shall write as one transaction."""

from .events import Row
from .job import Job


class Batch:
    """Changed rows by seq, events in order. A job that came and went within the batch leaves only
    its events.
    """

    __slots__ = ("changed", "cleared", "events", "gone", "new", "queues")

    def __init__(self) -> None:
        self.new: dict[int, Job] = {}
        self.changed: dict[int, Job] = {}
        self.gone: dict[int, None] = {}
        #: name -> paused, or None for a queue that is no more
        self.queues: dict[str, bool | None] = {}
        self.events: list[Row] = []
        #: everything that was there before this batch is to be forgotten
        self.cleared = False

    def __bool__(self) -> bool:
        return bool(self.events or self.queues or self.cleared)
