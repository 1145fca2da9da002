"""The Python SDK. It needs nothing else of Millrace, and nothing but the standard library."""

from .errors import (
    AlreadyDeleted,
    BadReply,
    ConnectionLost,
    MillraceError,
    NotConnected,
    Refused,
    TimedOut,
)
from .goqueue import GoJobQueue, ReservedJob

__all__ = [
    "AlreadyDeleted",
    "BadReply",
    "ConnectionLost",
    "GoJobQueue",
    "MillraceError",
    "NotConnected",
    "Refused",
    "ReservedJob",
    "TimedOut",
]
