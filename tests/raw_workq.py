"""A raw Workq connection."""

from raw_lines import RawLines


class RawWorkq(RawLines):
    def line(self) -> bytes:
        """The next line, without its CRLF."""
        return self._until(b"\r\n")

    def block(self, size: int) -> bytes:
        while len(self._buffer) < size + 2:
            self._fill()
        block = bytes(self._buffer[:size])
        assert self._buffer[size : size + 2] == b"\r\n"
        del self._buffer[: size + 2]
        return block

    # Commands, and the first line of their replies

    def ask(self, command: bytes) -> bytes:
        self.send(command)
        return self.line()

    def add(
        self,
        jid: bytes,
        name: str,
        payload: bytes = b"",
        ttr: int = 60_000,
        ttl: int = 600_000,
        flags: str = "",
    ) -> None:
        line = f"add {jid.decode()} {name} {ttr} {ttl} {len(payload)} {flags}".encode()
        reply = self.ask(line + b"\r\n" + payload + b"\r\n")
        assert reply == b"+OK", reply

    def lease(self, *names: str, wait: int = 0) -> tuple[bytes, bytes] | None:
        """(id, payload), or None after a time-out."""
        reply = self.ask(f"lease {' '.join(names)} {wait}\r\n".encode())
        if reply == b"-TIMEOUT":
            return None
        assert reply == b"+OK 1", reply
        jid, _, size = self.line().split(b" ")
        return jid, self.block(int(size))

    def complete(self, jid: bytes, result: bytes = b"") -> bytes:
        return self.ask(b"complete %b %d\r\n%b\r\n" % (jid, len(result), result))

    def fail(self, jid: bytes, result: bytes = b"") -> bytes:
        return self.ask(b"fail %b %d\r\n%b\r\n" % (jid, len(result), result))

    def result(self, jid: bytes, wait: int = 0) -> tuple[bytes, bytes] | bytes:
        """(success, result), or the error."""
        reply = self.ask(b"result %b %d\r\n" % (jid, wait))
        if reply != b"+OK 1":
            return reply
        _, success, size = self.line().split(b" ")
        return success, self.block(int(size))

    def inspect(self, jid: bytes) -> dict[str, str] | None:
        reply = self.ask(b"inspect job %b\r\n" % jid)
        if reply == b"-NOT-FOUND":
            return None
        assert reply == b"+OK 1", reply
        count = int(self.line().split(b" ")[1])
        return dict(self.line().decode().split(" ", 1) for _ in range(count))

    def server(self) -> dict[str, str]:
        assert self.ask(b"inspect server\r\n") == b"+OK 1"
        assert self.line() == b"server 3"
        return dict(self.line().decode().split(" ", 1) for _ in range(3))
