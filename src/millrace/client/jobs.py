"""Jobs as the SDK sends and receives them.

A job is a Faktory work unit. Positional arguments are its `args`, so that workers in other
languages can run it. Everything that Faktory does not define is in `custom.millrace`: keyword
arguments, the priority, tags and dependencies. A plain Faktory server stores `custom` and ignores
its contents.
"""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from .errors import BadReply, InvalidArguments
from .wire import to_json

#: Faktory's bounds for `reserve_for`, in seconds.
MIN_RESERVE: Final = 60
MAX_RESERVE: Final = 86_400
#: Time that a worker has to report a job after its timeout, in seconds.
REPORT_MARGIN: Final = 30
DEFAULT_RETRIES: Final = 25
#: `retry` of a work unit that goes to the dead set with its first failure.
NO_RETRIES: Final = -1
ID_BYTES: Final = 12

Delay = float | timedelta


class Serializer(Protocol):
    """Converts arguments to JSON values and back."""

    name: str

    def dump(self, value: Any) -> Any:
        """A value that JSON can represent."""
        ...

    def load(self, value: Any) -> Any:
        """The value that `dump` was called with."""
        ...


class JsonSerializer:
    """Arguments are JSON values: str, int, float, bool, None, lists and dicts with string keys."""

    name = "json"

    def dump(self, value: Any) -> Any:
        return value

    def load(self, value: Any) -> Any:
        return value


def new_id() -> str:
    return secrets.token_hex(ID_BYTES)


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to push. `Task.job()` creates one from a task and its arguments."""

    name: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    queue: str = "default"
    retries: int = DEFAULT_RETRIES
    #: Seconds that one attempt may take.
    timeout: float | None = None
    #: When the job becomes ready, as seconds since 1970.
    at: float | None = None
    priority: int = 0
    tags: Sequence[str] = ()
    #: Ids of jobs that must complete first.
    depends_on: Sequence[str] = ()
    #: Seconds that the server retains the completed job with its result.
    keep_result: float | None = None
    id: str = field(default_factory=new_id)

    @property
    def extensions(self) -> frozenset[str]:
        """The fields that only a Millrace server supports."""
        used = {"priority": self.priority, "tags": self.tags, "depends_on": self.depends_on}
        names = {name for name, value in used.items() if value}
        return frozenset(names if self.keep_result is None else names | {"keep_result"})

    def to_work_unit(self, serializer: Serializer) -> str:
        """The job as the JSON text of PUSH."""
        unit: dict[str, Any] = {
            "jid": self.id,
            "jobtype": self.name,
            "args": [serializer.dump(value) for value in self.args],
            "queue": self.queue,
            "retry": self.retries if self.retries > 0 else NO_RETRIES,
            "created_at": _format_time(datetime.now(UTC)),
        }
        if self.timeout is not None:
            unit["reserve_for"] = reserve_for(self.timeout)
        if self.at is not None:
            unit["at"] = _format_time(datetime.fromtimestamp(self.at, UTC))
        extra: dict[str, Any] = {}
        if self.kwargs:
            extra["kwargs"] = {key: serializer.dump(value) for key, value in self.kwargs.items()}
        if self.timeout is not None:
            extra["timeout"] = self.timeout
        if serializer.name != JsonSerializer.name:
            extra["serializer"] = serializer.name
        extra |= {name: _plain(getattr(self, name)) for name in sorted(self.extensions)}
        if extra:
            unit["custom"] = {"millrace": extra}
        try:
            return to_json(unit)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(
                f"The arguments of {self.name} cannot be written as JSON: {error}. "
                "Pass plain values, or use another serializer."
            ) from None


@dataclass(frozen=True, slots=True)
class Job:
    """A job that a worker has fetched."""

    id: str
    name: str
    queue: str
    args: list[Any]
    kwargs: dict[str, Any]
    timeout: float | None
    serializer: str
    #: Failed attempts before this one.
    failures: int
    #: The work unit as received.
    work_unit: dict[str, Any]


def read_job(body: bytes) -> Job:
    """The job in a reply to FETCH."""
    return _read_unit(_load(body))


def read_jobs(body: bytes) -> list[Job]:
    """The jobs in a reply to a bulk fetch."""
    units = _load(body)
    if not isinstance(units, list):
        raise BadReply("The server sent a malformed list of jobs.")
    return [_read_unit(unit) for unit in units]


def _load(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise BadReply(f"The server sent a malformed job: {error!r}") from None


def _read_unit(unit: Any) -> Job:
    try:
        custom = unit.get("custom") or {}
        extra = custom.get("millrace") if isinstance(custom, dict) else None
        extra = extra if isinstance(extra, dict) else {}
        failure = unit.get("failure") or {}
        return Job(
            id=unit["jid"],
            name=unit["jobtype"],
            queue=unit.get("queue") or "default",
            args=list(unit.get("args") or []),
            kwargs=dict(extra.get("kwargs") or {}),
            timeout=extra.get("timeout"),
            serializer=extra.get("serializer") or JsonSerializer.name,
            failures=int(failure.get("retry_count", -1)) + 1,
            work_unit=unit,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadReply(f"The server sent a malformed job: {error!r}") from None


def reserve_for(timeout: float) -> int:
    """The time that the server waits for the end of an attempt with this timeout, in seconds."""
    return min(MAX_RESERVE, max(MIN_RESERVE, int(timeout) + REPORT_MARGIN))


def due_time(delay: Delay | None, at: datetime | float | None, now: float) -> float | None:
    """The time at which a job becomes ready, from either a delay or a time."""
    if delay is not None and at is not None:
        raise ValueError("Give either `delay` or `at`, not both.")
    if delay is not None:
        return now + (delay.total_seconds() if isinstance(delay, timedelta) else delay)
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError("`at` needs a time zone, for example datetime.now(UTC).")
        return at.timestamp()
    return at


def check_size(text: str, limit: int, name: str) -> str:
    if len(text) > limit or (len(text) * 4 > limit and len(text.encode()) > limit):
        raise InvalidArguments(
            f"A job of {name} is larger than {limit} bytes. "
            "Store large data elsewhere and pass a reference."
        )
    return text


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else list(value)


def _format_time(value: datetime) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def chunks(jobs: Iterable[NewJob], size: int) -> Iterable[list[NewJob]]:
    chunk: list[NewJob] = []
    for job in jobs:
        chunk.append(job)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
