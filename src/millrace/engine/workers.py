"""Who works: the workers that introduced themselves, by any protocol that has worker ids."""

from collections import OrderedDict
from typing import Final

RUNNING: Final = 0
QUIET: Final = 1
TERMINATE: Final = 2
WORKER_STATES: Final = ("", "quiet", "terminate")

#: A worker that has no connection and sent no sign of life for a day is forgotten.
FORGET_AFTER: Final = 86_400_000_000
#: Nor are more of them remembered, or such with longer ids: anybody can make up ids.
MOST_AWAY: Final = 10_000
LONGEST_AWAY: Final = 1000


class Worker:
    """A process that takes jobs. Its state only ever moves forward: running, quiet, terminate."""

    __slots__ = (
        "beat_at",
        "connections",
        "hostname",
        "labels",
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
        self.beat_at = now
        self.connections = 0

    def advance(self, state: int) -> bool:
        """Move forward to `state`; False if it was there or beyond already."""
        if state <= self.state:
            return False
        self.state = state
        return True


class Workers:
    """All known workers of one protocol."""

    __slots__ = ("_away", "_forget_at", "known")

    def __init__(self) -> None:
        self.known: dict[str, Worker] = {}
        self._away: OrderedDict[str, Worker] = OrderedDict()
        self._forget_at = 0

    def connect(self, wid: str, now: int) -> Worker:
        """The worker of that id, new if need be, with one connection more."""
        if now >= self._forget_at:
            self._forget(now)
        worker = self.known.get(wid)
        if worker is None:
            worker = self.known[wid] = Worker(wid, now)
        elif worker.connections == 0:  # it came back, perhaps as a new process
            worker.state = RUNNING
            worker.started_at = now
        worker.beat_at = now
        worker.connections += 1
        self._away.pop(wid, None)
        return worker

    def disconnect(self, worker: Worker) -> None:
        """One connection less. A worker without any is remembered, among the last of them."""
        worker.connections -= 1
        if worker.connections:
            return
        worker.hostname, worker.labels = "", []  # it says so again when it comes back
        if len(worker.wid) > LONGEST_AWAY:
            del self.known[worker.wid]
            return
        self._away[worker.wid] = worker
        if len(self._away) > MOST_AWAY:
            del self.known[self._away.popitem(last=False)[0]]

    def connected(self) -> list[Worker]:
        return [worker for worker in self.known.values() if worker.connections]

    def _forget(self, now: int) -> None:
        self._forget_at = now + FORGET_AFTER // 24
        limit = now - FORGET_AFTER
        for worker in [w for w in self.known.values() if not w.connections and w.beat_at < limit]:
            del self.known[worker.wid]
            self._away.pop(worker.wid, None)
