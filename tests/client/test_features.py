"""Limits, recurring jobs and tracked jobs of the SDK."""

import asyncio
from datetime import timedelta
from random import Random

import pytest
from virtual_soak import SECOND, LossyConnection, VirtualServer

from millrace import Millrace
from millrace.client import InvalidArguments, NotSupported, RequestRefused, wire
from millrace.client.wire import Reply
from millrace.engine.states import STATE_NAMES


@pytest.fixture
def app() -> Millrace:
    return Millrace("tcp://127.0.0.1:1")


def test_a_recurring_job_runs_at_every_interval(app: Millrace) -> None:
    seen = []

    @app.task(name="report", queue="nightly", priority=3, tags=["daily"])
    def report(day: str) -> None:
        seen.append(day)

    with app.testing() as server:
        app.recur("reports", report.job("monday"), every=timedelta(hours=1), delay=60)
        server.run()
        assert seen == []
        server.advance(60)
        server.run()
        server.advance(3 * 3600)
        server.run()
        assert 3 <= len(seen) <= 4
        assert set(seen) == {"monday"}
        assert all(outcome.failure is None for outcome in server.outcomes)
        assert app.unrecur("reports")
        assert not app.unrecur("reports")
        count = len(seen)
        server.advance(7200)
        server.run()
        assert len(seen) == count
        with pytest.raises(RequestRefused):
            app.recur("reports", report.job("monday"), every=0)


def test_a_recurring_job_takes_no_keywords(app: Millrace) -> None:
    @app.task
    def send(*, to: str) -> None: ...

    with app.testing(), pytest.raises(InvalidArguments):
        app.recur("mail", send.job(to="ada"), every=60)


def test_a_recurring_job_refuses_options_that_it_cannot_have(app: Millrace) -> None:
    @app.task
    def step() -> None: ...

    with app.testing(), pytest.raises(InvalidArguments, match="Pass `delay` to `recur`"):
        app.recur("steps", step.options(delay=60).job(), every=60)
    with app.testing(), pytest.raises(InvalidArguments, match="cannot have `depends_on`"):
        app.recur("steps", step.options(depends_on=["other"]).job(), every=60)


def test_a_recurring_job_takes_json_arguments_only() -> None:
    class Texts:
        name = "texts"

        def dump(self, value: object) -> str:
            return str(value)

        def load(self, value: object) -> object:
            return value

    app = Millrace("tcp://127.0.0.1:1", serializers=[Texts()])

    @app.task
    def step(number: int) -> None: ...

    with app.testing(), pytest.raises(InvalidArguments, match="JSON arguments only"):
        app.recur("steps", step.job(1), every=60)


def fetched(app: Millrace, count: int) -> int:
    """The number of jobs that a worker gets."""
    fetch = wire.command("MILLRACE", {"fetch": {"queues": ["images"], "count": count}})
    (reply,) = app.transport.request_many([fetch])
    assert isinstance(reply, bytes)
    return reply.count(b'"jid"')


def test_a_limit_binds_the_workers(app: Millrace) -> None:
    @app.task(queue="images")
    def resize(name: str) -> None: ...

    with app.testing():
        app.limit("images", 2)
        app.push_many(resize.job(f"{number}.jpg") for number in range(5))
        assert fetched(app, 5) == 2
        app.limit("images", None)
        assert fetched(app, 5) == 3
        with pytest.raises(ValueError, match="at least 1"):
            app.limit("images", 0)
        with pytest.raises(RequestRefused, match="queue names"):
            app.limit("no spaces", 1)


def test_a_job_is_tracked(app: Millrace) -> None:
    @app.task
    def step() -> None: ...

    with app.testing():
        handle = step.push()
        assert handle.track()
        assert not handle.track()
        assert handle.untrack()
        assert not handle.untrack()


def test_the_same_for_asyncio(app: Millrace) -> None:
    @app.task(queue="images")
    def step() -> None: ...

    async def use() -> None:
        await app.limit_async("images", 1)
        await app.recur_async("steps", step.job(), every=60)
        assert await app.unrecur_async("steps")
        handle = await step.push_async()
        assert await handle.track_async()
        assert await handle.untrack_async()

    with app.testing():
        asyncio.run(use())


class PlainFaktory:
    """A server without extensions."""

    def request_many(self, commands: list[bytes]) -> list[Reply]:
        assert commands == [wire.command("INFO")]
        return [b'{"server":{"faktory_version":"1.9.0"}}']

    def close(self) -> None: ...


def test_a_plain_server_is_named_in_the_error(app: Millrace) -> None:
    @app.task
    def step() -> None: ...

    app.use_transport(PlainFaktory(), None)
    for use in (
        lambda: app.limit("images", 1),
        lambda: app.recur("steps", step.job(), every=60),
        lambda: app.unrecur("steps"),
        lambda: app.handle("job-0001").track(),
    ):
        with pytest.raises(NotSupported, match="plain Faktory server"):
            use()


def test_heartbeats_renew_the_leases_of_running_jobs() -> None:
    server = VirtualServer(seed=1)
    worker = LossyConnection(server, Random(1), {"wid": "w1", "hostname": "h", "pid": 1})
    worker.faulty = False

    def send(verb: str, body: dict[str, object]) -> Reply:
        (reply,) = worker.request_many([wire.command(verb, body)])
        return reply

    send("PUSH", {"jid": "job-00001", "jobtype": "t", "args": [], "reserve_for": 90})
    send("MILLRACE", {"fetch": {"queues": ["default"], "count": 1}})
    job = server.engine.find("job-00001")
    for _ in range(10):  # ten minutes, with a reservation of 90 seconds
        server.advance(server.now + 60 * SECOND)
        assert send("BEAT", {"wid": "w1", "running": ["job-00001"]}) == "OK"
    assert STATE_NAMES[job.state] == "leased"
    server.advance(server.now + 91 * SECOND)
    assert STATE_NAMES[job.state] == "scheduled"  # without heartbeats the lease expires
