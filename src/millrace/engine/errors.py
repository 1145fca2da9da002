"""The errors that the engine raises when it refuses a command."""

from mypy_extensions import mypyc_attr


class EngineError(Exception):
    """The engine refused a command."""


class NoSuchJob(EngineError):
    """There is no such job."""


class NotLeased(EngineError):
    """The job is not leased."""


class WrongState(EngineError):
    """The state of the job does not permit the command."""


class LoadError(EngineError):
    """The state of the bulk load does not permit the command; the message gives the reason."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientError(Exception):
    """The client's command cannot be executed. The text becomes the error reply."""


class PayloadDamaged(ClientError):
    """The payload of a job in the store is damaged."""

    def __init__(self, seq: int, reason: str) -> None:
        super().__init__(f"the payload of job {seq} is damaged: {reason}")


class QueueRefused(ClientError):
    """The rule of the caller does not allow the queue or the command."""
