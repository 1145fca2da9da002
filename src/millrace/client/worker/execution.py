"""Runs one job: finds its task, calls it through the middleware, describes the outcome."""

import asyncio
import inspect
import logging
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
from millrace.client.wire import to_json

from .context import reset_current, set_current

if TYPE_CHECKING:
    from millrace.client.app import Millrace

log = logging.getLogger("millrace.worker")

#: The server accepts no larger results.
MAX_RESULT_BYTES: Final = 1 << 20
#: Tracebacks omit the frames of files in this folder.
_SDK: Final = str(Path(__file__).parent.parent)
MAX_BACKTRACE_LINES: Final = 50
MAX_MESSAGE: Final = 1000
#: Characters of the message of a cause.
MAX_CAUSE: Final = 200
#: Interval at which a waiting asyncio job in a thread can be interrupted, in seconds.
WAKE_UP_INTERVAL: Final = 0.5


@dataclass(frozen=True, slots=True)
class FailureReport:
    """The reason why an attempt failed."""

    kind: str
    message: str
    backtrace: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt. `failure` is None for success."""

    job: Job
    seconds: float
    failure: FailureReport | None = None
    #: The value that the task returned, as JSON text; None without a value.
    result: str | None = None


def execute(app: "Millrace", job: Job) -> Outcome:
    """Run a job in this thread."""
    started = monotonic()
    token = set_current(job)
    try:
        value = prepare_call(app, job)()
        if inspect.isawaitable(value):
            value = asyncio.run(_await_in_thread(value, job.timeout))
    except BaseException as error:  # a task may raise anything, SystemExit included
        return Outcome(job, monotonic() - started, describe(error))
    finally:
        reset_current(token)
    return Outcome(job, monotonic() - started, result=_result_text(app, job, value))


async def execute_async(app: "Millrace", job: Job) -> Outcome:
    """Run a job in this event loop; a task that is a plain function runs in a thread."""
    started = monotonic()
    token = set_current(job)
    try:
        call = prepare_call(app, job)
        if _is_async(app, job):
            value = await _await(call(), job.timeout)
        else:
            value = await _await(asyncio.to_thread(call), job.timeout)
    except BaseException as error:
        return Outcome(job, monotonic() - started, describe(error))
    finally:
        reset_current(token)
    return Outcome(job, monotonic() - started, result=_result_text(app, job, value))


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


def _result_text(app: "Millrace", job: Job, value: Any) -> str | None:
    """The returned value as JSON. The job has done its work, so an unusable value is not an error
    of the job: the worker logs it and sends no result.
    """
    if value is None:
        return None
    try:
        text = to_json(app.serializers[job.serializer].dump(value))
    except Exception as error:  # a serializer may raise anything
        log.warning("The result of job %s (%s) is not kept: %s", job.id, job.name, error)
        return None
    if len(text.encode()) > MAX_RESULT_BYTES:
        log.warning(
            "The result of job %s (%s) is not kept: it is larger than %d bytes.",
            job.id,
            job.name,
            MAX_RESULT_BYTES,
        )
        return None
    return text


def describe(error: BaseException) -> FailureReport:
    """An exception as the server stores it. The traceback starts with the user's code; the causes
    of the exception follow.
    """
    kind = type(error).__name__
    message = str(error)[:MAX_MESSAGE] or kind
    lines = _traceback_lines(error)[-MAX_BACKTRACE_LINES:]
    cause = _cause(error)
    while cause is not None and len(lines) < MAX_BACKTRACE_LINES:
        lines.append(f"Caused by {type(cause).__name__}: {str(cause)[:MAX_CAUSE]}")
        lines += _traceback_lines(cause)
        cause = _cause(cause)
    return FailureReport(kind, message, tuple(lines[:MAX_BACKTRACE_LINES]))


def _cause(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _traceback_lines(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(_first_user_frame(error.__traceback__))
    return [line for entry in traceback.format_list(frames) for line in entry.splitlines()]


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
    """Await in an event loop that wakes up periodically. An exception that the watchdog raises in
    this thread arrives only while Python code runs.
    """
    waker = asyncio.ensure_future(_wake_up())
    try:
        return await _await(value, seconds)
    finally:
        waker.cancel()


async def _wake_up() -> None:
    while True:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(WAKE_UP_INTERVAL)
