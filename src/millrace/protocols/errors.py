"""Errors that are reported to a client. The text becomes the error reply."""

from typing import Final

from mypy_extensions import mypyc_attr

from millrace.engine.errors import ClientError, PayloadDamaged
from millrace.records import Code

__all__ = [
    "BadJson",
    "ClientError",
    "CodedError",
    "PartlyExecuted",
    "PayloadDamaged",
    "StoreUnavailable",
]

#: The reason for a refusal if the store is writable again.
STORE_FAILED: Final = "the store failed"


@mypyc_attr(allow_interpreted_subclasses=True)
class CodedError(ClientError):
    """The request cannot be executed; the code selects the status of an HTTP response."""

    def __init__(self, reason: str, code: Code = "bad request") -> None:
        super().__init__(reason)
        self.code: Code = code


class StoreUnavailable(ClientError):
    """The store cannot be written to, or new jobs are refused; nothing was changed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}: nothing was changed, try again later")


class PartlyExecuted(ClientError):
    """The store refused a later part of a command; an earlier one is durable."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason or STORE_FAILED}: only part of the command was executed; try again later"
        )


class BadJson(ClientError):
    """The client's JSON cannot be read."""
