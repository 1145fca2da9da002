"""The fields of a job as Qless clients see them."""

from collections.abc import Generator
from typing import Final, NamedTuple

from millrace.engine.annotations import existing_details, read_details
from millrace.engine.engine import Engine
from millrace.engine.job import FOREVER, Job
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.protocols.payloads import BASE64, as_json
from millrace.protocols.registry import QLESS

from . import lua_values as lua
from .names import decode_name

#: The size of the parts in which large data is written.
PART_BYTES: Final = 1 << 17

STATES: Final = {
    READY: "waiting",
    LEASED: "running",
    SCHEDULED: "scheduled",
    BLOCKED: "depends",
    DEAD: "failed",
    DONE: "complete",
}


def shown_worker(job: Job) -> str:
    """Return the current or last worker of a job, or an empty string after its end or a new put."""
    return "" if job.state in {DONE, DEAD} else job.history.holder


def shown_expiry(job: Job) -> bytes:
    """Return the time at which the lock expires or expired, in seconds."""
    if job.state in {DONE, DEAD}:
        return b"0"
    if job.history.deadline == FOREVER:
        return b"0"  # the lock lasts as long as the connection
    expired_at = read_details(job).lapsed_at
    return lua.format_seconds(job.history.deadline if expired_at is None else expired_at)


def wait_start(job: Job) -> int:
    """Return the start of the wait before a lease: the put, even if the job was not due then."""
    return read_details(job).waiting_since or job.ready_at


def last_put_time(job: Job) -> int:
    """Return the time of the last put of a job that waits for its dependencies."""
    details = existing_details(job)
    return job.created if details is None else details.waiting_since or job.created


def state_of(job: Job) -> str:
    if job.state == READY:
        details = read_details(job)
        if details.parked is not None:
            return "throttled"
        if details.front:
            return "stalled"
    return STATES[job.state]


def klass_of(job: Job) -> str:
    """Return the klass of a job. For a job of a protocol without kinds, it is the queue name."""
    return job.kind if job.kind or job.origin == QLESS else job.queue


def data_of(engine: Engine, job: Job) -> bytes:
    """Return the data of a job as JSON. For jobs of other protocols, see payloads.py."""
    payload = engine.payload(job)
    return payload if job.origin == QLESS else as_json(payload)[0]


class JobText(NamedTuple):
    """The JSON of a job before and after the value of its member `data`."""

    head: bytes
    #: Whether the value is a string that contains the data.
    quoted: bool
    tail: bytes

    def with_members(self, members: bytes) -> "JobText":
        """Add members at the end."""
        return self._replace(tail=b"%b,%b}" % (self.tail[:-1], members))


def with_data(engine: Engine, job: Job, text: JobText) -> bytes:
    """Return the JSON of a job. A member `encoding` follows the data if it is in base64."""
    data, encoding = shown_data(engine, job)
    value = lua.encode_string(decode_name(data)) if text.quoted else data
    return b"%b%b%b%b" % (text.head, value, encoding, text.tail)


def with_data_in_slices(
    engine: Engine, job: Job, text: JobText
) -> Generator[None, None, list[bytes]]:
    """Return the parts of what `with_data` returns for a job with large data, in slices."""
    data, encoding = shown_data(engine, job)
    if not text.quoted:
        return [text.head, data, encoding, text.tail]
    yield
    parts: list[bytes] = [text.head, b'"']
    start = 0
    while start < len(data):
        end = _boundary(data, start + PART_BYTES)
        parts.append(lua.encode_string(decode_name(data[start:end]))[1:-1])
        start = end
        yield
    return [*parts, b'"', encoding, text.tail]


def _boundary(data: bytes, end: int) -> int:
    """Return a position up to `end` that is not inside a UTF-8 character. In bytes that are not
    valid UTF-8, more than three continuation bytes can precede any position.
    """
    if end >= len(data):
        return len(data)
    for at in range(end, end - 4, -1):
        if data[at] & 0xC0 != 0x80:
            return at
    return end


def shown_data(engine: Engine, job: Job) -> tuple[bytes, bytes]:
    """Return the data of a job, and an `encoding` member if the data is in base64."""
    payload = engine.payload(job)
    if job.origin == QLESS:
        return payload, b""
    data, in_base64 = as_json(payload)
    return data, b',"encoding":"%b"' % BASE64.encode() if in_base64 else b""


def shown_priority(job: Job, *, lower_first: bool) -> float:
    """Return the specified priority; for a job of another protocol, in the caller's dialect."""
    details = read_details(job)
    if job.origin != QLESS and details.lower_first != lower_first:
        return 0 - details.priority
    return details.priority


def remaining(job: Job) -> int:
    """Return the number of remaining tries. For jobs of other protocols, the minimum is 0."""
    left = job.retries - job.history.failures
    return left if job.origin == QLESS else max(0, left)
