"""The address of a server: `tcp://[:password@]host[:port]`, or `tcp+tls://...` for TLS."""

import os
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from .errors import InvalidAddress

DEFAULT_PORT: Final = 7419
DEFAULT_URL: Final = f"tcp://127.0.0.1:{DEFAULT_PORT}"
#: Environment variables that hold the address, in order of preference.
VARIABLES: Final = ("MILLRACE_URL", "FAKTORY_URL")


class Address(NamedTuple):
    host: str
    port: int = DEFAULT_PORT
    password: str = ""
    tls: bool = False

    def __str__(self) -> str:
        """The address without its password, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp{'+tls' if self.tls else ''}://{host}:{self.port}"


def parse_address(url: str | None = None) -> Address:
    """The address in `url`, or else in the environment, or else the default on this machine."""
    text = url or next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "")
    text = text or DEFAULT_URL
    try:
        parts = urlsplit(text)
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise InvalidAddress(f"Invalid server URL: {error}") from None
    if parts.scheme not in {"tcp", "tcp+tls"} or not parts.hostname:
        raise InvalidAddress(
            f"Invalid server URL with scheme {parts.scheme!r}. "
            f"Use tcp://host:{DEFAULT_PORT} or tcp+tls://host:{DEFAULT_PORT}."
        )
    password = unquote(parts.password or "")
    return Address(parts.hostname, port, password, parts.scheme == "tcp+tls")
