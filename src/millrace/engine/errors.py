"""The errors that the engine raises when it refuses a command."""


class EngineError(Exception):
    """The engine refused a command."""


class NoSuchJob(EngineError):
    """There is no such job."""


class NotLeased(EngineError):
    """The job is not leased."""


class WrongState(EngineError):
    """The state of the job does not permit the command."""


class LoadError(EngineError):
    """The state of the bulk load does not permit the command; the message has the reason."""
