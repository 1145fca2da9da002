"""Which ended jobs are kept, and how many."""

from collections import OrderedDict
from typing import Final

from .job import Job
from .policy import KEPT
from .states import DEAD, DONE

#: One command drops at most this number of surplus jobs; a timer drops the rest in such steps.
TRIM_BATCH_SIZE: Final = 64
#: The key of that timer.
TRIM_TIMER: Final = "trim the dead set"


class Retention:
    """Done and dead jobs. Only `dead` is bounded; its oldest jobs come first."""

    __slots__ = ("dead", "dead_dropped", "dead_kept", "dead_max", "done", "done_kept")

    def __init__(self, dead_max: int) -> None:
        self.dead_max = dead_max
        #: The number of dead jobs that were dropped because of the bound.
        self.dead_dropped = 0
        self.done: dict[int, Job] = {}
        self.dead: OrderedDict[int, Job] = OrderedDict()
        #: Dead jobs that end at a time of their own, or stay until a client removes them.
        self.dead_kept: dict[int, Job] = {}
        #: Done jobs that stay until a client removes them, the oldest first.
        self.done_kept: OrderedDict[int, Job] = OrderedDict()

    def index_of(self, job: Job) -> dict[int, Job]:
        """The index that a job in this state belongs to."""
        if job.state == DEAD:
            return self.dead_kept if job.expires or job.origin in KEPT else self.dead
        assert job.state == DONE
        return self.done_kept if job.origin in KEPT else self.done

    @property
    def is_over(self) -> bool:
        """Whether the dead set has more jobs than its bound."""
        return len(self.dead) > self.dead_max

    def sort(self) -> None:
        """Order restored dead jobs by the time of their deaths."""
        for job in sorted(self.dead.values(), key=lambda dead: dead.due):
            self.dead.move_to_end(job.seq)

    def clear(self) -> None:
        self.done.clear()
        self.dead.clear()
        self.dead_kept.clear()
        self.done_kept.clear()
