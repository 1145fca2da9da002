"""Errors of operations on the admin socket."""

from typing import TYPE_CHECKING

from millrace.protocols.errors import ClientError, CodedError, StoreUnavailable

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


class AdminError(CodedError):
    """The request failed; the text gives the reason."""


class TargetNotFound(AdminError):
    """The target does not exist."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "not found")


class NotApplicable(ClientError):
    """The action does not apply to this job; the text gives the reason."""


def require_writable(engine: "Engine") -> None:
    """Raise StoreUnavailable if the engine has halted and cannot make changes durable."""
    if engine.unavailable_reason:
        raise StoreUnavailable(engine.unavailable_reason)


def require_room(engine: "Engine") -> None:
    """Raise it also if the engine lacks the disk space or memory for new jobs."""
    if refused := engine.unavailable_reason or engine.push_refusal_reason:
        raise StoreUnavailable(refused)
