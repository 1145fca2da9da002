"""A client for reading a Redis server: RESP2 over TCP, TLS or a Unix socket."""

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import hiredis

from .source import SourceError

DEFAULT_PORT: Final = 6379
TIMEOUT: Final = 30.0
#: Elements of a list or sorted set per command.
PAGE_SIZE: Final = 1000
READ_SIZE: Final = 1 << 18
SCAN_COUNT: Final = 1000

Words = tuple[str | bytes | int, ...]

_pack: Final[Callable[[Any], bytes]] = hiredis.pack_command


class RedisError(SourceError):
    """Redis refused a command."""


class RedisReader:
    """One connection. `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` or `unix://PATH`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        try:
            number, port = parts.path.strip("/") or "0", parts.port or DEFAULT_PORT
        except ValueError as error:
            raise SourceError(f"Invalid URL {url}: {error}") from None
        self.database = 0
        if parts.scheme == "unix":
            self._connection = _connect(url, parts.path)
        elif parts.scheme in {"redis", "rediss"} and number.isdigit():
            self.database = int(number)
            host = parts.hostname or "localhost"
            self._connection = _connect(url, (host, port), tls=parts.scheme == "rediss")
        else:
            raise SourceError(f"Invalid URL {url}. Use redis://HOST:PORT/DB or unix://PATH.")
        self._parser = hiredis.Reader(
            protocolError=hiredis.ProtocolError, replyError=_refusal, errors="replace"
        )
        if parts.password is not None:
            names = [unquote(parts.username)] if parts.username else []
            self.command("AUTH", *names, unquote(parts.password))
        if self.database:
            self.command("SELECT", self.database)

    def close(self) -> None:
        self._connection.close()

    def command(self, *words: str | bytes | int) -> Any:
        (reply,) = self.pipeline([words])
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def pipeline(self, commands: Sequence[Words]) -> list[Any]:
        """The replies to several commands; an error is a reply."""
        try:
            self._connection.sendall(b"".join(map(_pack, commands)))
            return [self._reply() for _ in commands]
        except OSError as error:
            raise SourceError(f"The connection to Redis failed: {error}") from error

    def _reply(self) -> Any:
        try:
            while (reply := self._parser.gets()) is False:
                data = self._connection.recv(READ_SIZE)
                if not data:
                    raise SourceError("Redis closed the connection.")
                self._parser.feed(data)
        except hiredis.ProtocolError:
            raise SourceError("The server does not speak the Redis protocol.") from None
        return reply

    # Reading of large values

    def elements(self, key: str | bytes) -> Iterator[bytes]:
        """The elements of a list, from its end to its start."""
        last = self.command("LLEN", key) - 1
        while last >= 0:
            first = max(0, last - PAGE_SIZE + 1)
            yield from reversed(self.command("LRANGE", key, first, last))
            last = first - 1

    def scored(self, key: str | bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, float]]:
        """The members of a sorted set with their scores."""
        verb, first = "ZREVRANGE" if reverse else "ZRANGE", 0
        while found := self.command(verb, key, first, first + PAGE_SIZE - 1, "WITHSCORES"):
            for at in range(0, len(found), 2):
                yield found[at], float(found[at + 1])
            first += PAGE_SIZE

    def keys(self, pattern: str) -> list[bytes]:
        found: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, some = self.command("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
            found.update(some)
            if cursor == b"0":
                return sorted(found)

    def sizes(self, keys: Sequence[bytes | str]) -> int:
        """The number of elements of lists and sorted sets."""
        kinds = self.pipeline([("TYPE", key) for key in keys])
        verbs = {b"list": "LLEN", b"zset": "ZCARD"}
        counted = [(verbs[kind], key) for kind, key in zip(kinds, keys, strict=True)
                   if kind in verbs]  # fmt: skip
        return sum(self.pipeline(counted)) if counted else 0


def _connect(url: str, address: Any, *, tls: bool = False) -> socket.socket:
    try:
        if isinstance(address, str):
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(TIMEOUT)
            connection.connect(address)
            return connection
        connection = socket.create_connection(address, timeout=TIMEOUT)
        if tls:
            context = ssl.create_default_context()
            return context.wrap_socket(connection, server_hostname=address[0])
    except OSError as error:
        shown = url.rpartition("@")[2]  # without the password
        raise SourceError(f"Cannot connect to Redis at {shown}: {error}") from error
    return connection


def _refusal(text: str) -> RedisError:
    return RedisError(text)


@contextlib.contextmanager
def open_redis(url: str) -> Iterator[RedisReader]:
    reader = RedisReader(url)
    try:
        yield reader
    finally:
        reader.close()
