"""Errors of a client. The text becomes the error reply."""


class ClientError(Exception):
    """The client's command cannot be executed."""


class BadJson(ClientError):
    """The client's JSON cannot be read."""
