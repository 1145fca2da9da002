"""Errors of the SDK.

After `RequestRefused` and its subclasses the connection is usable and nothing was changed. After
any other error the connection is closed, and the server may or may not have executed the command.
"""


class MillraceError(Exception):
    """Base class of all errors of the SDK."""


class NotConnected(MillraceError):
    """The client is not connected. Call connect() first."""


class ConnectionLost(MillraceError, ConnectionError):
    """The connection could not be opened, or the server closed it."""


class TimedOut(MillraceError, TimeoutError):
    """The server did not answer in time."""


class BadReply(MillraceError):
    """The server sent bytes that are no reply of the protocol. Check the port number."""


class RequestRefused(MillraceError):
    """The server refused the command; the message gives the reason."""


class AlreadyDeleted(RequestRefused):
    """The job does not exist: it was deleted, or never existed."""


class NotSupported(MillraceError):
    """The feature requires a Millrace server; the server that answered is a plain Faktory."""


class InvalidAddress(MillraceError, ValueError):
    """The URL of the server is malformed."""


class InvalidArguments(MillraceError, TypeError):
    """The arguments of a task cannot be serialized, or are too large."""


class UnknownTask(MillraceError):
    """No task with the job's name is registered in the worker."""


class JobTimedOut(MillraceError):
    """The job ran longer than its timeout."""


class JobCancelled(MillraceError):
    """The job was cancelled while it was running."""


class WorkerStopped(MillraceError):
    """The worker stopped before the job finished."""


class WorkerCrashed(MillraceError):
    """The process that ran the job ended unexpectedly."""
