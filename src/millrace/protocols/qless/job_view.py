"""The state that Qless stores with each job in addition to the engine: history, tags, grace."""

from typing import Any, Final

import msgspec

from millrace.engine.job import FOREVER, QLESS, Job, extra_of
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.protocols.payloads import BASE64, as_json

from . import lua_values as lua

#: Time in whole seconds, event, and further fields: `(1352075209, "popped", {"worker": "w1"})`.
Stage = tuple[float, str, dict[str, Any] | None]

STATES: Final = {
    READY: "waiting",
    LEASED: "running",
    SCHEDULED: "scheduled",
    BLOCKED: "depends",
    DEAD: "failed",
    DONE: "complete",
}


class Failed(msgspec.Struct, array_like=True, gc=False):
    """The last failure of a job, in the format of the replies."""

    group: str
    message: str
    when: float
    worker: str


class Throttled(msgspec.Struct, array_like=True, gc=False):
    """A job set aside by a full throttle: the throttle, the start time, and the previous rank."""

    throttle: str
    since: int
    rank: float


class Part(msgspec.Struct, array_like=True, gc=False):
    """The Qless state of a job, stored in Extra.own."""

    priority: float = 0
    history: list[Any] = []
    #: Each tag with the time at which it was added, in microseconds.
    tags: list[Any] = []
    #: Time at which the lock expired, set when the worker is notified. The grace period follows.
    expired_at: int | None = None
    #: Whether `timeout` removed its lock.
    stalled: bool = False
    failure: Failed | None = None
    spawned_from: str = ""
    done_at: int = 0
    throttles: list[str] = []
    #: Time of the last transition: put, popped, or moved to the next queue.
    since: int = 0
    throttled: Throttled | None = None
    #: Throttles that a client released while a worker held the job.
    freed: list[str] = []
    #: Whether the client that set the priority uses the dialect where lower numbers run first.
    lower_first: bool = False

    @property
    def rank(self) -> float:
        """Return the rank of the priority in the engine, where a higher rank runs earlier."""
        return -self.priority if self.lower_first else self.priority

    def add(self, what: str, now: int, most: int, more: dict[str, Any] | None = None) -> None:
        """Add a stage to the history. The history retains the first stage and the newest `most` -
        1.
        """
        self.history.append((now // 1_000_000, what, more))
        if 0 < most < len(self.history):
            self.history[1:] = self.history[len(self.history) - most + 1 :] if most > 1 else []

    def tag_names(self) -> list[Any]:
        return [tag for tag, _ in self.tags]


def part_of(job: Job) -> Part:
    """Return the part of a job for a command that changes it. Create a missing part."""
    part = read_part(job)
    extra_of(job).own = part
    return part


def read_part(job: Job) -> Part:
    """Return the part of a job for a command that only reads. The command must not change the job,
    because the change would not be stored.
    """
    extra = job.extra
    part = None if extra is None else extra.own
    if type(part) is Part:
        return part
    if extra is not None and part is not None:
        extra.own = made = msgspec.convert(part, Part)  # as the store returned it
        return made
    # The engine keeps the priorities and tags of other protocols' jobs.
    tags = [] if extra is None else [(tag, job.created) for tag in extra.tags]
    return Part(job.rank, [(job.created // 1_000_000, "put", {"q": job.queue})], tags)


def forget_holder(job: Job) -> None:
    """Clear the worker of a job that is put again."""
    job.holder, job.deadline = "", 0


def shown_worker(job: Job) -> str:
    """Return the current or last worker of a job, or an empty string after its end or a new put."""
    return "" if job.state in {DONE, DEAD} else job.holder


def shown_expiry(job: Job) -> bytes:
    """Return the time at which the lock expires or expired, in seconds."""
    if job.state in {DONE, DEAD}:
        return b"0"
    if job.deadline == FOREVER:
        return b"0"  # the lock lasts as long as the connection
    expired_at = read_part(job).expired_at
    return lua.seconds(job.deadline if expired_at is None else expired_at)


def waits_since(job: Job) -> int:
    """Return the start of the wait that ends now: the put, even if the job was not due then."""
    return read_part(job).since or job.ready_at


def state_of(job: Job) -> str:
    if job.state == READY:
        part = read_part(job)
        if part.throttled is not None:
            return "throttled"
        if part.stalled:
            return "stalled"
    return STATES[job.state]


def klass_of(job: Job) -> str:
    """Return the klass of a job. For a job of a protocol without kinds, it is the queue name."""
    return job.kind if job.kind or job.origin == QLESS else job.queue


def data_of(job: Job) -> bytes:
    """Return the data of a job as JSON. For jobs of other protocols, see payloads.py."""
    return job.payload if job.origin == QLESS else as_json(job.payload)[0]


def shown_data(job: Job) -> tuple[bytes, bytes]:
    """Return the data of a job, and an `encoding` member if the data is in base64."""
    if job.origin == QLESS:
        return job.payload, b""
    data, in_base64 = as_json(job.payload)
    return data, b',"encoding":"%b"' % BASE64.encode() if in_base64 else b""


def shown_priority(job: Job, *, lower_first: bool) -> float:
    """Return the specified priority; for a job of another protocol, in the caller's dialect."""
    part = read_part(job)
    if job.origin != QLESS and part.lower_first != lower_first:
        return 0 - part.priority
    return part.priority


def remaining(job: Job) -> int:
    """Return the number of remaining tries. For jobs of other protocols, the minimum is 0."""
    left = job.retries - job.failures
    return left if job.origin == QLESS else max(0, left)
