"""Stops jobs that run in threads: raises an exception in the thread of a job.

Python delivers such an exception between two byte codes. A thread that is blocked in a C call, for
example in a socket read without a timeout, receives it when the call returns.
"""

import ctypes
import heapq
import threading
from dataclasses import dataclass
from time import monotonic
from typing import Final

_NO_EXCEPTION: Final = None


@dataclass(slots=True, eq=False)
class Watch:
    """One running job."""

    job_id: str
    thread_id: int
    active: bool = True


class Watchdog:
    """Raises `error` in the thread of every job that runs past its deadline."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error
        self._condition = threading.Condition()
        self._deadlines: list[tuple[float, int, Watch]] = []
        self._watches: dict[str, Watch] = {}
        self._count = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="millrace-watchdog", daemon=True)
        self._thread.start()

    def start(self, job_id: str, timeout: float | None) -> Watch:
        """Watch a job that runs in this thread."""
        watch = Watch(job_id, threading.get_ident())
        with self._condition:
            self._watches[job_id] = watch
            if timeout is not None:
                self._count += 1
                heapq.heappush(self._deadlines, (monotonic() + timeout, self._count, watch))
                self._condition.notify()
        return watch

    def finish(self, watch: Watch) -> None:
        """The job has ended. After this call no exception is raised for it."""
        with self._condition:
            watch.active = False
            self._watches.pop(watch.job_id, None)
            _raise_in_thread(watch.thread_id, _NO_EXCEPTION)

    def interrupt(self, job_id: str, error: type[BaseException]) -> bool:
        """Raise an exception in the thread of a job. False if the job does not run here."""
        with self._condition:
            watch = self._watches.get(job_id)
            if watch is None or not watch.active:
                return False
            _raise_in_thread(watch.thread_id, error)
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
                        _raise_in_thread(watch.thread_id, self._error)
                self._condition.wait(self._deadlines[0][0] - now if self._deadlines else None)


def _raise_in_thread(thread_id: int, error: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), None if error is None else ctypes.py_object(error)
    )
