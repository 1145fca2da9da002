"""`Millrace`: a program's connection to the server and the registry of its tasks."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar, overload

from . import features, wire
from .address import parse_address
from .connection import ConnectionOptions, Identity
from .errors import MillraceError, NotSupported, RequestRefused
from .exchange import AsyncTransport, Exchange, Transport, exchange_over, run, run_async
from .handles import JobHandle
from .jobs import (
    DEFAULT_RETRIES,
    Delay,
    Job,
    JsonSerializer,
    NewJob,
    Serializer,
    check_size,
    chunks,
)
from .pool import AsyncConnectionPool, ConnectionPool, require_body
from .tasks import Task, TaskOptions, default_name

if TYPE_CHECKING:
    from .testing import TestingServer

P = ParamSpec("P")
R = TypeVar("R")

#: Jobs per commit of `push_many`.
PUSH_BATCH_SIZE: Final = 1000
MAX_JOB_BYTES: Final = 4 << 20
#: Time during which a client repeats a command while the server is unreachable, in seconds.
RETRY_FOR: Final = 30.0

#: Wraps the execution of a job: `def middleware(job, call_next): return call_next()`.
Middleware = Callable[[Job, Callable[[], Any]], Any]


class PushFailed(MillraceError):
    """The server refused some jobs of a `push_many` and accepted all others.

    `errors` maps the IDs of the refused jobs to the reasons.
    """

    def __init__(self, errors: dict[str, str]) -> None:
        #: Job id -> reason.
        self.errors = errors
        first = next(iter(errors.items()))
        super().__init__(f"{len(errors)} jobs were refused; first: {first[0]}: {first[1]}")


class Millrace:
    """An application: it declares tasks, pushes jobs and is run by workers.

    `url` is `tcp://[:PASSWORD@]HOST[:PORT]`, or `tcp+tls://...` for TLS. The default is the
    variable `MILLRACE_URL`, then `FAKTORY_URL`, then `tcp://127.0.0.1:7419`. `queue` is the queue
    of tasks that name none. `timeout` limits each request, and `retry_for` the time during which a
    failed request is repeated, both in seconds. `tls` replaces the default TLS context. A job of
    more than `max_job_bytes` raises `InvalidArguments`. Threads and asyncio tasks may share an
    instance.
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
        #: By name. Pushes use the first serializer of the constructor's list.
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
        keep_result: float | None = None,
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
        keep_result: float | None = None,
    ) -> Any:
        """Declare a function as a task: `@app.task` or `@app.task(queue="mail", retries=5)`.

        `name` defaults to `module.function`. The other options are those of `task.options`.
        """
        options = TaskOptions(
            queue or self._queue,
            retries,
            timeout,
            priority,
            tuple(tags),
            keep_result=keep_result,
        )

        def declare(declared: Callable[..., Any]) -> Task[..., Any]:
            task = Task(self, name or default_name(declared), declared, options)
            known = self.tasks.get(task.name)
            if known is not None and known.function.__code__ is not declared.__code__:
                raise ValueError(f"Two tasks have the name {task.name!r}. Pass name=...")
            self.tasks[task.name] = task
            return task

        return declare if function is None else declare(function)

    # Pushing

    def push(self, job: NewJob) -> JobHandle[Any]:
        """Push a job. Returns once the server has stored it."""
        return self.run_exchange(self._push(job))

    async def push_async(self, job: NewJob) -> JobHandle[Any]:
        """The same for asyncio."""
        return await self.run_exchange_async(self._push(job))

    def push_many(
        self, jobs: Iterable[NewJob], batch_size: int = PUSH_BATCH_SIZE
    ) -> list[JobHandle[Any]]:
        """Push several jobs, with one durable commit per batch.

        Raises `PushFailed` if the server refuses some of them. It has then stored all others.
        """
        return self.run_exchange(self._push_many(jobs, batch_size))

    async def push_many_async(
        self, jobs: Iterable[NewJob], batch_size: int = PUSH_BATCH_SIZE
    ) -> list[JobHandle[Any]]:
        """The same for asyncio."""
        return await self.run_exchange_async(self._push_many(jobs, batch_size))

    # Limits and recurring jobs

    def limit(self, queue: str, maximum: int | None) -> None:
        """Let at most `maximum` jobs of a queue run at once, over all workers and protocols.

        None removes the limit.
        """
        self.run_exchange(features.set_limit(self, queue, maximum))

    async def limit_async(self, queue: str, maximum: int | None) -> None:
        """The same for asyncio."""
        await self.run_exchange_async(features.set_limit(self, queue, maximum))

    def recur(self, name: str, job: NewJob, *, every: Delay, delay: Delay = 0) -> None:
        """Let the server push a job like this one at every interval, the first one after `delay`.

        `name` identifies the recurring job: a repeated call replaces it. The job must not have
        keyword arguments, `depends_on`, `delay` or `at`. `keep_result` of the task is not used.
        """
        self.run_exchange(features.recur(self, name, job, every, delay))

    async def recur_async(self, name: str, job: NewJob, *, every: Delay, delay: Delay = 0) -> None:
        """The same for asyncio."""
        await self.run_exchange_async(features.recur(self, name, job, every, delay))

    def unrecur(self, name: str) -> bool:
        """End a recurring job. Return False if it does not exist."""
        return self.run_exchange(features.unrecur(self, name))

    async def unrecur_async(self, name: str) -> bool:
        """The same for asyncio."""
        return await self.run_exchange_async(features.unrecur(self, name))

    def handle(self, job_id: str) -> JobHandle[Any]:
        """The handle of a job that was pushed elsewhere."""
        return JobHandle(job_id, self)

    def info(self) -> dict[str, Any]:
        """The status of the server as in Faktory's INFO: queues, counters, version."""
        return self.run_exchange(_info())

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
        """Close the idle connections. The next push opens new ones.

        `with Millrace() as app:` closes them at its end.
        """
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

    def _push(self, job: NewJob) -> Exchange[JobHandle[Any]]:
        yield from self.require_millrace(*job.extensions)
        (reply,) = yield [self._push_command(job)]
        if isinstance(reply, RequestRefused):
            raise reply
        return JobHandle(job.id, self)

    def _push_many(self, jobs: Iterable[NewJob], size: int) -> Exchange[list[JobHandle[Any]]]:
        handles: list[JobHandle[Any]] = []
        errors: dict[str, str] = {}
        for batch in chunks(jobs, size):
            yield from self.require_millrace(*{name for job in batch for name in job.extensions})
            (reply,) = yield [self._push_batch_command(batch)]
            errors |= json.loads(require_body(reply))
            handles += [JobHandle(job.id, self) for job in batch if job.id not in errors]
        if errors:
            raise PushFailed(errors)
        return handles

    # For handles and workers

    @property
    def timeout(self) -> float:
        """Seconds that a request may take."""
        return self._timeout

    def run_exchange(self, exchange: Exchange[R]) -> R:
        return run(exchange_over(exchange, self.transport.request_many))

    async def run_exchange_async(self, exchange: Exchange[R]) -> R:
        return await run_async(exchange_over(exchange, self.async_transport.request_many))

    def require_millrace(self, *features: str) -> Exchange[None]:
        """Raise NotSupported for these features if the server is a plain Faktory server."""
        if not features:
            return
        if self._is_millrace is None:
            info = yield from _info()
            self._is_millrace = "millrace_version" in info.get("server", {})
        if not self._is_millrace:
            names = ", ".join(sorted(features))
            raise NotSupported(f"A plain Faktory server does not support: {names}.")

    @property
    def serializer_name(self) -> str:
        """The name of the serializer of pushes."""
        return self._serializer.name

    def dump_arguments(self, job: NewJob) -> list[Any]:
        return [self._serializer.dump(value) for value in job.args]

    def load_result(self, value: Any) -> Any:
        return self._serializer.load(value)


def _info() -> Exchange[dict[str, Any]]:
    (reply,) = yield [wire.command("INFO")]
    info: dict[str, Any] = json.loads(require_body(reply))
    return info
