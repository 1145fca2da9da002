"""What cannot be had over the control socket."""

from millrace.engine.engine import Engine
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


class Unfit(ClientError):
    """That cannot be done to this job; the text says why."""


def need_durable(engine: Engine) -> None:
    """Nothing is changed while nothing can be made durable."""
    if engine.halted:
        reason = f"{engine.halted}: nothing was changed, try again later"
        raise Refused(reason, "unavailable")
