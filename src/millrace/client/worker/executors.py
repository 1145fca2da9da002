"""Where jobs run: threads, child processes, or one event loop.

Each executor takes jobs with `submit` and reports each outcome once, from any thread. An executor
has no limit on the number of jobs; the worker limits it.
"""

import asyncio
import contextlib
import importlib
import multiprocessing
import queue
import select
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from millrace.client.errors import JobCancelled, JobTimedOut, WorkerCrashed, WorkerStopped
from millrace.client.jobs import Job

from .execution import Outcome, describe, execute, execute_async
from .watchdog import Watch, Watchdog

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from millrace.client.app import Millrace

Report = Callable[[Outcome], None]
#: Time for a child process to end after SIGTERM, in seconds.
KILL_AFTER: Final = 5.0
#: Interval at which a waiting thread checks timeouts and cancellations, in milliseconds.
CHECK_INTERVAL_MS: Final = 200
#: Exceptions that stop a running job.
STOPPED: Final = (JobTimedOut, JobCancelled, WorkerStopped)


class Executor(ABC):
    """Runs jobs and reports their outcomes."""

    def __init__(self, report: Report) -> None:
        self.report = report

    @abstractmethod
    def submit(self, job: Job) -> None: ...

    @abstractmethod
    def interrupt(self) -> None:
        """Stop all running jobs, and report each as failed."""

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """Stop one job if it runs or waits here, and report it as failed."""

    @abstractmethod
    def close(self) -> None:
        """Release the threads or processes. The caller ensures that no job is running."""


class ThreadExecutor(Executor):
    def __init__(self, app: "Millrace", count: int, report: Report) -> None:
        super().__init__(report)
        self._app = app
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._running: set[str] = set()
        self._cancelled: set[str] = set()
        self._watchdog = Watchdog(JobTimedOut)
        self._threads = [
            threading.Thread(target=self._run, name=f"millrace-job-{n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def interrupt(self) -> None:
        for job_id in list(self._running):
            self._watchdog.interrupt(job_id, WorkerStopped)

    def cancel(self, job_id: str) -> None:
        self._cancelled.add(job_id)
        self._watchdog.interrupt(job_id, JobCancelled)

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(KILL_AFTER)
        self._watchdog.close()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._running.add(job.id)
            outcome = self._execute(job)
            self._running.discard(job.id)
            self._cancelled.discard(job.id)
            self.report(outcome)

    def _execute(self, job: Job) -> Outcome:
        started = monotonic()
        watch = Watch(job.id)
        outcome: Outcome | None = None
        try:
            try:
                self._watchdog.start(watch, job.timeout)
                if job.id in self._cancelled:
                    raise JobCancelled("The job was cancelled.")
                outcome = execute(self._app, job)
            finally:
                self._watchdog.finish(watch)
        except STOPPED as error:  # it arrived before or after the task, or during `finish`
            watch.active = False  # first of all, so that no other one arrives here
            self._watchdog.finish(watch)
            if outcome is None:
                outcome = Outcome(job, monotonic() - started, describe(error))
        return outcome


class ProcessExecutor(Executor):
    """One thread per child process. A child that crashes or exceeds a timeout is replaced."""

    def __init__(self, app_path: str, count: int, report: Report) -> None:
        super().__init__(report)
        self._app_path = app_path
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._cancelled: set[str] = set()
        self._threads = [
            threading.Thread(target=self._run, name=f"millrace-process-{n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def interrupt(self) -> None:
        self._stopping.set()

    def cancel(self, job_id: str) -> None:
        self._cancelled.add(job_id)

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(2 * KILL_AFTER)

    def _run(self) -> None:
        child: _Child | None = None
        try:
            while (job := self._jobs.get()) is not None:
                started = monotonic()
                if child is None:
                    child = _Child(self._app_path)
                try:
                    outcome = child.run(job, self._stopping, self._cancelled)
                except (*STOPPED, WorkerCrashed) as error:
                    child.kill()
                    child = None
                    outcome = Outcome(job, monotonic() - started, describe(error))
                self._cancelled.discard(job.id)
                self.report(outcome)
        finally:
            if child is not None:
                child.close()


class _Child:
    """A child process that runs one job at a time."""

    def __init__(self, app_path: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_child_main, args=(app_path, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        # Registered once: Connection.poll would create a selector for each job.
        self._incoming = select.poll()
        self._incoming.register(self._pipe.fileno(), select.POLLIN)

    def run(self, job: Job, stopping: threading.Event, cancelled: set[str]) -> Outcome:
        deadline = None if job.timeout is None else monotonic() + job.timeout
        try:
            self._pipe.send(job)
            while not self._incoming.poll(CHECK_INTERVAL_MS):
                if deadline is not None and monotonic() > deadline:
                    raise JobTimedOut(f"The job ran longer than {job.timeout:g} s.")
                if job.id in cancelled:
                    raise JobCancelled("The job was cancelled.")
                if stopping.is_set():
                    raise WorkerStopped("The worker stopped before the job finished.")
            seconds, failure, result = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(KILL_AFTER)
            code = self._process.exitcode
            raise WorkerCrashed(f"The job's process ended with status {code}.") from None
        return Outcome(job, seconds, failure, result)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(KILL_AFTER)
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.join(KILL_AFTER)
        self._pipe.close()


def _child_main(app_path: str, pipe: Pipe) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    app = load_app(app_path)
    while (job := pipe.recv()) is not None:
        outcome = execute(app, job)
        pipe.send((outcome.seconds, outcome.failure, outcome.result))  # the parent has the job


class AsyncExecutor(Executor):
    """One event loop in its own thread."""

    def __init__(self, app: "Millrace", report: Report) -> None:
        super().__init__(report)
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="millrace-asyncio")
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._loop.call_soon_threadsafe(self._start, job)

    def interrupt(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel_all)

    def cancel(self, job_id: str) -> None:
        self._loop.call_soon_threadsafe(self._cancel, job_id)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _start(self, job: Job) -> None:
        task = self._loop.create_task(self._run(job))
        self._tasks[task] = job.id
        task.add_done_callback(self._tasks.pop)

    async def _run(self, job: Job) -> None:
        self.report(await execute_async(self._app, job))

    def _cancel(self, job_id: str) -> None:
        for task, running in self._tasks.items():
            if running == job_id:
                task.cancel()

    def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()


def load_app(path: str) -> "Millrace":
    """The application at `package.module:attribute`."""
    from millrace.client.app import Millrace  # noqa: PLC0415 - it imports this package

    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        raise ValueError(
            f"Invalid application {path!r}. Use module:attribute, as in shop.tasks:app."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part)
    if not isinstance(found, Millrace):
        raise TypeError(f"{path} is no Millrace application.")
    return found
