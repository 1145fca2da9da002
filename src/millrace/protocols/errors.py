"""What a client can do wrong. The text is what the client gets to read."""


class ClientError(Exception):
    """The client's command cannot be done."""


class BadJson(ClientError):
    """The client's JSON cannot be read."""
