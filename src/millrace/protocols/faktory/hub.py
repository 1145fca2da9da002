"""The state shared by all Faktory connections: engine, workers, bulk reads, password."""

from collections.abc import Callable, Generator, Iterator
from hashlib import sha256
from hmac import compare_digest
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

from millrace.engine.engine import Engine
from millrace.engine.job import SECOND, Job
from millrace.engine.queue_rules import QueueRule
from millrace.engine.workers import TERMINATE, Worker, WorkerRegistry
from millrace.protocols.connection import Hub
from millrace.protocols.logins import LoginLimiter
from millrace.protocols.registry import FAKTORY

from .bulk import ReadCursors
from .settings import FaktoryConfig

if TYPE_CHECKING:
    from .connection import FaktoryConnection

#: How long a FETCH waits if no job is ready.
FETCH_WAIT: Final = 2 * SECOND
#: The jobs of a lost worker fail after this time without a BEAT.
LOST_WORKER_TIMEOUT: Final = 60 * SECOND

#: Jobs of a lost worker that fail in one turn.
LOST_WORKER_BATCH_SIZE: Final = 100

#: Rounds of the password hash in one slice.
HASH_BATCH_SIZE: Final = 256

Challenge = Callable[[], tuple[int, str]]


def hash_matches(
    password: str, pwdhash: str, rounds: int, salt: str
) -> Generator[None, None, bool]:
    """Whether `pwdhash` is the hash of the password, which is computed in slices."""
    digest = (password + salt).encode()
    for number in range(rounds):
        digest = sha256(digest).digest()
        if number % HASH_BATCH_SIZE == HASH_BATCH_SIZE - 1:
            yield
    return compare_digest(digest.hex().encode(), pwdhash.encode())


class FaktoryHub(Hub):
    code: ClassVar[int] = FAKTORY

    def __init__(
        self,
        engine: Engine,
        *,
        started_at: int,
        challenge: Challenge,
        memory_mb: Callable[[], int],
        password: str = "",
        max_connections: int = 10_000,
        max_line: int = 64 << 20,
        recover_lost_workers: bool = False,
        rule: QueueRule | None = None,
    ) -> None:
        super().__init__(engine, max_connections, rule)
        self.started_at = started_at
        self.challenge = challenge
        self.memory_mb = memory_mb
        self.password = password
        self.max_line = max_line
        self.recover_lost_workers = recover_lost_workers
        self.workers = WorkerRegistry()
        self.connections_by_worker: dict[str, set[FaktoryConnection]] = {}
        self.read_cursors = ReadCursors()
        self.logins = LoginLimiter()
        self._watch_lost_workers()

    def join(self, connection: "FaktoryConnection", wid: str, now: int) -> Worker:
        self.connections_by_worker.setdefault(wid, set()).add(connection)
        return self.workers.connect(wid, now)

    def leave(self, connection: "FaktoryConnection", worker: Worker, now: int) -> None:
        self.workers.disconnect(worker)
        peers = self.connections_by_worker[worker.wid]
        peers.discard(connection)
        if not peers:
            del self.connections_by_worker[worker.wid]
            if self.recover_lost_workers:
                self.engine.set_alarm((self, worker.wid), self._lost_at(worker, now))

    def advance(self, worker: Worker, state: int) -> None:
        """Advance a worker to quiet or terminate: it gets no more jobs, on any connection."""
        if worker.advance(state):
            for connection in self.connections_by_worker.get(worker.wid, ()):
                if connection.waiter is not None:
                    self.engine.stop_offering(connection.waiter)

    def reload(self, settings: FaktoryConfig) -> None:
        self.password = settings.password
        was_on = self.recover_lost_workers
        self.recover_lost_workers = settings.recover_lost_workers
        if not was_on:
            self._watch_lost_workers()

    def _watch_lost_workers(self) -> None:
        """Set an alarm for each disconnected worker that has jobs but no alarm: it disconnected
        before a restart, or while the recovery of lost workers was off.
        """
        if not self.recover_lost_workers:
            return
        clock = self.engine.last_known_time
        for wid in {job.holder for job in self._leased()} - self.connections_by_worker.keys():
            self.engine.set_alarm((self, wid), clock + LOST_WORKER_TIMEOUT)

    def stop(self) -> None:
        """Lease no more jobs, because the server is stopping. The reply to the next BEAT of each
        worker contains `terminate`.
        """
        super().stop()
        for worker in self.workers.connected():
            self.advance(worker, TERMINATE)

    @property
    def delays_shutdown(self) -> bool:
        return bool(self.connections_by_worker)

    def clock_moved(self, by: int) -> None:
        for worker in self.workers.known.values():
            worker.last_heartbeat_at += by

    def handle_alarm(self, name: str, now: int) -> None:
        """Fail the jobs of a worker that has disconnected and not returned."""
        if not self.recover_lost_workers:
            return  # switched off since then
        wid = name
        worker = self.workers.known.get(wid)
        if worker is not None and worker.connections:
            return
        lost_at = now if worker is None else self._lost_at(worker, worker.last_heartbeat_at)
        if now < lost_at or self.engine.unavailable_reason:
            self.engine.set_alarm((self, wid), max(lost_at, now + SECOND))
            return
        jobs = list(islice(self._leased_by(wid), LOST_WORKER_BATCH_SIZE))
        if len(jobs) == LOST_WORKER_BATCH_SIZE:
            self.engine.set_alarm((self, wid), now)  # the rest follows in the next turn
        message = (
            f"worker {wid} has disconnected and sent no BEAT for {LOST_WORKER_TIMEOUT // SECOND} s"
        )
        for job in jobs:
            self.engine.fail(job, now, FAKTORY, "WorkerLost", message, [])

    def _leased_by(self, wid: str) -> Iterator[Job]:
        for job in self._leased():
            if job.holder == wid:
                yield job

    def _leased(self) -> Iterator[Job]:
        for job in self.engine.tables.leased.values():
            if job.holder_protocol == FAKTORY and job.holder:
                yield job

    def _lost_at(self, worker: Worker, now: int) -> int:
        return max(worker.last_heartbeat_at + LOST_WORKER_TIMEOUT, now)
