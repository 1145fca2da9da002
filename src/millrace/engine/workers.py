"""The registry of workers, for protocols with worker ids."""

from collections import OrderedDict
from typing import Final

RUNNING: Final = 0
QUIET: Final = 1
TERMINATE: Final = 2
WORKER_STATES: Final = ("", "quiet", "terminate")

#: A worker without a connection or heartbeat is forgotten after a day.
FORGET_AFTER: Final = 86_400_000_000
#: Limits for workers without a connection, because clients can invent ids.
MAX_DISCONNECTED_WORKERS: Final = 10_000
MAX_WORKER_ID_LENGTH: Final = 1000


class Worker:
    """A process that takes jobs. Its state only advances: running, quiet, terminate."""

    __slots__ = (
        "connections",
        "hostname",
        "labels",
        "last_heartbeat_at",
        "pid",
        "rss_kb",
        "started_at",
        "state",
        "wid",
    )

    def __init__(self, wid: str, now: int) -> None:
        self.wid = wid
        self.hostname = ""
        self.pid = 0
        self.labels: list[str] = []
        self.rss_kb = 0
        self.state = RUNNING
        self.started_at = now
        self.last_heartbeat_at = now
        self.connections = 0

    def advance(self, state: int) -> bool:
        """Advance to `state`. Return False if the worker has already reached it."""
        if state <= self.state:
            return False
        self.state = state
        return True


class WorkerRegistry:
    """All known workers of one protocol."""

    __slots__ = ("_disconnected", "_forget_at", "known")

    def __init__(self) -> None:
        self.known: dict[str, Worker] = {}
        self._disconnected: OrderedDict[str, Worker] = OrderedDict()
        self._forget_at = 0

    def connect(self, wid: str, now: int) -> Worker:
        """Count a connection of the worker with that id, which is created if it is unknown."""
        if now >= self._forget_at:
            self._forget(now)
        worker = self.known.get(wid)
        if worker is None:
            worker = self.known[wid] = Worker(wid, now)
        elif worker.connections == 0:  # perhaps a new process
            worker.state = RUNNING
            worker.started_at = now
        worker.last_heartbeat_at = now
        worker.connections += 1
        self._disconnected.pop(wid, None)
        return worker

    def disconnect(self, worker: Worker) -> None:
        """Remove a connection of a worker. The registry remembers the last disconnected workers."""
        worker.connections -= 1
        if worker.connections:
            return
        worker.hostname, worker.labels = "", []  # the next connection sends them again
        if len(worker.wid) > MAX_WORKER_ID_LENGTH:
            del self.known[worker.wid]
            return
        self._disconnected[worker.wid] = worker
        if len(self._disconnected) > MAX_DISCONNECTED_WORKERS:
            del self.known[self._disconnected.popitem(last=False)[0]]

    def connected(self) -> list[Worker]:
        return [worker for worker in self.known.values() if worker.connections]

    def _forget(self, now: int) -> None:
        self._forget_at = now + FORGET_AFTER // 24
        limit = now - FORGET_AFTER
        for worker in [
            w for w in self.known.values() if not w.connections and w.last_heartbeat_at < limit
        ]:
            del self.known[worker.wid]
            self._disconnected.pop(worker.wid, None)
