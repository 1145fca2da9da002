"""Large payloads are read by another thread, and the reply follows when they are in memory."""

import asyncio
import json
from pathlib import Path
from uuid import UUID

import pytest
from payload_server import JID, LARGE, SMALL, Served, SpeakerConnection, serve, until

from millrace.engine.job import Job, Terms
from millrace.engine.states import LEASED, READY
from millrace.server import delivery
from millrace.server.app import clock
from speakers import SPEAKERS, Leased, Nothing


@pytest.mark.parametrize("protocol", SPEAKERS)
def test_a_large_job_is_read_by_another_thread(tmp_path: Path, protocol: str) -> None:
    async def play(served: Served) -> None:
        job = served.push(LARGE)
        client, other = await served.connect(protocol), await served.connect("workq")
        client.lease()
        await until(lambda: served.reads)
        assert job.state == LEASED
        other.writer.write(b"inspect server\r\n")  # others are served meanwhile
        assert (await other.reader.readuntil(b"\n")).startswith(b"+OK")
        assert not served.engine.payloads.fetched
        await served.read_all()
        answer = await client.answer()
        assert isinstance(answer, Leased)
        assert answer.held.payload == LARGE
        assert not served.engine.payloads.fetched

    serve(tmp_path / "data", play)


@pytest.mark.parametrize("protocol", ["faktory", "workq", "masenko", "goqueue"])
def test_the_lease_of_a_lost_client_returns(tmp_path: Path, protocol: str) -> None:
    async def play(served: Served) -> None:
        job = served.push(LARGE)
        client = await served.connect(protocol)
        client.lease()
        await until(lambda: served.reads)
        client.reset()
        await until(lambda: job.state == READY)
        assert (job.attempt, job.failures) == (0, 0)
        await served.read_all()
        again = await served.connect("faktory")
        again.lease()
        await served.read_all()
        assert isinstance(await again.answer(), Leased)

    serve(tmp_path / "data", play)


def test_the_lease_of_a_client_that_has_closed_returns_after_the_read(tmp_path: Path) -> None:
    """A close looks like a half-close until the reply is refused."""

    async def play(served: Served) -> None:
        job = served.push(LARGE)
        client = await served.connect("faktory")
        client.lease()
        await until(lambda: served.reads)
        client.writer.close()
        await served.read_all()
        await until(lambda: job.state == READY)

    serve(tmp_path / "data", play)


