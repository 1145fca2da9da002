"""Errors that are reported to a client. The text becomes the error reply."""

from mypy_extensions import mypyc_attr

from millrace.engine.errors import ClientError, PayloadDamaged
from millrace.records import Code

__all__ = ["BadJson", "ClientError", "CodedError", "PayloadDamaged", "StoreUnavailable"]


@mypyc_attr(allow_interpreted_subclasses=True)
class CodedError(ClientError):
    """The request cannot be executed; the code selects the status of an HTTP response."""

    def __init__(self, reason: str, code: Code = "bad request") -> None:
        super().__init__(reason)
        self.code: Code = code


class StoreUnavailable(ClientError):
    """The store cannot be written, or new jobs are refused; nothing was changed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}: nothing was changed, try again later")


class BadJson(ClientError):
    """The client's JSON cannot be read."""
