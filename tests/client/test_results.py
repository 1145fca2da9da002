"""Results of completed jobs and cancellation, on a real server."""

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace import Millrace
from millrace.client import (
    JobCancelled,
    JobFailed,
    JobNotFound,
    NewJob,
    RequestRefused,
    TimedOut,
    Worker,
    WorkerOptions,
    wire,
)
from millrace.client.jobs import read_job
from server_process import ServerProcess, running_server


@pytest.fixture
def app(server: ServerProcess) -> Iterator[Millrace]:
    with Millrace(f"tcp://127.0.0.1:{server.port}") as app:
        yield app


def fetch(app: Millrace, queue: str = "default") -> str:
    (reply,) = app.transport.request_many([wire.command("FETCH", queue)])
    return read_job(reply).id if isinstance(reply, bytes) else ""


def ack(app: Millrace, jid: str, **more: Any) -> Any:
    return app.transport.request_many([wire.command("ACK", {"jid": jid, **more})])[0]


def post(server: ServerProcess, path: str, body: Any) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.ports['web']}/api/v1{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def get(server: ServerProcess, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['web']}/api/v1{path}") as reply:
        return json.load(reply)


# Results


def test_a_result_is_retained_and_survives_kill_9(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        with Millrace(f"tcp://127.0.0.1:{server.port}") as app:
            handle = app.push(NewJob("work"))
            assert handle.state() == "ready"
            assert fetch(app) == handle.id
            assert handle.state() == "leased"
            assert ack(app, handle.id, result='{"sum":3}') == "OK"
        server.restart()
        with Millrace(f"tcp://127.0.0.1:{server.port}") as app:
            assert app.handle(handle.id).state() == "done"
            assert app.handle(handle.id).result(timeout=1) == {"sum": 3}


def test_a_job_without_a_result_is_not_retained(app: Millrace) -> None:
    handle = app.push(NewJob("work"))
    ack(app, fetch(app))
    assert handle.state() == "unknown"
    with pytest.raises(JobNotFound):
        handle.result(timeout=1)


def test_a_push_sets_the_retention_of_its_result(app: Millrace) -> None:
    kept, dropped = (app.push(NewJob("work", keep_result=seconds)) for seconds in (60, 0))
    ack(app, fetch(app))
    ack(app, fetch(app), result="1")
    assert kept.state() == "done"
    assert kept.result(timeout=1) is None
    assert dropped.state() == "unknown"


def test_a_queue_sets_the_retention_of_results(app: Millrace, server: ServerProcess) -> None:
    first = app.push(NewJob("work", queue="kept"))
    queue = post(server, "/queues/kept/retain", {"keep_results": 3600})
    assert queue["keep_results"] == 3600
    ack(app, fetch(app, "kept"))
    assert first.state() == "done"
    second = app.push(NewJob("work", queue="kept"))
    assert post(server, "/queues/kept/retain", {"keep_results": None})["keep_results"] is None
    ack(app, fetch(app, "kept"))
    assert second.state() == "unknown"


def test_a_wait_ends_with_the_job(app: Millrace) -> None:
    handle = app.push(NewJob("work"))
    with pytest.raises(TimedOut):
        handle.result(timeout=0.05)
    jid = fetch(app)
    worker = threading.Timer(0.2, ack, (app, jid), {"result": "[1,2]"})
    worker.start()
    assert handle.result(timeout=10) == [1, 2]
    worker.join()


def test_the_error_of_a_dead_job_is_raised(app: Millrace) -> None:
    handle = app.push(NewJob("work", retries=0))
    failure = {"jid": fetch(app), "errtype": "ValueError", "message": "no such user"}
    app.transport.request_many([wire.command("FAIL", failure)])
    with pytest.raises(JobFailed, match="ValueError: no such user") as error:
        handle.result(timeout=1)
    assert error.value.kind == "ValueError"


def test_a_result_over_http_is_retained(server: ServerProcess, app: Millrace) -> None:
    job = post(server, "/jobs", {"queue": "http", "payload": [1], "keep_result": 60})["jobs"][0]
    lease = post(server, "/leases", {"queues": ["http"], "worker": "me"})["leases"][0]
    ended = post(server, f"/leases/{lease['token']}/complete", {"result": {"n": 1.50}})
    assert ended["job"]["state"] == "done"
    detail = get(server, f"/jobs/{job['id']}")
    assert detail["result"] == {"n": 1.5}
    assert app.handle(job["id"]).result(timeout=1) == {"n": 1.5}


def test_a_large_result_is_refused(app: Millrace) -> None:
    handle = app.push(NewJob("work"))
    reply = ack(app, fetch(app), result="1" * ((1 << 20) + 1))
    assert isinstance(reply, RequestRefused)
    assert handle.state() == "leased"


def test_a_malformed_request_is_refused(app: Millrace) -> None:
    for request in (
        {"result": {"jid": "x", "wait": 1e9}},
        {"result": {}},
        {"cancel": ["a"] * 1001},
    ):
        (reply,) = app.transport.request_many([wire.command("MILLRACE", request)])
        assert isinstance(reply, RequestRefused)


# Cancellation


def test_a_running_job_is_cancelled(app: Millrace) -> None:
    handle = app.push(NewJob("work"))
    jid = fetch(app)
    assert handle.cancel()
    assert not handle.cancel()
    assert ack(app, jid, result="1") == "OK"  # the late completion has no effect
    assert handle.state() == "unknown"
    assert app.info()["faktory"]["total_processed"] == 0


def test_a_waiting_caller_is_notified_of_the_cancellation(app: Millrace) -> None:
    handle = app.push(NewJob("work"))
    timer = threading.Timer(0.2, handle.cancel)
    timer.start()
    with pytest.raises(JobCancelled):
        handle.result(timeout=10)
    timer.join()


def test_a_job_with_dependents_is_not_cancelled(app: Millrace) -> None:
    first = app.push(NewJob("first"))
    app.push(NewJob("second", depends_on=[first.id]))
    with pytest.raises(RequestRefused, match="depend"):
        first.cancel()
    assert first.state() == "ready"


def test_a_heartbeat_names_the_jobs_that_a_worker_has_lost(server: ServerProcess) -> None:
    with Millrace(f"tcp://127.0.0.1:{server.port}") as app:
        handle = app.push(NewJob("work"))
        from millrace.client.connection import Connection, Identity

        worker = Connection(app.connection_options(Identity("worker-1")))
        worker.open()
        worker.request(wire.command("FETCH", "default"))
        beat = wire.command("BEAT", {"wid": "worker-1", "running": [handle.id]})
        assert worker.request(beat) == "OK"
        assert handle.cancel()
        reply = worker.request(beat)
        assert isinstance(reply, bytes)
        assert json.loads(reply) == {"cancelled": [handle.id]}
        assert worker.request(wire.command("BEAT", {"wid": "worker-1"})) == "OK"
        worker.close()


# Several jobs in one round trip


def test_several_jobs_are_fetched_and_acknowledged(app: Millrace) -> None:
    handles = app.push_many(NewJob("work", [number]) for number in range(3))

    def send_request(**request: Any) -> Any:
        (reply,) = app.transport.request_many([wire.command("MILLRACE", request)])
        return json.loads(reply) if isinstance(reply, bytes) else reply

    fetched = send_request(fetch={"queues": ["default"], "count": 2})
    assert [unit["args"] for unit in fetched] == [[0], [1]]
    acks = [{"jid": handles[0].id, "result": "1"}, {"jid": handles[1].id}, {"jid": "unknown"}]
    assert send_request(ack=acks) == {"acknowledged": 2}
    assert handles[0].result(timeout=1) == 1
    assert [unit["args"] for unit in send_request(fetch={"queues": ["default"], "count": 9})] == [
        [2]
    ]
    assert send_request(fetch={"queues": ["default"]}) == []  # after two seconds
    for wrong in ({"queues": []}, {"queues": ["a"], "count": 101}):
        assert isinstance(send_request(fetch=wrong), RequestRefused)
    large = [{"jid": handles[2].id, "result": "1" * ((1 << 20) + 1)}]
    assert isinstance(send_request(ack=large), RequestRefused)
    assert handles[2].state() == "leased"


# The worker


@pytest.fixture
def working(server: ServerProcess) -> Iterator[Millrace]:
    app = Millrace(f"tcp://127.0.0.1:{server.port}")

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="nap")
    async def nap(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "rested"

    @app.task(name="sleep", timeout=60)
    def sleep(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.01)

    @app.task(name="odd")
    def odd() -> object:
        return object()

    with app:
        yield app


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_a_worker_returns_results_and_stops_cancelled_jobs(working: Millrace, mode: Any) -> None:
    outcomes: list[Any] = []
    options = WorkerOptions(concurrency=2, mode=mode, heartbeat_interval=0.05)
    worker = Worker(working, options, on_outcome=outcomes.append)
    thread = threading.Thread(target=worker.run, kwargs={"handle_signals": False})
    thread.start()
    try:
        assert working.tasks["add"].push(1, 2).result(timeout=20) == 3
        assert working.tasks["nap"].push(0).result(timeout=20) == "rested"
        odd = working.tasks["odd"].options(keep_result=60).push()
        assert odd.result(timeout=20) is None
        handle = working.tasks["nap"].push(600)
        while handle.state() != "leased":
            time.sleep(0.01)
        assert handle.cancel()
        while not any(each.failure for each in outcomes):
            time.sleep(0.01)
        (cancelled,) = (each for each in outcomes if each.failure)
        assert (cancelled.job.id, cancelled.failure.kind) == (handle.id, "JobCancelled")
        assert working.info()["faktory"]["total_failures"] == 0
    finally:
        worker.stop()
        thread.join()


def test_results_with_asyncio(working: Millrace) -> None:
    worker = Worker(working, WorkerOptions(concurrency=1))
    thread = threading.Thread(target=worker.run, kwargs={"handle_signals": False})
    thread.start()

    async def main() -> None:
        handle = await working.tasks["add"].push_async(20, 22)
        assert await handle.result_async(timeout=20) == 42
        assert await handle.state_async() == "done"
        assert not await handle.cancel_async()
        await working.close_async()

    try:
        asyncio.run(main())
    finally:
        worker.stop()
        thread.join()


def test_results_in_a_test_server(working: Millrace) -> None:
    with working.testing() as server:
        handle = working.tasks["add"].push(1, 2)
        assert handle.result() == 3
        later = working.tasks["add"].push_later(2, 3, delay=60)
        with pytest.raises(TimedOut, match="Advance"):
            later.result()
        server.advance(60)
        assert later.result() == 5
        doomed = working.tasks["add"].push(1, 1)
        assert doomed.cancel()
        assert server.run() == []
