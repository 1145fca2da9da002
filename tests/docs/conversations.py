"""Runs the conversations in the documentation against a real server.

    C: FETCH default
    S: $-1
    S: (closed)

`C2:` and `S2:` are a second connection. A conversation without a greeting starts after a HELLO.
Values that differ in each run (times, salts, lengths, process ids) are compared by their form; a
length on the page must match the line below it.
"""

import contextlib
import re
import socket
from collections.abc import Iterable
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

from raw_faktory import HOST

TIMEOUT = 10.0
CLOSED = "(closed)"

_TURN = re.compile(r"^([CS])(\d*): ?(.*)$")
_CHALLENGE = re.compile(r'"i":(\d+),"s":"([0-9a-f]+)"')
_PWDHASH = re.compile(r'(?<="pwdhash":")[0-9a-f]{64}(?=")')
_VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z"), "<moment>"),
    (re.compile(r'"\d\d:\d\d:\d\d UTC"'), '"<clock> UTC"'),
    (_CHALLENGE, '"i":<rounds>,"s":"<salt>"'),
    (re.compile(r"^\$\d+$"), "$<length>"),
    (re.compile(r'"(uptime|command_count|used_memory_mb)":\d+'), r'"\1":<number>'),
    (re.compile(r":\d+\.\d+(?=[,}])"), ":<seconds>"),
    (re.compile(r":\d{16}(?=[,}])"), ":<microseconds>"),
)


class Turn(NamedTuple):
    speaker: str  # C or S
    connection: str
    text: str


class Wire:
    """One connection of a conversation. Masenko's lines end in LF alone."""

    def __init__(self, port: int, newline: bytes) -> None:
        self._newline = newline
        self._socket = socket.create_connection((HOST, port), TIMEOUT)
        self._stream = self._socket.makefile("rb")
        self._bulk: int | None = None

    def read(self) -> str:
        line = self._stream.readline()
        if not line:
            return CLOSED
        assert line.endswith(self._newline), f"a line must end in {self._newline!r}: {line!r}"
        line = line.removesuffix(self._newline)
        if self._bulk is not None:
            assert len(line) == self._bulk, f"${self._bulk} is not the length of {line!r}"
            self._bulk = None
        elif line.startswith(b"$") and line != b"$-1":
            self._bulk = int(line[1:])
        return line.decode()

    def write(self, text: str) -> None:
        self._socket.sendall(text.encode() + self._newline)

    def rest(self) -> bytes:
        """Received data that was not read."""
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return self._stream.read1() or b""
        return b""

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def parse(lines: Iterable[str]) -> list[Turn]:
    turns = []
    for line in lines:
        match = _TURN.match(line)
        assert match, f"not a line of a conversation: {line!r}"
        turns.append(Turn(*match.groups()))
    return turns


def hold(
    lines: Iterable[str],
    port: int,
    password: str = "",
    *,
    greeted: bool = True,
    newline: bytes = b"\r\n",
) -> None:
    """Send the client's lines, and compare the server's lines. Some protocols have no greeting."""
    turns = parse(lines)
    check_lengths(turns)
    wires: dict[str, Wire] = {}
    challenges: dict[
        str, tuple[str, str]
    ] = {}  # the challenge on the page, and the server's challenge
    with contextlib.ExitStack() as stack:
        for turn in turns:
            wire = wires.get(turn.connection)
            if wire is None:
                wire = wires[turn.connection] = Wire(port, newline)
                stack.callback(wire.close)
                if greeted:
                    _begin(wire, turn)
            if turn.speaker == "C":
                wire.write(_prove(turn.text, password, *challenges.get(turn.connection, ("", ""))))
                continue
            actual = wire.read()
            assert form(actual) == form(turn.text), (
                f"expected {turn.text}\nthe server sent {actual}"
            )
            if actual.startswith("+HI "):
                challenges[turn.connection] = (turn.text, actual)
        for wire in wires.values():
            assert wire.rest() == b"", "the server sent more than the page shows"


def check_lengths(turns: list[Turn]) -> None:
    """The shown length of a bulk string must match the line below it."""
    shown = [turn.text for turn in turns if turn.speaker == "S"]
    for length, body in pairwise(shown):
        if re.fullmatch(r"\$\d+", length):
            right = f"${len(body.encode())}"
            assert length == right, f"the page has {length}, but it is {right}: {body}"


def form(text: str) -> str:
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return text


def proof(password: str, greeting: str) -> str:
    match = _CHALLENGE.search(greeting)
    assert match, f"no salt in {greeting}"
    digest = (password + match.group(2)).encode()
    for _ in range(int(match.group(1))):
        digest = sha256(digest).digest()
    return digest.hex()


def _begin(wire: Wire, first: Turn) -> None:
    if first.speaker == "S":
        return
    wire.read()
    if not first.text.startswith("HELLO"):
        wire.write('HELLO {"v":2}')
        assert wire.read() == "+OK"


def _prove(text: str, password: str, shown: str, actual: str) -> str:
    """Replaces the hash for the shown salt by the hash for the server's salt."""
    match = _PWDHASH.search(text)
    if match is None:
        return text
    assert match.group() == proof(password, shown), "the hash on the page is wrong"
    return _PWDHASH.sub(proof(password, actual), text)
