"""Workers against a real server."""

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace import Millrace
from millrace.client import Worker, WorkerOptions
from millrace.client.jobs import Job
from millrace.client.worker import Outcome
from millrace.client.worker.execution import execute
from server_process import ServerProcess, StartedCommand, running_server

WAIT = 20.0


@pytest.fixture
def app(server: ServerProcess) -> Iterator[Millrace]:
    with Millrace(f"tcp://127.0.0.1:{server.port}") as app:
        yield app


class Outcomes:
    """Collects outcomes as the server accepts them."""

    def __init__(self) -> None:
        self.all: list[Outcome] = []
        self._changed = threading.Condition()

    def __call__(self, outcome: Outcome) -> None:
        with self._changed:
            self.all.append(outcome)
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[Outcome]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all) >= count, WAIT), self.all
            return list(self.all)


@contextmanager
def working(app: Millrace, app_path: str = "", **options) -> Iterator[tuple[Worker, Outcomes]]:
    outcomes = Outcomes()
    options.setdefault("concurrency", 2)
    worker = Worker(app, WorkerOptions(**options), app_path=app_path, on_outcome=outcomes)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        assert worker.ready.wait(WAIT)
        yield worker, outcomes
    finally:
        worker.stop()
        thread.join(WAIT)
        assert not thread.is_alive()


def counts(app: Millrace) -> dict[str, int]:
    info = app.info()["faktory"]
    return {
        "ready": info["total_enqueued"],
        "processed": info["total_processed"],
        "failures": info["total_failures"],
        **info["sets"],
    }


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_every_job_runs_once(app: Millrace, mode: str) -> None:
    seen = []

    @app.task(queue="numbers")
    def plain(number: int) -> None:
        seen.append(number)

    @app.task(queue="numbers")
    async def asynchronous(number: int) -> None:
        await asyncio.sleep(0.001)
        seen.append(number)

    app.push_many(plain.job(n) for n in range(100))
    app.push_many(asynchronous.job(n) for n in range(100, 200))
    with working(app, queues=("numbers",), mode=mode, concurrency=8) as (_, outcomes):
        assert all(outcome.failure is None for outcome in outcomes.wait_for(200))
    assert sorted(seen) == list(range(200))
    assert counts(app) | {"processed": 200, "working": 0, "ready": 0} == counts(app)


def test_a_failure_reaches_the_server(app: Millrace) -> None:
    @app.task
    def fail() -> None:
        raise LookupError("nothing there")

    fail.push()
    with working(app) as (_, outcomes):
        (outcome,) = outcomes.wait_for(1)
    assert outcome.failure is not None
    assert outcome.failure.kind == "LookupError"
    assert counts(app)["retries"] == 1


def test_the_timeout_of_a_task_applies_to_jobs_without_one(app: Millrace) -> None:
    @app.task(queue="slow", timeout=0.2, retries=0)
    def sleep() -> None:
        time.sleep(0.05)
        while True:
            time.sleep(0.01)

    app.recur("sleeper", sleep.job(), every=3600)
    with working(app, queues=("slow",)) as (_, outcomes):
        (outcome,) = outcomes.wait_for(1)
    assert outcome.failure is not None
    assert outcome.failure.kind == "JobTimedOut"


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_a_timeout_stops_the_job(app: Millrace, mode: str) -> None:
    stopped = threading.Event()

    @app.task(timeout=0.2)
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    endless.push()
    with working(app, mode=mode) as (_, outcomes):
        (outcome,) = outcomes.wait_for(1)
    assert outcome.failure is not None
    assert outcome.failure.kind == "JobTimedOut"
    assert stopped.is_set()


def test_a_timeout_stops_a_busy_thread(app: Millrace) -> None:
    @app.task(timeout=0.2)
    def endless() -> None:
        while True:
            time.sleep(0.01)

    @app.task
    def short() -> None: ...

    endless.push()
    short.push()
    with working(app, concurrency=1) as (_, outcomes):
        first, second = outcomes.wait_for(2)
    assert first.failure is not None
    assert first.failure.kind == "JobTimedOut"
    assert second.failure is None, "the thread continues with other jobs"


