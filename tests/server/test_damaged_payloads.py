"""A job with a damaged payload dies with a clear error, and its worker gets the next job."""

import logging
from pathlib import Path
from uuid import UUID

import pytest
from payload_server import JID, LARGE, Served, serve, until

from millrace.engine.consistency import check_engine
from millrace.engine.job import Job, ensure_extra
from millrace.engine.limits import QUEUE_KEY_PREFIX
from millrace.engine.payloads import MAX_DIRECT_READ
from millrace.engine.states import DEAD, LEASED, READY
from millrace.server.app import clock
from speakers import SPEAKERS, Leased, Nothing

STORED = b'["' + b"0123456789abcdef" * 600 + b'"]'
OTHER_JID = str(UUID(int=2))
MESSAGE = "the payload of job 1 is damaged: it does not match its checksum"
LOG_LINE = f"Moved job {JID} of queue q to the dead set: {MESSAGE}; run millrace check."


def damage(served: Served, job: Job) -> None:
    other = b"x" * job.stored_size
    assert other
    served.store._db.execute("UPDATE payloads SET payload = ? WHERE seq = ?", (other, job.seq))


def check_dead(served: Served, job: Job, caplog: pytest.LogCaptureFixture) -> None:
    assert served.engine.jobs[job.seq] is job
    assert job.state == DEAD
    assert job.failure is not None
    assert job.failure.group == "PayloadDamaged"
    assert job.failure.message == f"{MESSAGE}; run millrace check"
    errors = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert errors == [LOG_LINE]


