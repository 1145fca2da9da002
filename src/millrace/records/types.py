"""Types and names that several records share."""

from typing import Final, Literal

import msgspec

State = Literal["scheduled", "blocked", "ready", "leased", "done", "dead"]


Code = Literal[
    "bad request", "not found", "conflict", "refused", "unavailable", "too large", "stopped"
]


#: Priorities lie between -MAX_PRIORITY and MAX_PRIORITY: every such integer is exact as a float.
MAX_PRIORITY: Final = 1 << 53
#: Length of the name and of the value of a Qless setting.
MAX_OPTION_NAME: Final = 1000
MAX_OPTION_VALUE: Final = 10_000
#: The audit entry of a failed login. Anyone can cause such entries.
LOGIN_REFUSED: Final = "login refused"


class ErrorReply(msgspec.Struct):
    """What was asked cannot be had, and why."""

    error: str
    code: Code = "bad request"


class LatencySummary(msgspec.Struct):
    """How long something took lately: the last five to ten minutes."""

    count: int
    p50: int
    p95: int
    p99: int


Action = Literal[
    "retry",
    "kill",
    "cancel",
    "delete",
    "move",
    "priority",
    "tag",
    "untag",
    "track",
    "untrack",
    "undepend",
    "timeout",
]


class Ok(msgspec.Struct):
    ok: bool = True
