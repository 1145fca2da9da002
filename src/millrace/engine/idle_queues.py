"""Removes queues that have been idle for some time, so that their number does not grow forever.

A queue is idle if it has no jobs, no waiting clients and no settings, and is not paused. The next
push opens a removed queue again.
"""

from typing import TYPE_CHECKING, Final

from .limits import QUEUE_KEY_PREFIX
from .queues import Queue
from .retention import RETENTION_SETTING

if TYPE_CHECKING:
    from .engine import Engine

#: The number of queues that one step examines.
SWEEP_BATCH_SIZE: Final = 500


class IdleQueues:
    """Examines all queues in turn, a batch in each step."""

    __slots__ = ("_engine", "_names", "_since")

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        #: The queues that this pass has not examined yet, the next one last.
        self._names: list[str] = []
        #: Idle queue -> the time of the first pass that found it idle.
        self._since: dict[str, int] = {}

    def remove_idle_batch(
        self, now: int, idle_for: int, limit: int = SWEEP_BATCH_SIZE
    ) -> list[str]:
        """Examine the next queues, remove each one that has been idle for `idle_for`, and return
        the names of the removed queues.
        """
        engine, since = self._engine, self._since
        if engine.unavailable_reason:
            return []
        if not self._names:
            self._names = list(engine.queues)
            self._since = since = {name: at for name, at in since.items() if name in engine.queues}
        forgotten = []
        for _ in range(min(limit, len(self._names))):
            name = self._names.pop()
            queue = engine.queues.get(name)
            if queue is None or not self._is_idle(queue):
                since.pop(name, None)
            elif now - max(since.setdefault(name, now), queue.last_requested_at) >= idle_for:
                del since[name]
                engine.removal.forget_queue(name)
                forgotten.append(name)
        return forgotten

    def _is_idle(self, queue: Queue) -> bool:
        if not queue.registered or queue.paused or queue.waiters or any(queue.counts):
            return False
        engine, name = self._engine, queue.name
        limits = engine.limits
        limited = QUEUE_KEY_PREFIX + name in limits.by_key or name in limits.concurrency
        if limited:
            return False
        return engine.retention.of_queue(engine.settings.get(RETENTION_SETTING), name) is None
