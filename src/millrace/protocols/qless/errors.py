"""Errors of the Qless commands."""

from millrace.protocols.errors import ClientError


class ScriptError(ClientError):
    """A command failed; the text is what a script would have raised, `Put(): Arg "jid" missing`."""


class ChangeRefused(Exception):
    """Nothing can be made durable now, so nothing was changed, or only a part."""
