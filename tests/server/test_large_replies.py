"""Large replies are written in pieces, in order, and the server serves other clients meanwhile."""

import asyncio
import base64
import json
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from test_payload_reads import JID, Served, _json_jobs, serve, until

from millrace.admin import connection as admin_connection
from millrace.admin.client import hello
from millrace.admin.connection import AdminConnection
from millrace.admin.service import AdminService
from millrace.engine.job import FOREVER, NewJob
from millrace.engine.states import LEASED, READY
from millrace.protocols.qless import dialect_a, dialect_d_replies, job_replies, lua_values, queries
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.job_view import PART_BYTES
from millrace.protocols.qless.resp import encode
from millrace.protocols.registry import QLESS
from millrace.server import output
from millrace.server.app import clock
from millrace.server.server import Listener
from scene import commit

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
        await until(lambda: session.output.size)
        written = Written(session.transport, monkeypatch)
        assert session.transport.get_write_buffer_size() <= output.PIECE_BYTES
        other = await served.connect("workq")
        other.writer.write(b"inspect server\r\n")  # others are served meanwhile
        assert (await other.reader.readuntil(b"\n")).startswith(b"+OK")
        assert session.output.size
        heard = b""
        while b"active-clients" not in heard[-200:]:
            heard += await asyncio.wait_for(reader.read(1 << 20), 20)
        assert heard.count(LARGE) == 1
        assert heard.index(LARGE) < heard.index(b"active-clients")
        assert max(written.sizes) <= output.PIECE_BYTES
        assert not session.output.size
        assert job.state == LEASED
        writer.close()

    serve(tmp_path / "data", play)