def test_a_stopping_worker_finishes_its_jobs(app: Millrace) -> None:
    started, release = threading.Event(), threading.Event()

    @app.task
    def slow() -> None:
        started.set()
        assert release.wait(WAIT)

    slow.push()
    with working(app, concurrency=1) as (worker, outcomes):
        assert started.wait(WAIT)
        worker.stop()
        slow.push()
        release.set()
        (outcome,) = outcomes.wait_for(1)
        assert outcome.failure is None
    assert counts(app)["ready"] == 1, "the second job stays in its queue"


def test_a_job_that_does_not_finish_in_time_is_returned(app: Millrace) -> None:
    started = threading.Event()

    @app.task
    def endless() -> None:
        started.set()
        while True:
            time.sleep(0.01)

    endless.push()
    with working(app, shutdown_timeout=0.2) as (worker, outcomes):
        assert started.wait(WAIT)
        worker.stop()
        (outcome,) = outcomes.wait_for(1)
    assert outcome.failure is not None
    assert outcome.failure.kind == "WorkerStopped"
    assert counts(app)["retries"] == 1


def test_a_job_in_a_call_that_cannot_be_interrupted_is_returned(app: Millrace) -> None:
    """The thread gets the exception only after the call; the lease would last half an hour."""
    started, release = threading.Event(), threading.Event()

    @app.task
    def blocked() -> None:
        started.set()
        release.wait()

    blocked.push()
    with working(app, concurrency=1, shutdown_timeout=0.2) as (worker, outcomes):
        assert started.wait(WAIT)
        worker.stop()
        (outcome,) = outcomes.wait_for(1)
        assert outcome.failure is not None
        assert outcome.failure.kind == "WorkerStopped"
        assert counts(app)["retries"] == 1
        release.set()  # the late outcome changes nothing
    assert counts(app)["retries"] == 1


def test_a_worker_survives_a_killed_server(tmp_path: Path) -> None:
    """No job is lost and every outcome arrives, although the server is killed three times."""
    with running_server(tmp_path / "data") as server:
        app = Millrace(f"tcp://127.0.0.1:{server.port}", retry_for=WAIT)
        seen = []

        @app.task
        def work(number: int) -> None:
            seen.append(number)
            time.sleep(0.002)

        with working(app, concurrency=4) as (_, outcomes):
            for start in range(0, 150, 50):
                app.push_many(work.job(n) for n in range(start, start + 50))
                outcomes.wait_for(start + 10)
                server.kill()
                server.start(MILLRACE_FAKTORY_PORT=str(app.connection_options().address.port))
            wait_until(lambda: counts(app)["ready"] == 0 and counts(app)["working"] == 0)
        assert set(seen) == set(range(150))
        assert counts(app)["ready"] == counts(app)["working"] == counts(app)["retries"] == 0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_server_can_quiet_a_worker(app: Millrace, server: ServerProcess) -> None:
    with working(app, heartbeat_interval=0.1) as (worker, _):
        app.transport.request_many([f"WORKER QUIET {worker.wid}\r\n".encode()])
        wait_until(worker._quiet.is_set)


# Processes

MODULE = """
import os, time
from millrace import Millrace

app = Millrace()

@app.task(retries=3)
def note(path, number):
    with open(path, "a") as file:
        file.write(f"{number}\\n")

@app.task
def crash():
    os._exit(3)

@app.task(timeout=0.3)
def hang():
    time.sleep(60)
"""


@pytest.fixture
def project(tmp_path: Path, app: Millrace, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "shop_tasks.py").write_text(textwrap.dedent(MODULE))
    address = app.connection_options().address
    monkeypatch.setenv("MILLRACE_URL", f"tcp://{address.host}:{address.port}")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.chdir(folder)
    return folder


