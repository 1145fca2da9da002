"""Settings that the server sends to the web process on standard input, at start and on SIGHUP."""

from typing import Literal, NamedTuple

import msgspec

Role = Literal["read", "operate", "admin"]


class Token(NamedTuple):
    role: Role
    name: str
    secret: str


class Settings(msgspec.Struct, frozen=True):
    control: str
    #: Data folder; empty if the server stores no data on disk.
    data: str
    lake: str
    host: str
    password: str
    tokens: list[Token]
    read_only: bool
    hosts: list[str]
    #: Lifetime of a login in seconds.
    session: float
    cert: str
    key: str
    #: File descriptors of the listening sockets.
    sockets: list[int]
    #: Authorities of client certificates; empty if none is required.
    client_ca: str = ""

    def __repr__(self) -> str:
        return "Settings(...)"  # contains secrets

    @property
    def is_open(self) -> bool:
        """True if the server requires no authentication."""
        return not self.password and not self.tokens


decode = msgspec.json.Decoder(Settings).decode
