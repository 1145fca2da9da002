"""The workers of Qless, with the time of their last activity."""

from collections import OrderedDict
from itertools import islice
from typing import Final

from millrace.engine.engine import Engine

from . import lua_values as lua
from .databases import DatabaseNames
from .options import QlessOptions

#: The prefix of the settings of the engine that contain workers.
WORKER_PREFIX: Final = "qless/worker/"
#: Maximum number of workers in the list, because clients choose their names.
MAX_WORKERS: Final = 10_000
#: Maximum number of workers that one command examines and removes because they are too old.
FORGET_BATCH_SIZE: Final = 100
#: Minimum number of microseconds between two writes of a worker's last activity.
WORKER_WRITE_INTERVAL: Final = 60_000_000


class QlessWorkers:
    """The workers of all databases, the least recently active first."""

    def __init__(self, engine: Engine, names: DatabaseNames, options: QlessOptions) -> None:
        self._engine = engine
        self._names = names
        self._options = options
        self.last_seen: OrderedDict[str, int] = OrderedDict()

    def seen(self, worker: str, now: int) -> None:
        """Record the activity of a worker."""
        workers, worker = self.last_seen, self._names.engine_name(worker)
        if worker not in workers:
            self._forget_old(now)
        workers[worker] = now
        workers.move_to_end(worker)
        key = WORKER_PREFIX + worker
        kept = self._engine.settings.get(key)
        if kept is None or abs(now - int(kept)) >= WORKER_WRITE_INTERVAL:
            self._engine.set_setting(key, b"%d" % now, must_wait=False)

    def forget(self, worker: str) -> None:
        """Remove a worker from the list."""
        self.last_seen.pop(worker, None)
        if WORKER_PREFIX + worker in self._engine.settings:
            self._engine.set_setting(WORKER_PREFIX + worker, None)

    def _forget_old(self, now: int) -> None:
        """Remove some workers of the current database that are too old, and the oldest of all if
        there are too many. The other old workers are removed later.
        """
        oldest = now - lua.to_microseconds(self._options.number("max-worker-age"))
        while len(self.last_seen) >= MAX_WORKERS:
            self.forget(next(iter(self.last_seen)))
        old = []
        for name, last_seen in islice(self.last_seen.items(), FORGET_BATCH_SIZE):
            if self._names.is_in_database(name):
                if last_seen > oldest:
                    break
                old.append(name)
        for name in old:
            self.forget(name)
