"""Tasks and pushes, on the real engine in memory."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from millrace import Millrace
from millrace.client import (
    InvalidArguments,
    NewJob,
    NotSupported,
    PushFailed,
    RequestRefused,
    current_job,
)
from millrace.client.address import Address, InvalidAddress, parse_address
from millrace.client.jobs import due_time, reserve_for
from millrace.client.wire import ReplyBuffer, command, hello


@pytest.fixture
def app() -> Millrace:
    return Millrace("tcp://127.0.0.1:1")


# Addresses


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("tcp://example.org", Address("example.org")),
        ("tcp://example.org:1234", Address("example.org", 1234)),
        ("tcp://:se%20cret@example.org", Address("example.org", 7419, "se cret")),
        ("tcp+tls://[::1]:7", Address("::1", 7, "", tls=True)),
    ],
)
def test_an_address_is_parsed(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize("url", ["example.org", "http://example.org", "tcp://", "tcp://a:b"])
def test_a_malformed_address_is_an_error(url: str) -> None:
    with pytest.raises(InvalidAddress):
        parse_address(url)


def test_the_environment_provides_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_URL", raising=False)
    monkeypatch.setenv("FAKTORY_URL", "tcp://faktory:1")
    assert parse_address() == Address("faktory", 1)
    monkeypatch.setenv("MILLRACE_URL", "tcp://millrace:2")
    assert parse_address() == Address("millrace", 2)


def test_an_address_never_shows_its_password() -> None:
    assert "secret" not in str(parse_address("tcp://:secret@example.org"))


# Wire


def test_replies_are_complete_however_the_bytes_arrive() -> None:
    stream = b'+HI {"v":2}\r\n$-1\r\n$5\r\na\r\nbc\r\n-ERR no\r\n:7\r\n$0\r\n\r\n'
    for size in range(1, len(stream) + 1):
        buffer, replies = ReplyBuffer(), []
        for start in range(0, len(stream), size):
            buffer.feed(stream[start : start + size])
            replies += buffer.take()
        assert [str(r) if isinstance(r, RequestRefused) else r for r in replies] == [
            'HI {"v":2}',
            None,
            b"a\r\nbc",
            "no",
            "7",
            b"",
        ]


def test_the_password_is_hashed_as_faktory_documents() -> None:
    greeting = 'HI {"v":2,"i":1545,"s":"55104dc76695721d"}'
    sent = json.loads(hello(greeting, "foobar", {})[len("HELLO ") :])
    expected = "6d877f8e5544b1f2598768f817413ab8a357afffa924dedae99eb91472d4ec30"
    assert sent == {"v": 2, "pwdhash": expected}


def test_a_command_is_one_line() -> None:
    assert command("FETCH", "a b") == b"FETCH a b\r\n"
    assert command("ACK", {"jid": "ż\n"}) == 'ACK {"jid":"ż\\n"}\r\n'.encode()


# Tasks


def test_a_task_is_still_a_function(app: Millrace) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == 8
    assert double.name.endswith("double")


def test_a_pushed_job_runs_with_its_arguments(app: Millrace) -> None:
    seen = []

    @app.task(queue="mail", name="send")
    def send(to: str, *, subject: str = "Hi") -> None:
        seen.append((to, subject))

    with app.testing() as server:
        handle = send.push("ada@example.org", subject="Hello")
        (job,) = server.jobs()
        assert (job.id, job.name, job.queue, job.state) == (handle.id, "send", "mail", "ready")
        (outcome,) = server.run()
        assert outcome.failure is None
        assert server.jobs() == []
    assert seen == [("ada@example.org", "Hello")]


def test_a_call_that_does_not_match_the_signature_is_not_pushed(app: Millrace) -> None:
    @app.task
    def send(to: str) -> None: ...

    with app.testing() as server:
        with pytest.raises(TypeError, match="missing a required argument"):
            send.push()  # type: ignore[call-arg]
        assert server.jobs() == []


def test_two_tasks_need_two_names(app: Millrace) -> None:
    app.task(name="same")(lambda: 1)
    with pytest.raises(ValueError, match="Two tasks have the name 'same'"):
        app.task(name="same")(lambda: 2)


def test_a_delayed_job_runs_at_its_time(app: Millrace) -> None:
    @app.task
    def work() -> None: ...

    with app.testing() as server:
        work.push_later(delay=60)
        work.options(at=datetime.fromtimestamp(server.now(), UTC) + timedelta(seconds=90)).push()
        assert [job.state for job in server.jobs()] == ["scheduled", "scheduled"]
        server.advance(59)
        assert server.run() == []
        server.advance(1)
        assert len(server.run()) == 1
        server.advance(timedelta(seconds=30))
        assert len(server.run()) == 1


def test_a_failing_job_is_retried_and_then_dead(app: Millrace) -> None:
    @app.task(retries=1)
    def fail() -> None:
        raise ValueError("no luck")

    with app.testing() as server:
        fail.push()
        (first,) = server.run()
        assert first.failure is not None
        assert (first.failure.kind, first.failure.message) == ("ValueError", "no luck")
        assert "raise ValueError" in first.failure.backtrace[-1]
        assert "test_app.py" in first.failure.backtrace[0], "it starts with the user's code"
        assert [job.state for job in server.jobs()] == ["scheduled"]
        server.advance(timedelta(hours=1))
        (second,) = server.run()
        assert second.job.failures == 1
        (dead,) = server.jobs()
        assert (dead.state, dead.error) == ("dead", "no luck")


def test_without_retries_a_failed_job_is_dead_immediately(app: Millrace) -> None:
    @app.task(retries=0)
    def fail() -> None:
        raise ValueError

    with app.testing() as server:
        fail.push()
        server.run()
        assert [job.state for job in server.jobs()] == ["dead"]


def test_jobs_can_run_immediately(app: Millrace) -> None:
    seen = []

    @app.task
    def outer() -> None:
        inner.push(1)

    @app.task
    def inner(number: int) -> None:
        seen.append(number)

    with app.testing(run_immediately=True) as server:
        outer.push()
        assert [outcome.job.name for outcome in server.outcomes] == [outer.name, inner.name]
    assert seen == [1]


def test_jobs_are_pushed_in_batches(app: Millrace) -> None:
    seen = []

    @app.task
    def count(number: int) -> None:
        seen.append(number)

    with app.testing() as server:
        handles = app.push_many((count.job(n) for n in range(25)), batch_size=10)
        assert [handle.id for handle in handles] == [job.id for job in server.jobs()]
        server.run()
    assert seen == list(range(25))


def test_refused_jobs_are_named(app: Millrace) -> None:
    with app.testing() as server:
        good, bad = NewJob("good"), NewJob("", id="without-a-name")
        with pytest.raises(PushFailed) as failed:
            app.push_many([good, bad])
        assert list(failed.value.errors) == ["without-a-name"]
        assert [job.id for job in server.jobs()] == [good.id]


def test_asyncio_pushes(app: Millrace) -> None:
    @app.task
    def work() -> None: ...

    async def main() -> None:
        await work.push_async()
        await app.push_many_async([work.job(), work.job()])

    with app.testing() as server:
        asyncio.run(main())
        assert len(server.jobs("ready")) == 3


def test_an_async_task_runs(app: Millrace) -> None:
    seen = []

    @app.task
    async def work() -> None:
        await asyncio.sleep(0)
        job = current_job()
        assert job is not None
        seen.append(job.name)

    with app.testing() as server:
        work.push()
        (outcome,) = server.run()
        assert outcome.failure is None
    assert seen == [work.name]
    assert current_job() is None


def test_middleware_wraps_every_job(app: Millrace) -> None:
    steps = []

    def outermost(job, call_next):
        steps.append(f"begin {job.name}")
        try:
            return call_next()
        finally:
            steps.append("end")

    app.middleware.append(outermost)
    app.middleware.append(lambda job, call_next: (steps.append("inner"), call_next())[1])
    app.task(name="work")(lambda: steps.append("work"))
    with app.testing() as server:
        app.push(NewJob("work"))
        server.run()
    assert steps == ["begin work", "inner", "work", "end"]


def test_a_job_without_a_task_fails(app: Millrace) -> None:
    with app.testing() as server:
        app.push(NewJob("unknown"))
        (outcome,) = server.run()
        assert outcome.failure is not None
        assert outcome.failure.kind == "UnknownTask"


def test_arguments_that_json_cannot_represent_are_refused(app: Millrace) -> None:
    @app.task
    def work(value: object) -> None: ...

    with app.testing(), pytest.raises(InvalidArguments, match="cannot be written as JSON"):
        work.push(object())


def test_oversized_arguments_are_refused() -> None:
    app = Millrace(max_job_bytes=1000)

    @app.task
    def work(value: str) -> None: ...

    with app.testing(), pytest.raises(InvalidArguments, match="larger than 1000 bytes"):
        work.push("ż" * 600)


def test_a_serializer_converts_arguments() -> None:
    class Dates:
        name = "dates"

        def dump(self, value):
            return value.isoformat() if isinstance(value, datetime) else value

        def load(self, value):
            return datetime.fromisoformat(value)

    app = Millrace(serializers=[Dates()])
    seen = []

    @app.task
    def work(value: datetime) -> None:
        seen.append(value)

    time = datetime(2026, 11, 18, tzinfo=UTC)
    with app.testing() as server:
        work.push(time)
        server.run()
    assert seen == [time]


def test_an_endless_loop_of_jobs_is_detected(app: Millrace) -> None:
    @app.task
    def again() -> None:
        again.push()

    with app.testing() as server:
        again.push()
        with pytest.raises(RuntimeError, match="100 jobs have run"):
            server.run(limit=100)


# Times


def test_a_due_time_is_a_delay_or_a_time() -> None:
    assert due_time(None, None, 5.0) is None
    assert due_time(2.5, None, 5.0) == 7.5
    assert due_time(timedelta(seconds=3), None, 5.0) == 8.0
    assert due_time(None, 9.0, 5.0) == 9.0
    with pytest.raises(ValueError, match="not both"):
        due_time(1, 2.0, 5.0)
    with pytest.raises(ValueError, match="time zone"):
        due_time(None, datetime(2026, 1, 1), 5.0)


@pytest.mark.parametrize(("timeout", "seconds"), [(1, 60), (100, 130), (1e9, 86_400)])
def test_the_server_waits_longer_than_the_timeout(timeout: float, seconds: int) -> None:
    assert reserve_for(timeout) == seconds


def test_extensions_need_a_millrace_server(app: Millrace) -> None:
    class PlainFaktory:
        def request_many(self, commands):
            return [b'{"server":{"faktory_version":"1.9.0"}}' for _ in commands]

        def close(self) -> None: ...

    app.use_transport(PlainFaktory(), None)
    with pytest.raises(NotSupported, match="does not support: priority, tags"):
        app.push(NewJob("work", priority=5, tags=["a"]))
