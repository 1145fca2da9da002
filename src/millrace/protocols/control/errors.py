"""What cannot be had over the control socket."""

from millrace.protocols.errors import ClientError

from .messages import Code


class Refused(ClientError):
    """What was asked cannot be had."""

    def __init__(self, reason: str, code: Code = "bad request") -> None:
        super().__init__(reason)
        self.code: Code = code


class NotFound(Refused):
    """There is no such thing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "not found")
