"""The Faktory protocol as a client sees it, without I/O: commands to bytes, bytes to replies."""

import hashlib
import json
from typing import Any, Final

from .errors import BadReply, RequestRefused

#: A reply: a status line, the body of a bulk reply, None for a null reply, or an error.
Reply = str | bytes | None | RequestRefused

MAX_LINE_BYTES: Final = 1 << 20
MAX_BODY_BYTES: Final = 1 << 30
MAX_HASH_ROUNDS: Final = 10_000_000
PROTOCOL_VERSION: Final = 2

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_json(value: object) -> str:
    return _encode(value)


def command(verb: str, argument: object = None) -> bytes:
    """One command line. A string is sent as it is, anything else as JSON."""
    if argument is None:
        return b"%b\r\n" % verb.encode()
    text = argument if isinstance(argument, str) else _encode(argument)
    return f"{verb} {text}\r\n".encode()


def hello(greeting: Reply, password: str, client: dict[str, Any]) -> bytes:
    """The HELLO that answers the server's greeting."""
    if not isinstance(greeting, str) or not greeting.startswith("HI "):
        raise BadReply("The server did not send a Faktory greeting. Check the port number.")
    try:
        options = json.loads(greeting[3:])
        salt, rounds = str(options.get("s", "")), int(options.get("i", 1))
    except (ValueError, TypeError, AttributeError):
        raise BadReply("The server sent a malformed greeting.") from None
    body: dict[str, Any] = {**client, "v": PROTOCOL_VERSION}
    if salt:
        if not password:
            raise RequestRefused("The server requires a password. Add it to the URL.")
        if not 1 <= rounds <= MAX_HASH_ROUNDS:
            raise BadReply(f"The server requires {rounds} hash rounds.")
        body["pwdhash"] = _hash_password(password, salt, rounds)
    return command("HELLO", body)


def _hash_password(password: str, salt: str, rounds: int) -> str:
    digest = (password + salt).encode()
    for _ in range(rounds):
        digest = hashlib.sha256(digest).digest()
    return digest.hex()


class ReplyBuffer:
    """Collects received bytes and returns complete replies in order."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        self._data += data

    def take(self) -> list[Reply]:
        """All complete replies received so far."""
        replies: list[Reply] = []
        position = 0
        while True:
            end = self._data.find(b"\r\n", position)
            if end < 0:
                if len(self._data) - position > MAX_LINE_BYTES:
                    raise BadReply("The server sent a line that is too long.")
                break
            parsed = self._parse(position, end)
            if parsed is None:
                break
            reply, position = parsed
            replies.append(reply)
        del self._data[:position]
        return replies

    def _parse(self, start: int, end: int) -> tuple[Reply, int] | None:
        """The reply that starts with the line data[start:end], and the position after the reply."""
        kind = chr(self._data[start])
        text = self._data[start + 1 : end].decode("utf-8", "replace")
        if kind in "+:":
            return text, end + 2
        if kind == "-":
            return RequestRefused(text.removeprefix("ERR ")), end + 2
        if kind != "$":
            raise BadReply("The server sent bytes that are no reply. Check the port number.")
        try:
            size = int(text)
        except ValueError:
            size = -2
        if size == -1:
            return None, end + 2
        if not 0 <= size <= MAX_BODY_BYTES:
            raise BadReply("The server sent a malformed length.")
        body, after = end + 2, end + 2 + size
        if len(self._data) < after + 2:
            return None
        return bytes(self._data[body:after]), after + 2