def test_processes_survive_crashes_and_hanging_jobs(project: Path, app: Millrace) -> None:
    from millrace.client import NewJob

    target = project / "notes"
    app.push(NewJob("shop_tasks.crash"))
    app.push(NewJob("shop_tasks.hang", timeout=0.3))
    app.push_many(NewJob("shop_tasks.note", [str(target), n]) for n in range(10))
    options = {"mode": "processes", "app_path": "shop_tasks:app"}
    with working(app, **options) as (_, outcomes):
        found = outcomes.wait_for(12)
    failures = {o.job.name: o.failure.kind for o in found if o.failure is not None}
    assert failures == {"shop_tasks.crash": "WorkerCrashed", "shop_tasks.hang": "JobTimedOut"}
    assert sorted(map(int, target.read_text().split())) == list(range(10))


def test_a_program_ends_with_sigterm(project: Path, app: Millrace) -> None:
    code = "import shop_tasks, millrace.client as c; c.Worker(shop_tasks.app).run(); print('ended')"
    with StartedCommand([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: app.info()["faktory"]["tasks"]["Workers"]["size"] > 0)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=WAIT)[0] == "ended\n"
    assert process.returncode == 0


# The command line


def test_the_command_runs_an_application(project: Path, app: Millrace) -> None:
    from millrace.client import NewJob

    target = project / "notes"
    millrace = str(Path(sys.executable).with_name("millrace"))
    arguments = [millrace, "worker", "shop_tasks:app", "-c", "2", "--metrics-port", "0"]
    with StartedCommand(arguments, stderr=subprocess.PIPE, text=True) as process:
        app.push(NewJob("shop_tasks.note", [str(target), 1]))
        app.push(NewJob("shop_tasks.missing"))
        wait_until(lambda: target.exists() and counts(app)["retries"] == 1)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=WAIT)[1]
    assert process.returncode == 0
    assert "2 threads, queues default" in output
    assert "shop_tasks.note" in output
    assert "UnknownTask: No task is named 'shop_tasks.missing'" in output


@pytest.mark.parametrize(
    ("application", "reason"),
    [
        ("nowhere:app", "No module named 'nowhere'"),
        ("shop_tasks", "Use module:attribute"),
        ("shop_tasks:os", "is no Millrace application"),
    ],
)
def test_the_command_names_a_wrong_application(
    project: Path, application: str, reason: str
) -> None:
    millrace = str(Path(sys.executable).with_name("millrace"))
    done = subprocess.run([millrace, "worker", application], capture_output=True, text=True)
    assert done.returncode == 2
    assert reason in done.stderr


def test_backtraces_start_with_the_users_code_and_name_the_cause() -> None:
    def parse(text: str) -> int:
        try:
            return int(text)
        except ValueError as error:
            raise LookupError("no number") from error

    app = Millrace()
    task = app.task(name="parse")(parse)
    job = Job("1", task.name, "default", ["x"], {}, None, "json", 0, {})
    failure = execute(app, job).failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("LookupError", "no number")
    assert "test_worker.py" in failure.backtrace[0]
    cause = failure.backtrace.index(
        "Caused by ValueError: invalid literal for int() with base 10: 'x'"
    )
    assert "test_worker.py" in failure.backtrace[cause + 1]


def test_a_long_backtrace_keeps_the_deepest_frames() -> None:
    def descend(depth: int) -> None:
        if not depth:
            raise ValueError("deep")
        if depth % 2:
            descend(depth - 1)
        descend(depth - 1)  # Python abbreviates frames with equal lines

    app = Millrace()
    task = app.task(name="descend")(descend)
    job = Job("1", task.name, "default", [60], {}, None, "json", 0, {})
    failure = execute(app, job).failure
    assert failure is not None
    assert len(failure.backtrace) == 50
    assert "raise ValueError" in failure.backtrace[-1]