def test_a_write_that_fails_after_a_half_close_returns_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write reads the error of the socket, so the check for a reset finds none."""
    monkeypatch.setattr(delivery, "unacknowledged_bytes", lambda _: 0)

    async def play(served: Served) -> None:
        client = await served.connect("workq")
        client.writer.write(client.speaker.lease("q", clock(), wait=60))
        client.writer.write_eof()
        (session,) = served.server.sessions
        await until(lambda: session._input_closed)
        await until(lambda: not served.engine.has_uncommitted)  # the lease created the queue
        job = served.push(SMALL, "workq")
        served.server.after_commands(clock())
        assert job.state == LEASED
        session.pending_turn = 0  # no commit is awaited
        session.transport.abort()  # as after a failed write: the loop calls connection_lost later
        delivery.check(session, 0.001)
        await until(lambda: job.state == READY)

    serve(tmp_path / "data", play)


def test_later_commands_of_the_client_wait(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        served.push(LARGE)
        client = await served.connect("faktory")
        client.lease()
        await until(lambda: served.reads)
        client.writer.write(b'ACK {"jid":"%b"}\r\nNOPE\r\n' % JID.encode())
        await client.writer.drain()
        await asyncio.sleep(0.05)
        await served.read_all()
        size = int((await client.reader.readuntil(b"\r\n"))[1:])
        unit = json.loads(await client.reader.readexactly(size))
        assert json.dumps(unit["args"]).encode() == LARGE
        assert await client.reader.readexactly(7) == b"\r\n+OK\r\n"
        assert (await client.reader.readuntil(b"\n")).startswith(b"-ERR unknown command")
        assert not served.engine.jobs

    serve(tmp_path / "data", play)


def test_a_job_that_ends_during_the_read_is_not_delivered(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        job = served.push(LARGE)
        client = await served.connect("workq")
        client.lease()
        await until(lambda: served.reads)
        served.engine.cancel(job, clock())
        served.server.after_commands(clock())
        await until(lambda: not served.engine.has_uncommitted)
        await served.read_all()
        assert isinstance(await client.answer(), Nothing)

    serve(tmp_path / "data", play)


def test_a_client_that_closes_its_sending_side_gets_its_job(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        served.push(LARGE)
        client = await served.connect("faktory")
        client.lease()
        await until(lambda: served.reads)
        client.writer.write_eof()
        await asyncio.sleep(0.05)
        await served.read_all()
        assert isinstance(await client.answer(), Leased)

    serve(tmp_path / "data", play)


def test_an_incomplete_command_after_a_half_close_is_refused_after_the_read(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        served.push(LARGE)
        client = await served.connect("workq")
        client.writer.write(b"lease q 0\r\nadd %b ping 1000 1000 4\r\npi" % JID.encode())
        await until(lambda: served.reads)
        client.writer.write_eof()
        (session,) = served.server.sessions
        # A transport that pauses announces the end of the input again.
        session.transport.set_write_buffer_limits(1 << 30)
        await until(lambda: session._input_closed)
        await served.read_all()
        received = await asyncio.wait_for(client.reader.read(), 20)
        assert LARGE in received
        assert received.endswith(b"-CLIENT-ERROR Invalid payload size\r\n")

    serve(tmp_path / "data", play)


def test_a_job_whose_lease_expires_during_the_read_is_not_delivered(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        job = served.push(LARGE, "workq")
        job.terms = Terms(job.kind, job.origin, 1000, job.retries, job.max_attempts)
        client = await served.connect("workq")
        client.lease()
        await until(lambda: served.reads)
        await until(lambda: job.state == READY)
        await until(lambda: not served.engine.has_uncommitted)
        await served.read_all()
        assert isinstance(await client.answer(), Nothing)

    serve(tmp_path / "data", play)


def test_a_server_that_stops_returns_the_lease(tmp_path: Path) -> None:
    jobs: list[Job] = []

    async def play(served: Served) -> None:
        jobs.append(served.push(LARGE))
        client = await served.connect("faktory")
        client.lease()
        await until(lambda: served.reads)

    serve(tmp_path / "data", play)
    assert (jobs[0].state, jobs[0].attempt) == (READY, 0)


@pytest.mark.parametrize(
    ("protocol", "request_line"),
    [
        ("workq", b"inspect job %b\r\n"),
        ("qless", b"QLESS.GET 0 %b\r\n"),
        ("qless", b"QLESS.PEEK 1 q 1 1700000000\r\n"),
    ],
)
def test_a_listed_job_is_read_by_another_thread(
    tmp_path: Path, protocol: str, request_line: bytes
) -> None:
    async def play(served: Served) -> None:
        served.push(LARGE)
        client = await served.connect(protocol)
        request = request_line % JID.encode() if b"%b" in request_line else request_line
        client.writer.write(request)
        await served.read_all()
        heard = b""
        while len(heard) < len(LARGE):
            heard += await asyncio.wait_for(client.reader.read(1 << 20), 20)
        assert LARGE[10:-10] in heard
        assert not served.engine.payloads.fetched

    serve(tmp_path / "data", play)


def test_a_small_payload_is_read_at_once(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        served.push(SMALL)
        client = await served.connect("faktory")
        client.lease()
        assert isinstance(await client.answer(), Leased)
        assert not served.reads

    serve(tmp_path / "data", play)


LISTS = {
    "workq": b"inspect job " + JID.encode() + b"\r\n",
    "qless": b"QLESS.GET 0 " + JID.encode() + b"\r\n",
    "exec": b"MULTI\r\nQLESS.GET 0 " + JID.encode() + b"\r\nEXEC\r\n",
}


async def _list(served: Served, request: str) -> SpeakerConnection:
    client = await served.connect("workq" if request == "workq" else "qless")
    client.writer.write(LISTS[request])
    await until(lambda: served.reads)
    return client


@pytest.mark.parametrize("request_name", LISTS)
def test_a_command_that_lists_does_not_use_the_loop_while_it_waits(
    tmp_path: Path, request_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    run = asyncio.Handle._run

    def counted(handle: asyncio.Handle) -> None:
        nonlocal calls
        calls += 1
        run(handle)

    async def play(served: Served) -> None:
        served.push(LARGE)
        client = await _list(served, request_name)
        await asyncio.sleep(0.02)  # the first slice has ended
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.Handle, "_run", counted)
            await asyncio.sleep(0.1)
        assert calls < 20
        await served.read_all()
        heard = b""
        while LARGE[10:-10] not in heard:
            heard += await asyncio.wait_for(client.reader.read(1 << 20), 20)
        assert not served.engine.payloads.fetched

    serve(tmp_path / "data", play)


@pytest.mark.parametrize("request_name", LISTS)
def test_the_list_of_a_lost_client_leaves_no_work(tmp_path: Path, request_name: str) -> None:
    async def play(served: Served) -> None:
        served.push(LARGE)
        client = await _list(served, request_name)
        client.reset()
        await until(lambda: not served.server.sessions)
        await served.read_all()
        other = await served.connect("workq")
        other.writer.write(b"inspect server\r\n")
        assert (await other.reader.readuntil(b"\n")).startswith(b"+OK")
        assert not served.server.queue._waiting

    serve(tmp_path / "data", play)


def test_a_command_waits_for_one_payload_after_another(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        jids = [str(UUID(int=number)) for number in range(1, 5)]
        for jid in jids:
            served.push(LARGE, jid=jid)
        client = await served.connect("workq")
        client.writer.write(b"inspect jobs q 0 4\r\ninspect server\r\n")
        # The replies do not fit in the buffers of every system: the server waits for a client that
        # does not read.
        heard = asyncio.create_task(client.read_until(b"active-clients"))
        for _ in jids:
            assert not served.reads or len(served.reads) == 1
            await served.read_all()
        assert (await heard).count(LARGE) == len(jids)

    serve(tmp_path / "data", play)


def test_the_reply_of_several_large_jobs_is_encoded_in_slices(tmp_path: Path) -> None:
    """No callback writes more than one job, and the reply is the same in one piece or several."""
    largest: list[int] = []

    async def play(served: Served) -> None:
        jids = [str(UUID(int=number)) for number in range(1, 5)]
        for jid in jids:
            served.push(LARGE, jid=jid)
        client = await served.connect("qless")
        client.writer.write(b"QLESS.PEEK 1 q 4 1700000000\r\n")
        heard = b""
        for _ in jids:
            await served.read_all()
            largest.append(len(served.engine.payloads.fetched))
        while heard.count(b'"data":') < len(jids) or not heard.endswith(b"\r\n"):
            heard += await asyncio.wait_for(client.reader.read(1 << 20), 20)
        head, _, body = heard.partition(b"\r\n")
        if head[:1] == b"$":
            assert int(head[1:]) == len(body) - 2
        assert [job["jid"] for job in _json_jobs(heard)] == jids
        assert not served.engine.payloads.fetched

    serve(tmp_path / "data", play)
    assert max(largest) <= 1


def _json_jobs(reply: bytes) -> list[dict[str, object]]:
    """The jobs of a bulk string with a list, or of a list of bulk strings."""
    start, end = reply.index(b"{"), reply.rindex(b"}") + 1
    if reply[:1] == b"$":
        return list(json.loads(b"[" + reply[start:end] + b"]"))
    rows = [json.loads(line) for line in reply.split(b"\r\n") if line[:1] == b"{"]
    return list(rows)
