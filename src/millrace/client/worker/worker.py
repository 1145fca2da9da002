"""The worker: one thread fetches jobs, one reports outcomes, one sends heartbeats.

The worker reports results in groups. The acknowledgements of all jobs that ended during the last
report share one round trip and one commit of the server.
"""

import json
import logging
import queue
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from millrace.client import wire
from millrace.client.backoff import Backoff
from millrace.client.connection import Connection, Identity
from millrace.client.errors import BadReply, MillraceError, RequestRefused
from millrace.client.jobs import Job, read_job, read_jobs
from millrace.client.pool import RETRIED, require_body

from .execution import FailureReport, Outcome
from .executors import AsyncExecutor, Executor, ProcessExecutor, ThreadExecutor
from .options import WorkerOptions
from .reports import report_groups

if TYPE_CHECKING:
    from types import FrameType

    from millrace.client.app import Millrace

log = logging.getLogger("millrace.worker")

#: Maximum number of jobs of one bulk fetch.
MAX_FETCHED: Final = 100
#: Number of FETCH commands that the worker sends together while the queues are full.
FETCH_BATCH_SIZE: Final = 4
REPORT_BATCH_SIZE: Final = 200
#: Maximum time until the server answers a FETCH, with some margin, in seconds.
FETCH_TIMEOUT: Final = 15.0
#: Time for interrupted jobs to end, in seconds. A thread in a C call ends only after the call.
INTERRUPT_WAIT: Final = 5.0
_WID_BYTES: Final = 6


