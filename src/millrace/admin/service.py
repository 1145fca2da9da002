"""What all connections to the control socket share."""

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

import msgspec

from millrace.engine.engine import Engine
from millrace.engine.job import PROTOCOLS, Job, seq_of
from millrace.engine.sizes import sizes
from millrace.engine.states import READY, STATE_NAMES
from millrace.engine.why import sentence, why
from millrace.protocols.connection import Hub
from millrace.protocols.faktory import FaktoryHub
from millrace.protocols.qless import QlessApi, QlessHub
from millrace.protocols.qless.state import Qless
from millrace.records import (
    Explanation,
    JobExplanation,
    PipelineRun,
    ReasonRecord,
    RelatedJob,
    ServerStatus,
    ShippingStatus,
)

from .audit import AuditLog
from .errors import AdminError
from .samples import Samples

#: Of so many jobs of one id it is told; everybody waits while it is looked at them.
MAX_JOBS_PER_ID: Final = 20

#: Of jobs that somebody asks for.
MAX_NAME_LENGTH: Final = 65_536

#: So long others have their turn between two bits of what the failures are grouped by.
FAILURE_INDEX_INTERVAL: Final = 10_000

#: The note of what tokens are made with.
LEASE_KEY: Final = "http/lease-key"

H = TypeVar("H", bound=Hub)

#: What an operation returns: a record, or JSON that is not one of ours.
Reply = msgspec.Struct | dict[str, Any]


class ShipperPort(Protocol):
    """Whoever ships the journal."""

    def journal(self) -> ShippingStatus: ...

    def ship(self, done: Callable[[str], None]) -> None:
        """Ship all that is committed by now; `done` hears of it, or why it cannot be."""
        ...


class HostInfo(Protocol):
    """What the process knows that the engine does not."""

    def detail(self) -> ServerStatus: ...

    def pipeline(self) -> PipelineRun: ...

    def run_pipeline(self) -> str:
        """Start a run; why it cannot be, or nothing."""
        ...


class AdminService(Hub):
    protocol = "control"
    keeper: ShipperPort | None = None
    host: HostInfo | None = None

    def __init__(
        self, engine: Engine, max_connections: int, next_event: Callable[[], int] = lambda: 1
    ) -> None:
        super().__init__(engine, max_connections)
        self.audit = AuditLog(engine)
        #: What takes several turns needs the time of each.
        self.now = 0
        #: The number that the next event will have which is given to the store.
        self._next_event = next_event
        self.samples = Samples(engine)
        #: What makes a key that nobody can guess.
        self.make_key: Callable[[], bytes] = lambda: engine.random.randbytes(32)
        #: When the server began, and on which port it serves which protocol; "web" is one.
        self.started_at = 0
        self.ports: dict[str, int] = {}
        #: What tells how many MiB the process takes.
        self.memory_mb: Callable[[], int] = lambda: 0

    def begin(self, now: int) -> None:
        """The server serves from now on."""
        self.started_at = now
        _ = self.qless  # made from all jobs, now, while nobody waits for an answer
        self.alarm("sample", now)

    def alarm(self, what: str, now: int) -> None:
        if what == "sample":
            self.engine.alarm((self, what), self.samples.take(now))
        if self.engine.failing.go_on():
            self.engine.alarm((self, "failures"), now + FAILURE_INDEX_INTERVAL)

    @property
    def event(self) -> int:
        """The number that the last event has, or will have when it is written."""
        return self._next_event() - 1 + len(self.engine.batch.events)

    @property
    def qless(self) -> Qless | None:
        """What Qless keeps, if it is served: as it is now."""
        hub = self._of(QlessHub)
        if hub is None:
            return None
        assert isinstance(hub.api, QlessApi)
        qless = hub.api.qless
        qless.refresh()
        return qless

    @property
    def faktory(self) -> FaktoryHub | None:
        return self._of(FaktoryHub)

    def _of(self, kind: type[H]) -> H | None:
        return next((hub for hub in self.hubs if isinstance(hub, kind)), None)

    def lease_key(self) -> bytes:
        """What tokens of leases are made with. It is kept: they outlive a restart."""
        kept = self.engine.notes.get(LEASE_KEY)
        if kept is None:
            kept = self.make_key()
            self.engine.note(LEASE_KEY, kept)
        return kept

    def why(self, name: str, now: int) -> Explanation:
        if len(name) > MAX_NAME_LENGTH:
            raise AdminError(f"the name is longer than {MAX_NAME_LENGTH} characters", "too large")
        found = find_jobs(self.engine, name)
        jobs = [self._explain(job, now) for job in found[:MAX_JOBS_PER_ID]]
        seq = parse_number(name)
        known = bool(jobs) or 0 < seq < self.engine.next_seq
        return Explanation(jobs, now, known, len(found) - len(jobs))

    def sizes(self) -> dict[str, int]:
        return sizes(self.engine) | {"connections": sum(len(hub.connections) for hub in self.hubs)}

    def _explain(self, job: Job, now: int) -> JobExplanation:
        return JobExplanation(
            job.jid,
            job.seq,
            job.queue,
            job.kind,
            PROTOCOLS[job.origin],
            STATE_NAMES[job.state],
            job.attempt,
            self.reasons(job, now),
        )

    def reasons(self, job: Job, now: int) -> list[ReasonRecord]:
        """Reasons why a job is not running, from the engine and the protocols."""
        found = why(self.engine, job, now)
        if job.state == READY:
            held = [reason for hub in self.hubs for reason in hub.holds_back(job, now)]
            found.reasons[-1:-1] = held  # the place in the queue matters least
        return [
            ReasonRecord(
                reason.code,
                sentence(reason, found, now),
                reason.since,
                reason.until,
                reason.holder,
                reason.protocol,
                reason.count,
                [RelatedJob(each.jid, each.seq, each.state) for each in reason.blockers],
                reason.about,
            )
            for reason in found.reasons
        ]


def find_jobs(engine: Engine, name: str) -> list[Job]:
    """The jobs that somebody may mean by that name: of that id the oldest first, then of that
    number.
    """
    found = engine.find_all(name)
    job = engine.jobs.get(parse_number(name))
    return found if job is None or any(each is job for each in found) else [*found, job]


def jobs_by_id(engine: Engine, name: str) -> list[Job]:
    """The jobs of that id, for whoever changes them: a number that is nobody's id means nobody, or
    a stranger's job would be changed once the one of that id is gone.
    """
    found = engine.find_all(name)
    job = None if found else engine.jobs.get(seq_of(name))
    return found if job is None else [job]


def parse_number(name: str) -> int:
    """The job's number, if that is what the name is, or what it was made from; else 0."""
    if name.isascii() and name.isdigit() and len(name) < 20:
        return int(name)
    return seq_of(name)


#: An operation of the admin socket: the service, the arguments and the time. An operation that may
#: take long is a generator; it yields replies, and None to end its share of a turn.
Operation = Callable[[AdminService, Any, int], Reply | Iterator[Reply | None]]
