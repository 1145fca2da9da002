"""Priorities, tags and dependencies of the SDK, on a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from millrace import Millrace
from millrace.client import NewJob, RequestRefused, wire
from millrace.client.jobs import read_job
from server_process import ServerProcess, running_server


@pytest.fixture
def app(server: ServerProcess) -> Iterator[Millrace]:
    with Millrace(f"tcp://127.0.0.1:{server.port}") as app:
        yield app


def fetch(app: Millrace) -> str:
    (reply,) = app.transport.request_many([wire.command("FETCH", "default")])
    return read_job(reply).id if isinstance(reply, bytes) else ""


def ack(app: Millrace, jid: str) -> None:
    app.transport.request_many([wire.command("ACK", {"jid": jid})])


def test_a_higher_priority_is_fetched_first(app: Millrace) -> None:
    low, high, middle = (app.push(NewJob("work", priority=p)).id for p in (-1, 5, 0))
    assert [fetch(app) for _ in range(3)] == [high, middle, low]


def test_a_job_waits_for_the_jobs_that_it_depends_on(app: Millrace) -> None:
    first, second = app.push(NewJob("first")), app.push(NewJob("second"))
    third = app.push(NewJob("third", depends_on=[first.id, second.id]))
    assert [fetch(app), fetch(app)] == [first.id, second.id]
    ack(app, first.id)
    assert app.info()["faktory"]["total_enqueued"] == 0
    ack(app, second.id)
    assert fetch(app) == third.id


def test_a_dependency_that_has_completed_does_not_block(app: Millrace) -> None:
    first = app.push(NewJob("first"))
    ack(app, fetch(app))
    second = app.push(NewJob("second", depends_on=[first.id]))
    assert fetch(app) == second.id


def test_jobs_of_one_batch_can_depend_on_each_other(app: Millrace) -> None:
    first = NewJob("first")
    second = NewJob("second", depends_on=[first.id], priority=9)
    app.push_many([first, second])
    assert fetch(app) == first.id
    ack(app, first.id)
    assert fetch(app) == second.id


def test_a_blocked_job_pushed_again_stays_one_job(app: Millrace) -> None:
    first = app.push(NewJob("first"))
    second = NewJob("second", depends_on=[first.id])
    command = wire.command("PUSH", second.to_work_unit(app.serializers["json"]))
    assert app.transport.request_many([command, command]) == ["OK", "OK"]
    ack(app, fetch(app))
    ack(app, fetch(app))
    assert app.info()["faktory"]["total_enqueued"] == 0


def test_tags_are_found_over_qless_and_survive_kill_9(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        with Millrace(f"tcp://127.0.0.1:{server.port}") as app:
            pushed = app.push(NewJob("work", tags=["red", "blue"]))
        for _ in range(2):
            qless = redis.Redis(port=server.ports["qless"], decode_responses=True)
            found = qless.execute_command("QLESS.TAG", 0, "get", "red", 0, 10)
            assert pushed.id in str(found)
            server.restart()


@pytest.mark.parametrize("wrong", ['{"tags":"red"}', '{"priority":"high"}', '{"depends_on":[1]}'])
def test_extensions_of_a_wrong_type_are_refused(app: Millrace, wrong: str) -> None:
    unit = f'{{"jid":"12345678","jobtype":"work","args":[],"custom":{{"millrace":{wrong}}}}}'
    (reply,) = app.transport.request_many([wire.command("PUSH", unit)])
    assert isinstance(reply, RequestRefused)
    assert "invalid custom: Expected" in str(reply)
