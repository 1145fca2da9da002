"""Settings that the server sends to the web process on standard input, at start and on SIGHUP."""

from typing import Literal

import msgspec

from millrace.config.sections import WebConfig
from millrace.config.values import Token

Role = Literal["read", "operate", "admin"]


class WebSettings(WebConfig, frozen=True, kw_only=True):
    """The section [web], and what the web process needs of the others."""

    control: str
    #: Data folder; empty if the server stores no data on disk.
    data: str
    lake: str
    host: str
    # The server parses both.
    tokens: list[Token]  # type: ignore[assignment]
    hosts: list[str]  # type: ignore[assignment]
    cert: str
    key: str
    #: File descriptors of the listening sockets.
    sockets: list[int]
    #: Authorities of client certificates; empty if none is required.
    client_ca: str = ""

    def __repr__(self) -> str:
        return "WebSettings(...)"  # contains secrets

    @property
    def is_open(self) -> bool:
        """True if the server requires no authentication."""
        return not self.password and not self.tokens


decode = msgspec.json.Decoder(WebSettings).decode