@pytest.mark.parametrize("protocol", SPEAKERS)
def test_the_worker_gets_the_next_job(
    tmp_path: Path, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(served: Served) -> None:
        job, healthy = served.push(STORED), served.push(STORED, jid=OTHER_JID)
        damage(served, job)
        client = await served.connect(protocol)
        client.lease()
        answer = await client.answer()
        assert isinstance(answer, Leased)
        assert answer.held.payload == STORED
        assert healthy.attempt == 1
        check_dead(served, job, caplog)

    serve(tmp_path / "data", play)


@pytest.mark.parametrize("protocol", ["faktory", "workq", "masenko", "goqueue"])
def test_a_waiting_worker_waits_for_the_next_job(
    tmp_path: Path, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(served: Served) -> None:
        job = served.push(STORED)
        damage(served, job)
        served.engine.pause("q", paused=True, now=clock())
        client = await served.connect(protocol)
        client.writer.write(client.speaker.lease("q", clock(), wait=30))
        await until(lambda: served.engine.queues["q"].waiters)
        served.engine.pause("q", paused=False, now=clock())
        served.server.after_commands(clock())
        check_dead(served, job, caplog)
        assert served.engine.queues["q"].waiters
        await until(lambda: not served.engine.has_uncommitted)  # the push commits in this thread
        served.push(STORED, jid=OTHER_JID)
        served.server.after_commands(clock())
        answer = await client.answer()
        assert isinstance(answer, Leased)
        assert answer.held.payload == STORED

    serve(tmp_path / "data", play)


@pytest.mark.parametrize("protocol", SPEAKERS)
def test_a_large_job_dies_after_the_read(
    tmp_path: Path, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(served: Served) -> None:
        job = served.push(LARGE)
        damage(served, job)
        client = await served.connect(protocol)
        client.lease()
        await served.read_all()
        assert isinstance(await client.answer(), Nothing)
        check_dead(served, job, caplog)

    serve(tmp_path / "data", play)


def test_the_state_is_durable(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        job = served.push(STORED)
        damage(served, job)
        client = await served.connect("workq")
        client.writer.write(b"lease q 0\r\n")
        assert await client.reader.readuntil(b"\n") == b"-TIMEOUT\r\n"
        # A server does not start with a damaged payload.
        served.store._db.execute("UPDATE payloads SET payload = ?", (STORED,))

    async def restarted(served: Served) -> None:
        (job,) = served.engine.dead.values()
        assert job.failure is not None
        assert job.failure.message == f"{MESSAGE}; run millrace check"

    for scene in (play, restarted):
        serve(tmp_path / "data", scene)


def test_the_dead_job_can_be_deleted(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        job = served.push(STORED)
        damage(served, job)
        client = await served.connect("workq")
        client.writer.write(b"lease q 0\r\ndelete " + JID.encode() + b"\r\n")
        assert await client.read_until(b"+OK\r\n") == b"-TIMEOUT\r\n+OK\r\n"

    async def restarted(served: Served) -> None:
        assert not served.engine.jobs

    for scene in (play, restarted):
        serve(tmp_path / "data", scene)


def test_a_dead_queue_does_not_get_the_job(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        job = served.push(STORED)
        ensure_extra(job).dead_queue = "graves"
        damage(served, job)
        client = await served.connect("workq")
        client.writer.write(b"lease q 0\r\n")
        assert await client.reader.readuntil(b"\n") == b"-TIMEOUT\r\n"
        assert (job.state, job.queue) == (DEAD, "q")

    serve(tmp_path / "data", play)


def test_a_lease_from_several_queues_gets_the_next_job(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        job = served.push(STORED)
        damage(served, job)
        client = await served.connect("workq")
        client.writer.write(b"lease other q 0\r\n")
        assert await client.reader.readuntil(b"\n") == b"-TIMEOUT\r\n"
        assert job.state == DEAD
        served.push(STORED, "workq", jid=OTHER_JID)
        client.writer.write(b"lease other q 0\r\n")
        await client.read_until(STORED)

    serve(tmp_path / "data", play)


def test_a_queue_with_a_limit_leases_the_next_job(tmp_path: Path) -> None:
    async def play(served: Served) -> None:
        job, healthy = served.push(STORED), served.push(STORED, jid=OTHER_JID)
        damage(served, job)
        served.engine.set_limit(QUEUE_KEY_PREFIX + "q", 1, 0, clock())
        client = await served.connect("faktory")
        client.lease()
        assert isinstance(await client.answer(), Leased)
        assert (job.state, healthy.state) == (DEAD, LEASED)
        assert not check_engine(served.engine).problems

    serve(tmp_path / "data", play)


def test_a_pop_of_several_jobs_gets_the_others(tmp_path: Path) -> None:
    """Job 1 is large and damaged, job 2 is large, job 3 is small and damaged, job 4 is small."""

    async def play(served: Served) -> None:
        jids = [str(UUID(int=number)) for number in range(1, 5)]
        payloads = (LARGE, LARGE, STORED, STORED)
        jobs = [served.push(*each) for each in zip(payloads, ["qless"] * 4, jids, strict=True)]
        damage(served, jobs[0])
        damage(served, jobs[2])
        client = await served.connect("qless")
        client.writer.write(b"QLESS.POP 1 q worker 4 1700000000 60\r\n")
        await served.read_all()
        await served.read_all()
        reply = await client.read_until(STORED)
        assert LARGE in reply
        assert [job.state for job in jobs] == [DEAD, LEASED, DEAD, LEASED]

    serve(tmp_path / "data", play)


#: Requests that read job 1, and the start of the reply.
READS = {
    "workq": (b"inspect job %b\r\n" % JID.encode(), b"-SERVER-ERROR " + MESSAGE.encode()),
    "workq list": (b"inspect jobs q 0 10\r\n", b"-SERVER-ERROR " + MESSAGE.encode()),
    "qless": (b"QLESS.GET 0 %b\r\n" % JID.encode(), b"-ERR " + MESSAGE.encode()),
    "qless list": (b"QLESS.PEEK 1 q 1 1700000000\r\n", b"-ERR " + MESSAGE.encode()),
    "qless exec": (
        b"MULTI\r\nQLESS.GET 0 %b\r\nEXEC\r\n" % JID.encode(),
        b"+OK\r\n+QUEUED\r\n*1\r\n-ERR " + MESSAGE.encode(),
    ),
    "faktory export": (
        b'MILLRACE {"read":{"state":"ready"}}\r\n',
        b"-ERR " + MESSAGE.encode(),
    ),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("payload", [STORED, LARGE], ids=["small", "large"])
def test_a_read_of_the_job_is_an_error(tmp_path: Path, name: str, payload: bytes) -> None:
    request, expected = READS[name]

    async def play(served: Served) -> None:
        job = served.push(payload)
        damage(served, job)
        client = await served.connect(name.partition(" ")[0])
        client.writer.write(request)
        if len(payload) > MAX_DIRECT_READ:
            await served.read_all()
        assert (await client.read_until(expected)).startswith(expected)
        assert job.state == READY

    serve(tmp_path / "data", play)
