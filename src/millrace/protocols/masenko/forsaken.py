"""The tasks of connections that have ended: they have failed, some of them in each turn."""

from collections import deque
from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.job import MASENKO, Job
from millrace.engine.states import DEAD, LEASED

#: Tasks of a lost connection that fail in one turn.
SLICE: Final = 500


class Forsaken:
    __slots__ = ("_engine", "_left")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Holder and task.
        self._left: deque[tuple[str, int]] = deque()

    def add(self, holder: str, seqs: list[int]) -> None:
        self._left.extend((holder, seq) for seq in seqs)

    def __len__(self) -> int:
        return len(self._left)

    def fail_some(self, now: int) -> None:
        """The next few of them fail; what has ended meanwhile is passed over."""
        engine, left = self._engine, self._left
        for _ in range(min(SLICE, len(left))):
            holder, seq = left.popleft()
            job = engine.jobs.get(seq)
            if job is not None and job.state == LEASED and job.holder == holder:
                queue = job.queue
                engine.forsake(job, now, f"the connection {holder} has ended")
                leave_queue(engine, job, queue, now)


def leave_queue(engine: Engine, job: Job, name: str, now: int) -> None:
    """A task has failed. A queue goes with its last one, if that failed for good there."""
    queue = engine.queues.get(name)
    if queue is None or not queue.known or queue.paused or queue.waiters:
        return
    left = job.queue != name or job.state == DEAD
    if left and job.origin == MASENKO and not any(queue.counts[:DEAD]):
        engine.remove_queue(name, now)
