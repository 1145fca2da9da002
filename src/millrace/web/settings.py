"""What the server tells the web room, on its standard input: at the start and after SIGHUP."""

from typing import Literal, NamedTuple

import msgspec

Role = Literal["read", "operate", "admin"]


class Token(NamedTuple):
    role: Role
    name: str
    secret: str


class Settings(msgspec.Struct, frozen=True):
    control: str
    #: Empty where nothing is kept.
    data: str
    lake: str
    host: str
    password: str
    tokens: list[Token]
    read_only: bool
    hosts: list[str]
    #: Seconds.
    session: float
    cert: str
    key: str
    #: File descriptors of the listening sockets.
    sockets: list[int]
    #: Authorities of client certificates; empty if none is required.
    client_ca: str = ""

    def __repr__(self) -> str:
        return "Settings(...)"  # it has secrets

    @property
    def is_open(self) -> bool:
        """Is nobody asked who they are?"""
        return not self.password and not self.tokens


decode = msgspec.json.Decoder(Settings).decode
