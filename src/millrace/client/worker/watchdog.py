"""Stops jobs that run in threads: raises an exception in the thread of a job.

Python delivers such an exception between two byte codes. A thread that is blocked in a C call, for
example in a socket read without a timeout, receives it when the call returns.
"""

import ctypes
import heapq
import threading
from dataclasses import dataclass, field
from time import monotonic


class _Received(BaseException):
    """Takes the place of an exception that is still pending at the end of a job."""


@dataclass(slots=True, eq=False)
class Watch:
    """A job that runs in the thread that creates this object."""

    job_id: str
    thread_id: int = field(default_factory=threading.get_ident)
    #: Exceptions may be raised in the thread.
    active: bool = True
    #: An exception was raised in the thread. It is pending until the thread executes Python code.
    interrupted: bool = False


class Watchdog:
    """Raises `error` in the thread of every job that runs past its deadline."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error
        # Job threads acquire the lock itself. The methods of Condition are Python code; an
        # exception that arrives in them would leave it locked.
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._deadlines: list[tuple[float, int, Watch]] = []
        self._watches: dict[str, Watch] = {}
        self._count = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="millrace-watchdog", daemon=True)
        self._thread.start()

    def start(self, watch: Watch, timeout: float | None) -> None:
        """Watch a job that runs in this thread. From here on, an exception may arrive."""
        with self._lock:
            self._watches[watch.job_id] = watch
            if timeout is not None:
                self._count += 1
                heapq.heappush(self._deadlines, (monotonic() + timeout, self._count, watch))
                self._condition.notify()

    def finish(self, watch: Watch) -> None:
        """The job of this thread has ended. After this call no exception is raised for it. If one
        arrives during the call, the call must be repeated.
        """
        with self._lock:
            watch.active = False
            self._watches.pop(watch.job_id, None)
            if watch.interrupted:
                _receive_pending()

    def interrupt(self, job_id: str, error: type[BaseException]) -> bool:
        """Raise an exception in the thread of a job. False if the job does not run here."""
        with self._lock:
            watch = self._watches.get(job_id)
            if watch is None or not watch.active:
                return False
            _interrupt(watch, error)
            return True

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._condition:
            while not self._closed:
                now = monotonic()
                while self._deadlines and self._deadlines[0][0] <= now:
                    watch = heapq.heappop(self._deadlines)[2]
                    if watch.active:
                        _interrupt(watch, self._error)
                self._condition.wait(self._deadlines[0][0] - now if self._deadlines else None)


def _interrupt(watch: Watch, error: type[BaseException]) -> None:
    watch.interrupted = True
    _raise_in_thread(watch.thread_id, error)


def _receive_pending() -> None:
    """Replace an exception that may be pending in this thread, and receive the replacement.

    To clear it with NULL would leave a flag of the interpreter set, which only a received exception
    resets: all threads would run slower, and a profiler could hang.
    """
    try:
        _raise_in_thread(threading.get_ident(), _Received)
        while True:  # until Python delivers it
            pass
    except _Received:
        pass


def _raise_in_thread(thread_id: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(error))
