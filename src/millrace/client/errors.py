"""What can go wrong between a program and the server.

`Refused`, and what derives from it, is an answer: nothing was changed, and the connection is as the
server left it. After any other error there is no connection any more, and nobody knows whether the
command was done.
"""


class MillraceError(Exception):
    """Something went wrong between this program and the server."""


class NotConnected(MillraceError):
    """There is no connection: call connect() first, or again."""


class ConnectionLost(MillraceError, ConnectionError):
    """The connection could not be made, or is gone."""


class TimedOut(MillraceError, TimeoutError):
    """The server was silent for too long."""


class BadReply(MillraceError):
    """What came is no reply of the protocol: is that the right port?"""


class Refused(MillraceError):
    """The server answered that it did not do it, and why."""


class AlreadyDeleted(Refused):
    """There is no such job: somebody has deleted it, or it never was."""
