"""Errors of the Qless commands."""

from millrace.protocols.errors import ClientError


class ScriptError(ClientError):
    """A command failed; the text is that of the script, such as `Put(): Arg "jid" missing`."""


class ChangeRefused(Exception):
    """Changes cannot be made durable now, so none was made, or only some were."""