class Worker:
    """Runs the tasks of an application until it is stopped.

    `run()` blocks. `stop()` may be called from any thread, from a signal handler, or by a job.
    `app_path` is the import path of the application, such as `shop.tasks:app`; the mode "processes"
    requires it. `on_outcome` is called after each attempt.
    """

    def __init__(
        self,
        app: "Millrace",
        options: WorkerOptions | None = None,
        *,
        app_path: str = "",
        on_outcome: Callable[[Outcome], None] | None = None,
    ) -> None:
        self.app = app
        self.options = options or WorkerOptions()
        if self.options.mode == "processes" and not app_path:
            raise ValueError(
                'Processes need app_path="module:attribute" to import the application.'
            )
        self.wid = secrets.token_hex(_WID_BYTES)
        self._app_path = app_path
        self._on_outcome = on_outcome
        self._identity = Identity(self.wid, self.options.labels)
        self._quiet = threading.Event()
        self._interrupt = threading.Event()
        self._ended = threading.Event()
        self._changed = threading.Condition()
        self._in_flight = 0
        #: Ids of fetched jobs that have not ended, each with the number of its jobs.
        self._running: Counter[str] = Counter()
        #: The same jobs.
        self._jobs: dict[str, Job] = {}
        #: The server supports bulk fetch and bulk acknowledge.
        self._bulk = False
        #: Jobs that the server has revoked; the worker does not report their outcomes.
        self._cancelled: set[str] = set()
        self._reports: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        self._executor: Executor | None = None
        #: Set once the first connection is open.
        self.ready = threading.Event()

    # Control

    def run(self, *, handle_signals: bool = True) -> None:
        """Work until `stop()`, SIGINT or SIGTERM."""
        if handle_signals and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._on_signal)
            signal.signal(signal.SIGTERM, self._on_signal)
        self._executor = self._make_executor()
        fetcher = self._start_thread(self._fetch_jobs, "fetch")
        reporter = self._start_thread(self._report_outcomes, "report")
        heart = self._start_thread(self._send_heartbeats, "heartbeat")
        try:
            while not self._quiet.wait(1.0):  # a wait without a timeout would block signals
                pass
            fetcher.join()
            self._finish_jobs()
        finally:
            self._reports.put(None)
            reporter.join(self.options.shutdown_timeout)
            self._ended.set()
            heart.join()
            self._executor.close()

    def stop(self) -> None:
        """Fetch no more jobs, wait for the running ones, then end."""
        self._quiet.set()
        with self._changed:
            self._changed.notify_all()

    def _on_signal(self, number: int, _: "FrameType | None") -> None:
        if self._quiet.is_set():
            log.warning("Second signal: stopping the running jobs now.")
            self._interrupt.set()
        else:
            log.info("Received %s: finishing the running jobs.", signal.Signals(number).name)
        self.stop()

    def _make_executor(self) -> Executor:
        options = self.options
        if options.mode == "processes":
            return ProcessExecutor(self._app_path, options.concurrency, self._job_ended)
        if options.mode == "asyncio":
            return AsyncExecutor(self.app, self._job_ended)
        return ThreadExecutor(self.app, options.concurrency, self._job_ended)

    def _start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"millrace-{name}", daemon=True)
        thread.start()
        return thread

    def _connection(self) -> Connection:
        return Connection(self.app.connection_options(self._identity))

    # Fetching

    def _fetch_jobs(self) -> None:
        connection = self._connection()
        backoff = Backoff()
        fetch = wire.command("FETCH", " ".join(self.options.queues))
        batch = 1
        bulk: bool | None = None
        while (free := self._wait_for_slot()) > 0:
            try:
                if not connection.is_open:
                    connection.open()
                    self.ready.set()
                if bulk is None:
                    bulk = self._bulk = _supports_bulk(connection)
                if bulk:
                    self._fetch_bulk(connection, min(free, MAX_FETCHED))
                    backoff.reset()
                    continue
                count = min(free, batch)
                connection.send(fetch * count)
                fetched = sum(self._receive_job(connection) for _ in range(count))
                batch = min(FETCH_BATCH_SIZE, 2 * batch) if fetched == count else 1
                backoff.reset()
            except (*RETRIED, RequestRefused, BadReply) as error:
                connection.close()  # replies of the other FETCH commands may be on their way
                delay = backoff.next_delay()
                log.warning("%s Retrying in %.1f s.", error, delay)
                self._quiet.wait(delay)
        connection.close()

    def _receive_job(self, connection: Connection) -> int:
        """Receive the reply to one FETCH and submit its job. Return the number of jobs, 0 or 1."""
        reply = connection.receive(FETCH_TIMEOUT)
        if isinstance(reply, RequestRefused):
            raise reply
        if not isinstance(reply, bytes):
            return 0
        self._submit(read_job(reply))
        return 1

    def _fetch_bulk(self, connection: Connection, count: int) -> None:
        """Fetch several jobs with one command. The command is an extension of Millrace servers."""
        request = {"fetch": {"queues": list(self.options.queues), "count": count}}
        reply = connection.request(wire.command("MILLRACE", request), FETCH_TIMEOUT)
        for job in read_jobs(require_body(reply)):
            self._submit(job)

    def _submit(self, job: Job) -> None:
        task = self.app.tasks.get(job.name)
        if job.timeout is None and task is not None:  # a recurring job, or a push without the SDK
            job = replace(job, timeout=task.defaults.timeout)
        with self._changed:
            self._in_flight += 1
            self._running[job.id] += 1
            self._jobs[job.id] = job
        assert self._executor is not None
        self._executor.submit(job)

    def _wait_for_slot(self) -> int:
        """The number of free slots, at least one; 0 when the worker stops."""
        limit = self.options.concurrency + self.options.prefetch
        with self._changed:
            while not self._quiet.is_set():
                free = limit - self._in_flight
                if free > 0:
                    return free
                self._changed.wait()
        return 0

    # Outcomes

    def _job_ended(self, outcome: Outcome) -> None:
        job_id = outcome.job.id
        with self._changed:
            cancelled = job_id in self._cancelled
            self._running[job_id] -= 1
            if not self._running[job_id]:
                del self._running[job_id]
                del self._jobs[job_id]
                self._cancelled.discard(job_id)
        if not cancelled:
            self._reports.put(outcome)
        elif self._on_outcome is not None:
            failure = FailureReport("JobCancelled", "The job was cancelled.")
            self._on_outcome(Outcome(outcome.job, outcome.seconds, failure))
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()

    def _report_outcomes(self) -> None:
        connection = self._connection()
        while True:
            outcomes = self._next_outcomes()
            ended = outcomes[-1] is None
            found = [outcome for outcome in outcomes if outcome is not None]
            if found:
                self._report(connection, found)
            if ended:
                break
        connection.close()

    def _next_outcomes(self) -> list[Outcome | None]:
        """Wait for at least one outcome, and return the available ones, up to REPORT_BATCH_SIZE.
        None marks the end.
        """
        outcomes: list[Outcome | None] = [self._reports.get()]
        while outcomes[-1] is not None and len(outcomes) < REPORT_BATCH_SIZE:
            try:
                outcomes.append(self._reports.get_nowait())
            except queue.Empty:
                break
        return outcomes

    def _report(self, connection: Connection, outcomes: list[Outcome]) -> None:
        """Send outcomes until the server has accepted them. A repeated report has no effect."""
        groups = report_groups(outcomes, bulk=self._bulk)
        commands = [command for command, _ in groups]
        backoff = Backoff()
        give_up_at: float | None = None
        while True:
            try:
                if not connection.is_open:
                    connection.open()
                replies = connection.request_many(commands)
                break
            except MillraceError as error:
                if self._quiet.is_set():
                    now = time.monotonic()
                    give_up_at = give_up_at or now + self.options.shutdown_timeout
                    if now > give_up_at:
                        log.error("%d outcomes could not be reported: %s", len(outcomes), error)  # noqa: TRY400
                        return
                connection.close()
                time.sleep(backoff.next_delay())
        for (_, reported), reply in zip(groups, replies, strict=True):
            for outcome in reported:
                if isinstance(reply, RequestRefused):
                    log.warning("The outcome of job %s was refused: %s", outcome.job.id, reply)
                if self._on_outcome is not None:
                    self._on_outcome(outcome)

    # Heartbeats

    def _send_heartbeats(self) -> None:
        connection = self._connection()
        while not self._ended.wait(self.options.heartbeat_interval):
            with self._changed:
                running = list(self._running)
            beat: dict[str, Any] = {"wid": self.wid, "rss_kb": _resident_kb()}
            if running:
                beat["running"] = running  # an extension; a plain Faktory server ignores it
            if self._quiet.is_set():
                beat["current_state"] = "quiet"
            try:
                if not connection.is_open:
                    connection.open()
                reply = connection.request(wire.command("BEAT", beat))
            except MillraceError as error:
                log.warning("Heartbeat failed: %s", error)
                connection.close()
                continue
            if isinstance(reply, bytes):
                self._obey(reply)
        connection.close()

    def _obey(self, reply: bytes) -> None:
        """Act on the reply to a heartbeat: stop, or cancel jobs that the server has revoked."""
        orders = json.loads(reply)
        if orders.get("state") and not self._quiet.is_set():
            log.info("The server asked this worker to stop: %s", orders["state"])
            self.stop()
        assert self._executor is not None
        for job_id in orders.get("cancelled", ()):
            with self._changed:
                if job_id not in self._running or job_id in self._cancelled:
                    continue
                self._cancelled.add(job_id)
            log.info("Job %s was cancelled.", job_id)
            self._executor.cancel(job_id)

    # Stopping

    def _finish_jobs(self) -> None:
        """Wait for the running jobs, then stop the jobs that exceed the shutdown timeout."""
        assert self._executor is not None
        if self._wait_until_idle(self.options.shutdown_timeout):
            return
        log.warning("Stopping the running jobs: %d.", self._in_flight)
        self._executor.interrupt()
        if not self._wait_until_idle(min(INTERRUPT_WAIT, self.options.shutdown_timeout)):
            self._return_jobs()

    def _return_jobs(self) -> None:
        """Report the jobs that cannot be stopped, so that they do not wait for their leases."""
        with self._changed:
            jobs = [job for jid, job in self._jobs.items() if jid not in self._cancelled]
            self._cancelled.update(job.id for job in jobs)  # a late outcome is not reported
        for job in jobs:
            log.warning("%s %s does not stop. It will be retried.", job.name, job.id)
            failure = FailureReport("WorkerStopped", "The worker stopped before the job finished.")
            self._reports.put(Outcome(job, 0.0, failure))

    def _wait_until_idle(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._in_flight and not self._interrupt.is_set():
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, 0.5))
            self._interrupt.clear()
            return self._in_flight == 0


def _supports_bulk(connection: Connection) -> bool:
    """Whether the server is Millrace with the commands for several jobs."""
    try:
        connection.request(wire.command("MILLRACE", {"ack": []}))
    except RequestRefused:
        return False
    return True


def _resident_kb() -> int:
    """The memory of this process, or 0 where it is unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * 4
    except (OSError, ValueError, IndexError):
        return 0
