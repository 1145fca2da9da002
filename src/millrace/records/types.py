"""Field types, limits and names that several records share."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

State = Literal["scheduled", "blocked", "ready", "leased", "done", "dead"]
STATES: Final[tuple[State, ...]] = ("scheduled", "blocked", "ready", "leased", "done", "dead")
Code = Literal[
    "bad request", "not found", "conflict", "refused", "unavailable", "too large", "stopped"
]
Order = Literal["newest", "due", "queue", "ended"]

#: The audit entry of a failed login. Anyone can cause such entries.
LOGIN_REFUSED: Final = "login refused"

# Limits

SECOND: Final = 1_000_000
MAX_PAGE_SIZE: Final = 1000
#: Queues, failure groups, found jobs and audit entries are larger, so a page has fewer of them.
MAX_LARGE_PAGE_SIZE: Final = 500
#: Maximum length of the name of a queue in bytes: the limit of Go Job Queue.
MAX_QUEUE_NAME: Final = 255
#: Characters of an ID or a kind that is pushed over HTTP, and of a worker's name.
MAX_NAME: Final = 255
MAX_TAGS: Final = 100
MAX_TAG: Final = 255
#: Priorities lie between -MAX_PRIORITY and MAX_PRIORITY: every such integer is exact as a float.
MAX_PRIORITY: Final = 1 << 53
MAX_RETRIES: Final = 1_000_000
#: Maximum number of leased jobs that a limit of a queue can permit.
MAX_LIMIT: Final = 1_000_000
#: Maximum retention time of a completed job, in microseconds.
MAX_RETENTION: Final = 366 * 86_400 * SECOND
#: Length of the name and of the value of a Qless setting.
MAX_OPTION_NAME: Final = 1000
MAX_OPTION_VALUE: Final = 10_000
#: Jobs that one request pushes, leases, or names.
MAX_PUSHED: Final = 200
MAX_LEASED: Final = 100
MAX_LEASED_QUEUES: Final = 100
MAX_NAMED_JOBS: Final = 1000
MAX_PAYLOAD: Final = 16 << 20
MIN_LEASE: Final = SECOND
MAX_LEASE: Final = 31_536_000 * SECOND
MAX_TERMS: Final = 20
MAX_TERM: Final = 1000
MAX_ERROR_GROUP: Final = 200
MAX_ERROR_MESSAGE: Final = 10_000
MAX_BACKTRACE_LINES: Final = 50
MAX_BACKTRACE_LINE: Final = 1000


# Fields


def Doc(title: str, text: str, **extra: Any) -> Meta:  # noqa: N802 - reads as an annotation
    """The title of a field on pages and in tables, and its description in the API.

    `name` is its name over HTTP if that differs, `also` a second name there, `null` a value that
    is null there, and `internal=True` keeps the field out of the HTTP API. `column` is its name in
    the export form, None if it has none; an `optional` column is absent without a value.
    """
    return Meta(title=title, description=text, extra=extra)


def _form(form: str) -> Meta:
    return Meta(extra={"form": form})


#: Microseconds since 1970, 0 for none. Over HTTP: RFC 3339, or null.
Time = Annotated[int, _form("time")]
#: Microseconds. Over HTTP: seconds.
Duration = Annotated[int, _form("duration")]
#: A day as the number of days since 1970. Over HTTP: `2026-11-17`.
Day = Annotated[int, _form("day")]
#: Numbers of jobs in the order of STATES. Over HTTP: an object with one member per state.
StateCounts = Annotated[list[int], _form("counts")]
#: The first bytes of a payload; the field `size` has the complete size. Over HTTP: `payload` or
#: `payload_base64`, only if the payload is complete.
Excerpt = Annotated[bytes, _form("payload")]
#: Over HTTP: `result` or `result_base64`.
Result = Annotated[bytes, _form("result")]
#: Start of the next page; empty at the end. Over HTTP: null at the end.
Cursor = Annotated[str, Doc("Next", "Cursor of the next page; null on the last one.", null="")]


class Record(msgspec.Struct):
    """Part of a reply."""


class AdminRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Arguments of one operation; an unknown argument is an error."""


class LatencySummary(Record):
    """Durations of the last five to ten minutes."""

    count: Annotated[int, Doc("Count", "Number of measured durations.")]
    p50: Annotated[Duration, Doc("Median", "Median, in seconds.")]
    p95: Annotated[Duration, Doc("95 %", "95th percentile, in seconds.")]
    p99: Annotated[Duration, Doc("99 %", "99th percentile, in seconds.")]


class Ok(Record):
    """The action was carried out."""

    ok: Annotated[bool, Doc("OK", "Always true.")] = True


class ErrorDetail(Record):
    """The code and the text of an error."""

    code: Code
    detail: str


class AdminErrorReply(Record):
    """A request that was refused."""

    error: ErrorDetail

    @classmethod
    def of(cls, code: Code, detail: str) -> "AdminErrorReply":
        return cls(ErrorDetail(code, detail))


class ErrorReply(Record):
    """An error for clients of version 1."""

    error: str
    code: Code = "bad request"
