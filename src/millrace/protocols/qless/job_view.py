"""What Qless keeps with each job beside what the engine knows: history, tags, grace."""

from typing import Any, Final

import msgspec

from millrace.engine.job import FOREVER, QLESS, Job, extra_of
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.protocols.payloads import BASE64, as_json

from . import lua_values as lua

#: Floored seconds, what, and what else: `(1352075209, "popped", {"worker": "w1"})`.
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
    """The last failure, as jobs show it."""

    group: str
    message: str
    when: float
    worker: str


class Throttled(msgspec.Struct, array_like=True, gc=False):
    """Set aside because a throttle is full: which one, since when, and the rank it had."""

    throttle: str
    since: int
    rank: float


class Part(msgspec.Struct, array_like=True, gc=False):
    """Kept in Extra.own."""

    priority: float = 0
    history: list[Any] = []
    #: Each with the moment at which it was added, in microseconds.
    tags: list[Any] = []
    #: When its lock ran out, once its worker has been told so: it has some time of grace.
    expired_at: int | None = None
    #: Its lock was taken away by `timeout`.
    stalled: bool = False
    failure: Failed | None = None
    spawned_from: str = ""
    done_at: int = 0
    throttles: list[str] = []
    #: Since when it has been where it is now: put, popped, or moved on to the next queue.
    since: int = 0
    throttled: Throttled | None = None
    #: Throttles from which a client released it while a worker had it.
    freed: list[str] = []
    #: The client that set the priority uses the dialect in which the lower number runs first.
    lower_first: bool = False

    @property
    def rank(self) -> float:
        """The order that its priority has in the engine, where higher is sooner."""
        return -self.priority if self.lower_first else self.priority

    def add(self, what: str, now: int, most: int, more: dict[str, Any] | None = None) -> None:
        """One more stage of the job's history: the first one and the newest `most` - 1 are kept."""
        self.history.append((now // 1_000_000, what, more))
        if 0 < most < len(self.history):
            self.history[1:] = self.history[len(self.history) - most + 1 :] if most > 1 else []

    def tag_names(self) -> list[Any]:
        return [tag for tag, _ in self.tags]


def part_of(job: Job) -> Part:
    """A job's part, for a command that changes it. A job of another protocol gets one here."""
    part = read_part(job)
    extra_of(job).own = part
    return part


def read_part(job: Job) -> Part:
    """A job's part, for a command that only reads: it must leave the job as it is, because nothing
    writes the job to the store then.
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
    """Let a job that is put again show no worker."""
    job.holder, job.deadline = "", 0


def shown_worker(job: Job) -> str:
    """The worker that has a job, or had it last; empty after its end and after a new put."""
    return "" if job.state in {DONE, DEAD} else job.holder


def shown_expiry(job: Job) -> bytes:
    """When its lock runs out or ran out, in seconds."""
    if job.state in {DONE, DEAD}:
        return b"0"
    if job.deadline == FOREVER:
        return b"0"  # it lasts as long as a connection does
    expired_at = read_part(job).expired_at
    return lua.seconds(job.deadline if expired_at is None else expired_at)


def waits_since(job: Job) -> int:
    """When the wait began that ends now: with a put, even if the job was not due yet."""
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
    """A job's klass. What comes from protocols that have no kinds is known by its queue."""
    return job.kind if job.kind or job.origin == QLESS else job.queue


def data_of(job: Job) -> bytes:
    """A job's data: JSON as it is; of jobs of other protocols see payloads.py."""
    return job.payload if job.origin == QLESS else as_json(job.payload)[0]


def shown_data(job: Job) -> tuple[bytes, bytes]:
    """A job's data, and a member that says so if it is in base64."""
    if job.origin == QLESS:
        return job.payload, b""
    data, in_base64 = as_json(job.payload)
    return data, b',"encoding":"%b"' % BASE64.encode() if in_base64 else b""


def shown_priority(job: Job, *, lower_first: bool) -> float:
    """A job's priority as it was given; for a job of another protocol, in the caller's dialect."""
    part = read_part(job)
    if job.origin != QLESS and part.lower_first != lower_first:
        return 0 - part.priority
    return part.priority


def remaining(job: Job) -> int:
    """How many tries are left. Other protocols count differently, but none has less than none."""
    left = job.retries - job.failures
    return left if job.origin == QLESS else max(0, left)
