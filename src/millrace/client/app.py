"""`Millrace`: a program's connection to the server and the registry of its tasks."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar, overload

from . import wire
from .address import parse_address
from .connection import ConnectionOptions, Identity
from .errors import MillraceError, NotSupported, RequestRefused
from .jobs import DEFAULT_RETRIES, Job, JsonSerializer, NewJob, Serializer, check_size, chunks
from .pool import AsyncConnectionPool, AsyncTransport, ConnectionPool, Transport, require_body
from .tasks import Task, TaskOptions, default_name
from .wire import Reply

if TYPE_CHECKING:
    from .testing import TestingServer

P = ParamSpec("P")
R = TypeVar("R")

#: Jobs per commit of `push_many`.
PUSH_BATCH_SIZE: Final = 1000
MAX_JOB_BYTES: Final = 4 << 20
#: How long a command is repeated while the server cannot be reached, in seconds.
RETRY_FOR: Final = 30.0

#: Wraps the execution of a job: `def middleware(job, call_next): return call_next()`.
Middleware = Callable[[Job, Callable[[], Any]], Any]


@dataclass(frozen=True, slots=True)
class JobHandle:
    """A job that was pushed."""

    id: str

    def __str__(self) -> str:
        return self.id


class PushFailed(MillraceError):
    """The server refused some jobs of a `push_many`; all others were pushed."""

    def __init__(self, errors: dict[str, str]) -> None:
        #: Job id -> reason.
        self.errors = errors
        first = next(iter(errors.items()))
        super().__init__(f"{len(errors)} jobs were refused; first: {first[0]}: {first[1]}")


class Millrace:
    """An application: it declares tasks, pushes jobs and is run by workers.

    `url` defaults to the environment variable MILLRACE_URL, then to this machine. Instances may be
    shared by threads and asyncio tasks.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        queue: str = "default",
        timeout: float = 30.0,
        retry_for: float = RETRY_FOR,
        tls: ssl.SSLContext | None = None,
        serializers: Sequence[Serializer] = (),
        max_job_bytes: int = MAX_JOB_BYTES,
    ) -> None:
        self._url = url
        self._queue = queue
        self._timeout = timeout
        self._retry_for = retry_for
        self._tls = tls
        self._max_job_bytes = max_job_bytes
        chosen: list[Serializer] = [*serializers, JsonSerializer()]
        #: By name; the first one is used for pushing.
        self.serializers = {each.name: each for each in reversed(chosen)}
        self._serializer = chosen[0]
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.middleware: list[Middleware] = []
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._async_transport: AsyncTransport | None = None
        self._is_millrace: bool | None = None
        #: The clock, in seconds since 1970; tests replace it.
        self.now: Callable[[], float] = time.time

    # Tasks

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str = "",
        queue: str | None = None,
        retries: int = DEFAULT_RETRIES,
        timeout: float | None = None,
        priority: int = 0,
        tags: Sequence[str] = (),
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str = "",
        queue: str | None = None,
        retries: int = DEFAULT_RETRIES,
        timeout: float | None = None,
        priority: int = 0,
        tags: Sequence[str] = (),
    ) -> Any:
        """Declare a function as a task: `@app.task` or `@app.task(queue="mail", retries=5)`."""
        options = TaskOptions(queue or self._queue, retries, timeout, priority, tuple(tags))

        def declare(declared: Callable[..., Any]) -> Task[..., Any]:
            task = Task(self, name or default_name(declared), declared, options)
            known = self.tasks.get(task.name)
            if known is not None and known.function.__code__ is not declared.__code__:
                raise ValueError(f"Two tasks have the name {task.name!r}. Pass name=...")
            self.tasks[task.name] = task
            return task

        return declare if function is None else declare(function)

    # Pushing

    def push(self, job: NewJob) -> JobHandle:
        """Push a job. Returns once the server has stored it."""
        self._check_extensions([job])
        _check_pushed(self.transport.request_many([self._push_command(job)])[0])
        return JobHandle(job.id)

    async def push_async(self, job: NewJob) -> JobHandle:
        """The same for asyncio."""
        await self._check_extensions_async([job])
        replies = await self.async_transport.request_many([self._push_command(job)])
        _check_pushed(replies[0])
        return JobHandle(job.id)

    def push_many(
        self, jobs: Iterable[NewJob], batch_size: int = PUSH_BATCH_SIZE
    ) -> list[JobHandle]:
        """Push many jobs, with one durable commit per batch."""
        handles: list[JobHandle] = []
        errors: dict[str, str] = {}
        for batch in chunks(jobs, batch_size):
            self._check_extensions(batch)
            (reply,) = self.transport.request_many([self._push_batch_command(batch)])
            errors |= _refused_jobs(reply)
            handles += [JobHandle(job.id) for job in batch if job.id not in errors]
        if errors:
            raise PushFailed(errors)
        return handles

    async def push_many_async(
        self, jobs: Iterable[NewJob], batch_size: int = PUSH_BATCH_SIZE
    ) -> list[JobHandle]:
        """The same for asyncio."""
        handles: list[JobHandle] = []
        errors: dict[str, str] = {}
        for batch in chunks(jobs, batch_size):
            await self._check_extensions_async(batch)
            (reply,) = await self.async_transport.request_many([self._push_batch_command(batch)])
            errors |= _refused_jobs(reply)
            handles += [JobHandle(job.id) for job in batch if job.id not in errors]
        if errors:
            raise PushFailed(errors)
        return handles

    def info(self) -> dict[str, Any]:
        """What the server reports of itself: queues, sets, counters, version."""
        (reply,) = self.transport.request_many([wire.command("INFO")])
        return _read_info(reply)

    # Connections

    @property
    def transport(self) -> Transport:
        with self._lock:
            if self._transport is None:
                self._transport = ConnectionPool(self.connection_options(), self._retry_for)
            return self._transport

    @property
    def async_transport(self) -> AsyncTransport:
        with self._lock:
            if self._async_transport is None:
                options = self.connection_options()
                self._async_transport = AsyncConnectionPool(options, self._retry_for)
            return self._async_transport

    def connection_options(self, identity: Identity | None = None) -> ConnectionOptions:
        return ConnectionOptions(parse_address(self._url), self._timeout, self._tls, identity)

    def close(self) -> None:
        """Close the idle connections. The next push opens new ones."""
        with self._lock:
            if self._transport is not None:
                self._transport.close()
            self._transport = None

    async def close_async(self) -> None:
        """Close the idle connections of asyncio."""
        with self._lock:
            transport, self._async_transport = self._async_transport, None
        if transport is not None:
            await transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Testing

    def testing(self, *, run_immediately: bool = False) -> "TestingServer":
        """A context in which pushes go to an engine in memory with a clock that tests move.

        With `run_immediately`, each job runs as soon as it is pushed and ready.
        """
        from .testing import TestingServer  # noqa: PLC0415 - it imports the engine

        return TestingServer(self, run_immediately=run_immediately)

    def use_transport(
        self, transport: Transport | None, async_transport: AsyncTransport | None
    ) -> tuple[Transport | None, AsyncTransport | None]:
        """Replace the transports and return the former ones."""
        with self._lock:
            former = self._transport, self._async_transport
            self._transport, self._async_transport = transport, async_transport
            self._is_millrace = None
            return former

    # Internal

    def _push_command(self, job: NewJob) -> bytes:
        return wire.command("PUSH", self._work_unit(job))

    def _push_batch_command(self, jobs: list[NewJob]) -> bytes:
        return wire.command("PUSHB", f"[{','.join(self._work_unit(job) for job in jobs)}]")

    def _work_unit(self, job: NewJob) -> str:
        return check_size(job.to_work_unit(self._serializer), self._max_job_bytes, job.name)

    def _check_extensions(self, jobs: Iterable[NewJob]) -> None:
        used = _used_extensions(jobs)
        if used and self._is_millrace is None:
            self._is_millrace = _is_millrace(self.info())
        self._require_millrace(used)

    async def _check_extensions_async(self, jobs: Iterable[NewJob]) -> None:
        used = _used_extensions(jobs)
        if used and self._is_millrace is None:
            (reply,) = await self.async_transport.request_many([wire.command("INFO")])
            self._is_millrace = _is_millrace(_read_info(reply))
        self._require_millrace(used)

    def _require_millrace(self, used: frozenset[str]) -> None:
        if used and not self._is_millrace:
            names = ", ".join(sorted(used))
            raise NotSupported(f"A plain Faktory server does not support: {names}.")


def _used_extensions(jobs: Iterable[NewJob]) -> frozenset[str]:
    return frozenset(name for job in jobs for name in job.extensions)


def _is_millrace(info: dict[str, Any]) -> bool:
    return "millrace_version" in info.get("server", {})


def _read_info(reply: Reply) -> dict[str, Any]:
    info: dict[str, Any] = json.loads(require_body(reply))
    return info


def _check_pushed(reply: Reply) -> None:
    if isinstance(reply, RequestRefused):
        raise reply


def _refused_jobs(reply: Reply) -> dict[str, str]:
    errors: dict[str, str] = json.loads(require_body(reply))
    return errors
