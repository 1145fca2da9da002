"""Runs one job: finds its task, calls it through the middleware, describes the outcome."""

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from millrace.client.errors import JobTimedOut, UnknownTask
from millrace.client.jobs import Job

from .context import reset_current, set_current

if TYPE_CHECKING:
    from millrace.client.app import Millrace

#: The frames of these files are left out of tracebacks.
_SDK: Final = str(Path(__file__).parent.parent)
MAX_BACKTRACE_LINES: Final = 50
MAX_MESSAGE: Final = 1000
#: Seconds between two moments at which a waiting asyncio job in a thread can be interrupted.
WAKE_UP_INTERVAL: Final = 0.5


@dataclass(frozen=True, slots=True)
class FailureReport:
    """Why an attempt failed."""

    kind: str
    message: str
    backtrace: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended. `failure` is None for success."""

    job: Job
    seconds: float
    failure: FailureReport | None = None


def execute(app: "Millrace", job: Job) -> Outcome:
    """Run a job in this thread."""
    started = monotonic()
    token = set_current(job)
    try:
        value = prepare_call(app, job)()
        if inspect.isawaitable(value):
            asyncio.run(_await_in_thread(value, job.timeout))
    except BaseException as error:  # a task may raise anything, SystemExit included
        return Outcome(job, monotonic() - started, describe(error))
    finally:
        reset_current(token)
    return Outcome(job, monotonic() - started)


async def execute_async(app: "Millrace", job: Job) -> Outcome:
    """Run a job in this event loop; a task that is a plain function runs in a thread."""
    started = monotonic()
    token = set_current(job)
    try:
        call = prepare_call(app, job)
        if _is_async(app, job):
            await _await(call(), job.timeout)
        else:
            await _await(asyncio.to_thread(call), job.timeout)
    except BaseException as error:
        return Outcome(job, monotonic() - started, describe(error))
    finally:
        reset_current(token)
    return Outcome(job, monotonic() - started)


def prepare_call(app: "Millrace", job: Job) -> Callable[[], Any]:
    """A function without arguments that runs the job's task inside the middleware."""
    task = app.tasks.get(job.name)
    if task is None:
        known = ", ".join(sorted(app.tasks)) or "none"
        raise UnknownTask(f"No task is named {job.name!r}. Registered tasks: {known}.")
    serializer = app.serializers.get(job.serializer)
    if serializer is None:
        raise UnknownTask(f"The serializer {job.serializer!r} is not configured in this worker.")
    args = [serializer.load(value) for value in job.args]
    kwargs = {key: serializer.load(value) for key, value in job.kwargs.items()}
    call: Callable[[], Any] = partial(task.function, *args, **kwargs)
    for middleware in reversed(app.middleware):
        call = partial(middleware, job, call)
    return call


def describe(error: BaseException) -> FailureReport:
    """An exception as the server stores it. The traceback starts with the user's code."""
    kind = type(error).__name__
    message = str(error)[:MAX_MESSAGE] or kind
    frames = traceback.extract_tb(_first_user_frame(error.__traceback__))
    lines = [line for entry in traceback.format_list(frames) for line in entry.splitlines()]
    return FailureReport(kind, message, tuple(lines[-MAX_BACKTRACE_LINES:]))


def _first_user_frame(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_SDK):
        trace = trace.tb_next
    return trace


def _is_async(app: "Millrace", job: Job) -> bool:
    task = app.tasks.get(job.name)
    return task is not None and inspect.iscoroutinefunction(task.function)


async def _await(value: Awaitable[Any], seconds: float | None) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await value
    except TimeoutError:
        if limit.expired():
            raise JobTimedOut(f"The job ran longer than {seconds:g} s.") from None
        raise


async def _await_in_thread(value: Awaitable[Any], seconds: float | None) -> Any:
    """Await in an event loop that wakes up now and then, because an exception that the watchdog
    raises in this thread arrives only while Python code runs.
    """
    waker = asyncio.ensure_future(_wake_up())
    try:
        return await _await(value, seconds)
    finally:
        waker.cancel()


async def _wake_up() -> None:
    while True:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(WAKE_UP_INTERVAL)
