"""Large replies are written in pieces, in order, and the server serves other clients meanwhile."""

import asyncio
import socket
from pathlib import Path

import pytest
from test_payload_reads import Served, serve, until

from millrace.engine.states import LEASED, READY
from millrace.server import session as session_module

LARGE = bytes(range(256)) * (32 << 10)  # 8 MiB


class Written:
    """The sizes of all writes to a transport."""

    def __init__(self, transport: asyncio.Transport, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        write = type(transport).write

        def counted(of: asyncio.Transport, data: bytes) -> None:
            self.sizes.append(len(data))
            write(of, data)

        monkeypatch.setattr(type(transport), "write", counted)


async def _leases(served: Served, after: bytes = b"") -> tuple[asyncio.StreamReader, ...]:
    """A Workq client that leases a large job and does not read yet."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", served.ports["workq"]))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    writer.write(b"lease q 0\r\n" + after)
    await served.read_all()
    return reader, writer  # type: ignore[return-value]


def test_a_large_reply_is_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(served: Served) -> None:
        job = served.push(LARGE, "workq")
        reader, writer = await _leases(served, b"inspect server\r\n")
        (session,) = served.server.sessions
        await until(lambda: session._outgoing_size)
        written = Written(session.transport, monkeypatch)
        assert session.transport.get_write_buffer_size() <= session_module.PIECE_BYTES
        other = await served.connect("workq")
        other.writer.write(b"inspect server\r\n")  # others are served meanwhile
        assert (await other.reader.readuntil(b"\n")).startswith(b"+OK")
        assert session._outgoing_size
        heard = b""
        while b"active-clients" not in heard[-200:]:
            heard += await asyncio.wait_for(reader.read(1 << 20), 20)
        assert heard.count(LARGE) == 1
        assert heard.index(LARGE) < heard.index(b"active-clients")
        assert max(written.sizes) <= session_module.PIECE_BYTES
        assert not session._outgoing
        assert job.state == LEASED
        writer.close()

    serve(tmp_path / "data", play)


def test_the_lease_returns_if_the_client_is_lost_during_the_reply(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        job = served.push(LARGE, "workq")
        _, writer = await _leases(served)
        (session,) = served.server.sessions
        await until(lambda: session._outgoing_size)
        writer.transport.abort()
        await until(lambda: job.state == READY)
        assert not session._outgoing_size
        assert not served.server.sessions

    serve(tmp_path / "data", play)


def test_a_half_closed_client_gets_the_whole_reply(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        served.push(LARGE, "workq")
        reader, writer = await _leases(served)
        (session,) = served.server.sessions
        await until(lambda: session._outgoing_size)
        writer.write_eof()
        heard = await asyncio.wait_for(reader.read(-1), 30)
        assert heard.count(LARGE) == 1
        assert not served.server.sessions

    serve(tmp_path / "data", play)


def test_a_server_that_stops_writes_the_whole_reply(tmp_path: Path) -> None:
    heard = bytearray()

    async def play(served: Served) -> None:
        served.push(LARGE, "workq")
        reader, _ = await _leases(served)
        (session,) = served.server.sessions
        await until(lambda: session._outgoing_size)

        async def read() -> None:
            while data := await reader.read(1 << 20):
                heard.extend(data)

        reading = asyncio.ensure_future(read())
        await served.server.stop(0, asyncio.Event())
        await reading

    serve(tmp_path / "data", play)
    assert heard.count(LARGE) == 1


@pytest.mark.sources_only("it replaces READ_TIMEOUT")
def test_a_client_that_does_not_read_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "READ_TIMEOUT", 0.2)

    async def play(served: Served) -> None:
        job = served.push(LARGE, "workq")
        _, writer = await _leases(served)
        await until(lambda: job.state == LEASED)
        await until(lambda: job.state == READY)
        assert not served.server.sessions
        writer.close()

    serve(tmp_path / "data", play)


def test_the_unread_reply_counts_for_the_client(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        served.push(LARGE, "workq")
        _, writer = await _leases(served)
        (session,) = served.server.sessions
        await until(lambda: session._outgoing_size)
        assert session.buffered > len(LARGE) // 2
        writer.close()

    serve(tmp_path / "data", play)
