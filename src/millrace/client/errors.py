"""Errors of the SDK.

After `RequestRefused` and its subclasses, the connection is usable, and the command had no effect.
After any other error, the connection is closed, and the server may or may not have executed the
command.
"""


class MillraceError(Exception):
    """Base class of all errors of the SDK."""


class NotConnected(MillraceError):
    """The connection is not open. Call `connect()` of a `GoJobQueue` first."""


class ConnectionLost(MillraceError, ConnectionError):
    """The server cannot be reached, or the connection was lost. The command may have run."""


class TimedOut(MillraceError, TimeoutError):
    """The server did not answer in time, or a job did not end within the timeout of `result`."""


class BadReply(MillraceError):
    """The server sent bytes that are not a reply of the protocol. Check the port number."""


class RequestRefused(MillraceError):
    """The server refused the command and changed nothing; the message gives the reason."""


class AlreadyDeleted(RequestRefused):
    """The job does not exist: it was deleted, or never existed."""


class NotSupported(MillraceError):
    """The feature requires a Millrace server, and this one is a plain Faktory server."""


class InvalidAddress(MillraceError, ValueError):
    """The URL of the server is malformed."""


class InvalidArguments(MillraceError, TypeError):
    """The arguments of a task cannot be serialized, or are too large."""


class UnknownTask(MillraceError):
    """No task with the job's name is registered in the worker."""


class JobFailed(MillraceError):
    """The job has failed and is not retried; the message is that of its last error."""

    def __init__(self, kind: str, message: str) -> None:
        #: The class of the error.
        self.kind = kind
        super().__init__(f"{kind}: {message}" if message else kind)


class JobNotFound(MillraceError):
    """The job never existed, or it has ended and the server has removed it."""


class JobTimedOut(MillraceError):
    """The job ran longer than its timeout."""


class JobCancelled(MillraceError):
    """The job was cancelled. A worker raises it in the task if the job is running."""


class WorkerStopped(MillraceError):
    """The worker stopped before the job finished."""


class WorkerCrashed(MillraceError):
    """The process that ran the job ended unexpectedly."""