def test_the_lease_returns_if_the_client_is_lost_during_the_reply(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        job = served.push(LARGE, "workq")
        _, writer = await _leases(served)
        (session,) = served.server.sessions
        await until(lambda: session.output.size)
        writer.transport.abort()
        await until(lambda: job.state == READY)
        assert not session.output.size
        assert not served.server.sessions

    serve(tmp_path / "data", play)


def test_a_half_closed_client_gets_the_whole_reply(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        served.push(LARGE, "workq")
        reader, writer = await _leases(served)
        (session,) = served.server.sessions
        await until(lambda: session.output.size)
        writer.write_eof()
        heard = await asyncio.wait_for(reader.read(-1), 30)
        assert heard.count(LARGE) == 1
        assert not served.server.sessions

    serve(tmp_path / "data", play)


@pytest.mark.parametrize("protocol", ["faktory", "qless", "workq"])
def test_a_half_closed_client_gets_the_reply_to_a_long_command(
    tmp_path: Path, protocol: str
) -> None:
    commands = {
        "faktory": b'HELLO {"v":2}\r\nMILLRACE {"read":{"state":"scheduled"}}\r\n',
        "qless": encode([b"ZRANGE", b"ql:q:q-scheduled", b"0", b"-1"], 2),
        "workq": b"inspect scheduled-jobs q 1000 100\r\n",
    }

    async def play(served: Served) -> None:
        jids = [str(UUID(int=number)) for number in range(1, 1101)]
        for jid in jids:
            push = NewJob(jid, "kind", b"[]", QLESS, "q", 3, 1_000_000, due_at=FOREVER // 2)
            served.engine.push(push, clock())
        commit(served.engine, served.store)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.ports[protocol])
        writer.write(commands[protocol])
        writer.write_eof()
        heard = await asyncio.wait_for(reader.read(), 30)
        first = 1000 if protocol == "workq" else 0
        last = 500 if protocol == "faktory" else 1100
        assert all(jid.encode() in heard for jid in jids[first:last])
        assert not served.server.sessions

    serve(tmp_path / "data", play)


def test_a_server_that_stops_writes_the_whole_reply(tmp_path: Path) -> None:
    heard = bytearray()

    async def play(served: Served) -> None:
        served.push(LARGE, "workq")
        reader, _ = await _leases(served)
        (session,) = served.server.sessions
        await until(lambda: session.output.size)

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
    monkeypatch.setattr(output, "READ_TIMEOUT", 0.2)

    async def play(served: Served) -> None:
        job = served.push(LARGE, "workq")
        _, writer = await _leases(served)
        await until(lambda: job.state == LEASED)
        await until(lambda: job.state == READY)
        assert not served.server.sessions
        writer.close()

    serve(tmp_path / "data", play)


def test_the_unread_reply_counts_towards_the_buffered_bytes_of_the_client(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        served.push(LARGE, "workq")
        _, writer = await _leases(served)
        (session,) = served.server.sessions
        await until(lambda: session.output.size)
        assert session.buffered > len(LARGE) // 2
        writer.close()

    serve(tmp_path / "data", play)


_TEXTS = {
    "ascii": b'["' + rb"a\"/\\" * 200_000 + b'"]',
    "characters": b'["' + b"x" + "é€😀".encode() * 100_000 + b'"]',
    "bytes": b'["' + b"\xff\x80\xbf\xf0\x9f\x98" * 200_000 + b"\xf4\x8f\xba\x80" * 100_000 + b'"]',
    "continuation bytes": b'["' + b"\x80" * 1_000_000 + b'"]',
}


@pytest.mark.parametrize("text", list(_TEXTS))
@pytest.mark.parametrize("dialect", ["A", "C", "D"])
@pytest.mark.parametrize("origin", ["qless", "faktory"])
def test_a_large_qless_job_is_encoded_in_slices(
    tmp_path: Path, text: str, dialect: str, origin: str
) -> None:
    """The parts are those of the job that is encoded at once."""

    async def play(served: Served) -> None:
        job = served.push(_TEXTS[text], origin)
        served.push(b'["small"]', origin, "small")
        q = QlessApi(QlessHub(served.engine, started_at=0)).qless
        write = {
            "A": partial(dialect_a.job_text, omit_dependencies=True),
            "C": queries.job_text,
            "D": partial(dialect_d_replies.job_text, dialect_d_replies.SHAPE_D),
        }[dialect]
        jobs = [job, *served.engine.find_all("small")]
        work = job_replies.encode_jobs_in_slices(q, jobs, write, lua_values.join_list)
        slices = 0
        while True:
            try:
                next(work)
            except StopIteration as ended:
                reply = ended.value
                break
            slices += 1
            if served.reads:
                await served.read_all()
                await until(lambda: served.engine.payloads.awaited.payloads is not None)
        assert not served.engine.payloads.fetched
        expected = lua_values.join_list([job_replies.encode_job(q, each, write) for each in jobs])
        assert encode(reply, 2) == encode(expected, 2)
        assert len(reply) == len(expected)
        if dialect != "A" and origin == "qless":
            assert slices > len(_TEXTS[text]) // PART_BYTES
            assert max(map(len, reply.parts)) < 3 * PART_BYTES

    serve(tmp_path / "data", play)


@pytest.mark.parametrize("request_name", ["QLESS.GET", "QLESS.PEEK", "QLESS.POP"])
def test_a_large_qless_reply_is_sent_in_parts_and_in_order(
    tmp_path: Path, request_name: str
) -> None:
    """Even if another thread reads the job first, and between the replies to other commands."""
    words = {
        "QLESS.GET": [b"0", JID.encode()],
        "QLESS.PEEK": [b"1", b"q", b"5", b"1700000000"],
        "QLESS.POP": [b"1", b"q", b"w", b"5", b"1700000000"],
    }[request_name]
    payload = b'["' + _TEXTS["ascii"][2:-2] * 3 + b'"]'

    async def play(served: Served) -> None:
        served.push(payload, "qless")
        client = await served.connect("qless")
        client.writer.write(
            b"ECHO a\r\n" + b" ".join([request_name.encode(), *words]) + b"\r\nECHO z\r\n"
        )
        await served.read_all()
        heard = b""
        while not heard.endswith(b"$1\r\nz\r\n"):
            heard += await asyncio.wait_for(client.reader.read(1 << 20), 20)
        assert heard.startswith(b"$1\r\na\r\n")
        [job] = _json_jobs(heard[7:-7])
        assert job["jid"] == JID
        assert job["data"] == json.loads(payload)

    serve(tmp_path / "data", play)


class AdminClient:
    """A client of the admin socket that has sent a lease request, and the server's side of it."""

    def __init__(self, served: Served, folder: Path) -> None:
        self._served = served
        self._path = folder / "control.sock"
        self.service = AdminService(served.engine, 10)
        self.service.memory_mb = lambda: 1

    async def lease(self, limit: int = 1) -> None:
        connect = partial(AdminConnection, self.service)
        listener = Listener("control", None, self.service, connect, self._path)
        await self._served.server.listen([listener], {}, None)
        opened = await asyncio.open_unix_connection(str(self._path), limit=1 << 26)
        self.reader, self.writer = opened
        lease = {"lease": {"queues": ["q"], "worker": "w", "limit": limit}}
        self.writer.write(hello() + json.dumps(lease).encode() + b"\n")
        await self._served.read_all()

    @property
    def connection(self) -> AdminConnection:
        (found,) = self.service.connections
        assert isinstance(found, AdminConnection)
        return found

    async def answer(self) -> list[dict[str, Any]]:
        await asyncio.wait_for(self.reader.readline(), 20)  # the reply to the hello
        line = await asyncio.wait_for(self.reader.readline(), 20)
        leases = json.loads(line)["result"]["jobs"]
        assert isinstance(leases, list)
        return leases


def _serve_admin(folder: Path, play: Callable[[Served, AdminClient], Awaitable[None]]) -> None:
    async def with_client(served: Served) -> None:
        await play(served, AdminClient(served, folder))

    serve(folder / "data", with_client)


@pytest.mark.sources_only("it replaces b64encode")
def test_a_job_leased_over_http_is_encoded_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []

    def counted(data: bytes) -> bytes:
        encoded.append(len(data))
        return base64.b64encode(data)

    monkeypatch.setattr(admin_connection, "b64encode", counted)

    async def play(served: Served, client: AdminClient) -> None:
        served.push(b"", jid="none")
        served.push(b'"payload":""', jid='"payload":""')
        served.push(LARGE + b"x")
        await client.lease(limit=3)
        leases = await client.answer()
        assert {
            each["job"]["jid"]: base64.b64decode(each["job"]["payload"]) for each in leases
        } == {
            JID: LARGE + b"x",
            "none": b"",
            '"payload":""': b'"payload":""',
        }
        assert max(encoded) == admin_connection.PART_BYTES
        for each in leases:
            end = {"end": {"token": each["token"], "action": "complete"}}
            client.writer.write(json.dumps(end).encode() + b"\n")
            assert b'"result"' in await client.reader.readline()
        assert not served.engine.jobs

    _serve_admin(tmp_path, play)


async def _until_encoded(client: AdminClient) -> None:
    """Until the reply is partly encoded."""
    await until(lambda: client.connection.long_command is not None)
    assert not client.connection.replies


def test_the_lease_returns_if_an_http_client_is_lost_during_the_encoding(tmp_path: Path) -> None:
    async def play(served: Served, client: AdminClient) -> None:
        job = served.push(LARGE)
        await client.lease()
        await _until_encoded(client)
        assert job.state == LEASED
        client.connection.session.connection_lost(None)
        assert job.state == READY
        assert (job.attempt, job.failures) == (0, 0)
        client.writer.close()

    _serve_admin(tmp_path, play)


def test_a_lease_that_ends_during_the_encoding_is_not_delivered(tmp_path: Path) -> None:
    async def play(served: Served, client: AdminClient) -> None:
        served.push(b"[1]", jid="small")
        job = served.push(LARGE)
        await client.lease(limit=2)
        await _until_encoded(client)
        served.engine.release(job, clock())
        [other] = await client.answer()
        assert other["job"]["jid"] == "small"
        assert job.state == READY

    _serve_admin(tmp_path, play)
