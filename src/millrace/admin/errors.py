"""Errors of operations on the admin socket."""

from typing import TYPE_CHECKING

from millrace.protocols.errors import ClientError
from millrace.records import Code

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


class AdminError(ClientError):
    """What was asked cannot be had."""

    def __init__(self, reason: str, code: Code = "bad request") -> None:
        super().__init__(reason)
        self.code: Code = code


class NotFound(AdminError):
    """There is no such thing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "not found")


class NotApplicable(ClientError):
    """That cannot be done to this job; the text says why."""


def require_writable(engine: "Engine") -> None:
    """Raise AdminError if the engine has halted and cannot make changes durable."""
    _refuse(engine.halted)


def require_room(engine: "Engine") -> None:
    """Raise AdminError if the engine has halted or lacks the disk space or memory for new jobs."""
    _refuse(engine.halted or engine.pushes_refused)


def _refuse(reason: str) -> None:
    if reason:
        raise AdminError(f"{reason}: nothing was changed, try again later", "unavailable")
