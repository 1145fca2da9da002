"""The state that all connections to the admin socket share."""

from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, Protocol, TypeVar

import msgspec

from millrace.engine.engine import Engine
from millrace.engine.job import Job, seq_from_id
from millrace.engine.reasons import sentence, why
from millrace.engine.sizes import sizes_in_slices
from millrace.engine.states import STATE_NAMES
from millrace.protocols.connection import Hub
from millrace.protocols.faktory.hub import FaktoryHub
from millrace.protocols.http.tokens import LeaseTokens
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.state import QlessState
from millrace.protocols.registry import PROTOCOL_NAMES
from millrace.records import (
    ExplainedJobs,
    JobExplanation,
    PipelineRun,
    ReasonRecord,
    RelatedJob,
    ServerStatus,
    ShippingStatus,
)

from .audit import AuditLog
from .errors import AdminError
from .idempotency import IdempotencyKeys
from .imported_ids import ImportedIds
from .samples import Samples

#: Maximum jobs explained per id. All connections wait while the server examines them.
MAX_JOBS_PER_ID: Final = 20

#: Maximum length of a job name in a request.
MAX_NAME_LENGTH: Final = 65_536

#: Interval in microseconds between two slices of the failure index.
FAILURE_INDEX_INTERVAL: Final = 10_000

H = TypeVar("H", bound=Hub)

#: Result of an operation: a record, or a JSON object in the format of another server.
Reply = msgspec.Struct | dict[str, Any]


class ShipperPort(Protocol):
    """The component that ships the journal."""

    def current_status(self) -> ShippingStatus: ...

    def ship(self, done: Callable[[str], None]) -> None:
        """Ship all committed events, then call `done` with an error message or an empty string."""
        ...


class HostInfo(Protocol):
    """Information about the process that the engine does not have."""

    def server_status(self) -> ServerStatus: ...

    def pipeline(self) -> PipelineRun: ...

    def run_pipeline(self) -> str:
        """Start a run. Return an error message, or an empty string on success."""
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
        #: Time of the current turn, for operations that run in slices.
        self.now = 0
        #: Returns the number of the next event that the store receives.
        self._next_event = next_event
        self.samples = Samples(engine)
        self.idempotency = IdempotencyKeys(engine)
        self.imported = ImportedIds(engine)
        self.tokens = LeaseTokens(engine)
        #: Start time of the server, and port of each protocol, including "web".
        self.started_at = 0
        self.ports: dict[str, int] = {}
        #: Returns the memory usage of the process in MiB.
        self.memory_mb: Callable[[], int] = lambda: 0

    def begin(self, now: int) -> None:
        """Initialize the service when the server starts."""
        self.started_at = now
        _ = self.qless  # builds the Qless state from all jobs before the first request
        self.handle_alarm("sample", now)

    def handle_alarm(self, name: str, now: int) -> None:
        if name == "sample":
            self.engine.set_alarm((self, name), self.samples.take(now))
            self.idempotency.expire(now)
        if self.engine.failure_groups.index_batch():
            self.engine.set_alarm((self, "failures"), now + FAILURE_INDEX_INTERVAL)

    @property
    def event(self) -> int:
        """The number of the last event, including events that are not yet written."""
        return self._next_event() - 1 + self.engine.change_set.event_count

    @property
    def qless(self) -> QlessState | None:
        """The current Qless state, or None if the Qless port is off."""
        hub = self._of(QlessHub)
        if hub is None:
            return None
        qless = hub.api.qless
        qless.refresh()
        return qless

    @property
    def faktory(self) -> FaktoryHub | None:
        return self._of(FaktoryHub)

    def _of(self, kind: type[H]) -> H | None:
        return next((hub for hub in self.hubs if isinstance(hub, kind)), None)

    def why(self, name: str, now: int) -> ExplainedJobs:
        if len(name) > MAX_NAME_LENGTH:
            raise AdminError(f"A name has at most {MAX_NAME_LENGTH:,} characters.", "too large")
        found = find_jobs(self.engine, name)
        jobs = [self._explain(job, now) for job in found[:MAX_JOBS_PER_ID]]
        seq = parse_number(name)
        known = bool(jobs) or 0 < seq < self.engine.next_seq
        return ExplainedJobs(jobs, now, known, len(found) - len(jobs))

    def sizes(self) -> Generator[None, None, dict[str, int]]:
        found = yield from sizes_in_slices(self.engine)
        return found | {"connections": sum(len(hub.connections) for hub in self.hubs)}

    def _explain(self, job: Job, now: int) -> JobExplanation:
        return JobExplanation(
            job.jid,
            job.seq,
            job.queue,
            job.kind,
            PROTOCOL_NAMES[job.origin],
            STATE_NAMES[job.state],
            job.attempt,
            self.reasons(job, now),
        )

    def reasons(self, job: Job, now: int) -> list[ReasonRecord]:
        """Reasons why a job is not running."""
        found = why(self.engine, job, now)
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
    """Return the jobs that a name may refer to: jobs with that id, the oldest first, then the job
    with that number.
    """
    found = engine.find_all(name)
    job = engine.job(parse_number(name))
    return found if job is None or any(each is job for each in found) else [*found, job]


def jobs_by_id(engine: Engine, name: str) -> list[Job]:
    """Return the jobs with that id, for operations that change them. A plain number is an id here,
    not a job number. Otherwise, after the deletion of the job with that id, an operation would
    change an unrelated job.
    """
    found = engine.find_all(name)
    job = None if found else engine.job(seq_from_id(name))
    return found if job is None else [job]


def parse_number(name: str) -> int:
    """Return the job number that the name is or was generated from, or 0."""
    if name.isascii() and name.isdigit() and len(name) < 20:
        return int(name)
    return seq_from_id(name)


#: An operation of the admin socket: the service, the arguments and the time. An operation that may
#: take long is a generator; it yields replies, and None to end its share of a turn.
Operation = Callable[[AdminService, Any, int], Reply | Iterator[Reply | None]]
