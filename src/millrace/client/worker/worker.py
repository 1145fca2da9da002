"""The worker: one thread fetches jobs, one reports outcomes, one sends heartbeats.

Results are reported together: the acknowledgements of all jobs that ended while the last report was
on its way share one round trip and one commit of the server.
"""

import logging
import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from millrace.client import wire
from millrace.client.backoff import Backoff
from millrace.client.connection import Connection, Identity
from millrace.client.errors import BadReply, MillraceError, RequestRefused
from millrace.client.jobs import read_job
from millrace.client.pool import RETRIED

from .execution import Outcome
from .executors import AsyncExecutor, Executor, ProcessExecutor, ThreadExecutor
from .options import WorkerOptions
from .reports import report_command

if TYPE_CHECKING:
    from types import FrameType

    from millrace.client.app import Millrace

log = logging.getLogger("millrace.worker")

#: FETCH commands that are sent together while the queues are full.
FETCH_BATCH_SIZE: Final = 4
REPORT_BATCH_SIZE: Final = 200
#: How long the server keeps a FETCH waiting, with some margin, in seconds.
FETCH_TIMEOUT: Final = 15.0
_WID_BYTES: Final = 6


class Worker:
    """Runs the tasks of an application until it is stopped.

    `run()` blocks. `stop()` may be called from any thread, from a signal handler, or by a job.
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
        while (free := self._wait_for_slot()) > 0:
            try:
                if not connection.is_open:
                    connection.open()
                    self.ready.set()
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
        """Receive the reply to one FETCH and submit its job. The number of jobs: 0 or 1."""
        reply = connection.receive(FETCH_TIMEOUT)
        if isinstance(reply, RequestRefused):
            raise reply
        if not isinstance(reply, bytes):
            return 0
        job = read_job(reply)
        with self._changed:
            self._in_flight += 1
        assert self._executor is not None
        self._executor.submit(job)
        return 1

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
        self._reports.put(outcome)
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
        """All outcomes that are waiting, at least one; None is the end."""
        outcomes: list[Outcome | None] = [self._reports.get()]
        while outcomes[-1] is not None and len(outcomes) < REPORT_BATCH_SIZE:
            try:
                outcomes.append(self._reports.get_nowait())
            except queue.Empty:
                break
        return outcomes

    def _report(self, connection: Connection, outcomes: list[Outcome]) -> None:
        """Send outcomes until the server has accepted them. Repeating one changes nothing."""
        commands = [report_command(outcome) for outcome in outcomes]
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
                        log.error("%d outcomes could not be reported: %s", len(commands), error)  # noqa: TRY400
                        return
                connection.close()
                time.sleep(backoff.next_delay())
        for outcome, reply in zip(outcomes, replies, strict=True):
            if isinstance(reply, RequestRefused):
                log.warning("The outcome of job %s was refused: %s", outcome.job.id, reply)
            if self._on_outcome is not None:
                self._on_outcome(outcome)

    # Heartbeats

    def _send_heartbeats(self) -> None:
        connection = self._connection()
        while not self._ended.wait(self.options.heartbeat_interval):
            beat: dict[str, Any] = {"wid": self.wid, "rss_kb": _resident_kb()}
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
            if isinstance(reply, bytes) and not self._quiet.is_set():
                log.info("The server asked this worker to stop: %s", reply.decode())
                self.stop()
        connection.close()

    # Stopping

    def _finish_jobs(self) -> None:
        """Wait for the running jobs, then stop the ones that take too long."""
        assert self._executor is not None
        if not self._wait_until_idle(self.options.shutdown_timeout):
            log.warning("Stopping %d jobs that did not finish in time.", self._in_flight)
            self._executor.interrupt()
            self._wait_until_idle(self.options.shutdown_timeout)

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


def _resident_kb() -> int:
    """The memory of this process, or 0 where it is unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * 4
    except (OSError, ValueError, IndexError):
        return 0
