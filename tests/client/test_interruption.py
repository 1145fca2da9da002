"""An interruption of a job may arrive before or after its task; the worker's thread survives it.

Invariant: wherever Python can deliver the interruption outside of the task, the thread reports the
job once, leaves the watchdog unlocked, and runs the next job.
"""

import dis
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from millrace import Millrace
from millrace.client.errors import JobCancelled
from millrace.client.jobs import Job
from millrace.client.worker import Outcome, executors, watchdog
from millrace.client.worker.executors import ThreadExecutor

WAIT = 20.0
#: Names of byte codes after which Python delivers a pending exception.
DELIVERING = ("CALL", "RESUME", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")
SOURCES = {executors.__file__, watchdog.__file__}


def job(name: str) -> Job:
    return Job(name, "work", "default", [name], {}, None, "json", 0, {})


@pytest.fixture
def done() -> list[str]:
    """The jobs with a completed task."""
    return []


@pytest.fixture
def app(done: list[str]) -> Millrace:
    app = Millrace()

    @app.task(name="work")
    def work(name: str) -> str:
        done.append(name)
        return name

    return app


@contextmanager
def running(app: Millrace) -> Iterator[tuple[ThreadExecutor, "queue.SimpleQueue[Outcome]"]]:
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    executor = ThreadExecutor(app, 1, outcomes.put)
    try:
        yield executor, outcomes
    finally:
        executor.close()


def check_next_job(executor: ThreadExecutor, outcomes: "queue.SimpleQueue[Outcome]") -> None:
    executor.submit(job("second"))
    outcome = outcomes.get(timeout=WAIT)
    assert (outcome.job.id, outcome.failure) == ("second", None)
    assert outcomes.empty()


def test_an_interruption_before_the_end_of_the_watch(app: Millrace, done: list[str]) -> None:
    """The task has returned, and the watchdog does not know it yet."""
    with running(app) as (executor, outcomes):
        dog = executor._watchdog
        finish = dog.finish

        def finish_late(watch: watchdog.Watch) -> None:
            if watch.job_id == "first" and watch.active:
                assert done == ["first"]
                dog.interrupt("first", JobCancelled)
            finish(watch)

        dog.finish = finish_late  # type: ignore[method-assign]
        executor.submit(job("first"))
        outcome = outcomes.get(timeout=WAIT)
        assert (outcome.failure, outcome.result) == (None, '"first"')
        check_next_job(executor, outcomes)


class Injection:
    """Raises JobCancelled at the n-th place where Python could deliver it: after a byte code that
    checks for pending exceptions, while the SDK watches a job.
    """

    def __init__(self, position: int) -> None:
        self.left = position
        self.executor: ThreadExecutor | None = None
        self.former: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in SOURCES or frame.f_code.co_name == "_receive_pending":
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self.on_byte_code

    def on_byte_code(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "opcode":
            return self.on_byte_code
        former = self.former.get(frame, "RESUME")
        self.former[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if former.startswith(DELIVERING) and self.is_watched():
            self.left -= 1
            if self.left == 0:
                raise JobCancelled("Injected.")
        return self.on_byte_code

    def is_watched(self) -> bool:
        """Whether the watchdog could interrupt the job now."""
        if self.executor is None:
            return False
        watch = self.executor._watchdog._watches.get("first")
        return watch is not None and watch.active


def test_an_interruption_at_each_place(app: Millrace) -> None:
    for position in range(1, 1000):
        injection = Injection(position)
        threading.settrace(injection)
        try:
            with running(app) as (executor, outcomes):
                threading.settrace(None)  # type: ignore[arg-type]
                injection.executor = executor
                executor.submit(job("first"))
                outcome = outcomes.get(timeout=WAIT)
                assert outcome.job.id == "first", position
                assert not executor._watchdog._watches, position
                check_next_job(executor, outcomes)
        finally:
            threading.settrace(None)  # type: ignore[arg-type]
        if injection.left > 0:
            break
    assert position > 4
    assert injection.left > 0, "the byte codes did not end"
