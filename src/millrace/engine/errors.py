"""What a caller of the engine can do wrong."""


class EngineError(Exception):
    """The engine refused a command."""


class NoSuchJob(EngineError):
    """There is no such job."""


class NotLeased(EngineError):
    """Nobody holds a lease on this job."""


class WrongState(EngineError):
    """The job is not in a state in which this can be done."""


class LoadError(EngineError):
    """That cannot be done to this load; the text says why."""
