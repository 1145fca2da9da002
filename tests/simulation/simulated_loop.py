"""An event loop on simulated time: it never waits, and the clock jumps to the next callback.

One `Schedule` holds all callbacks, and each party has a `SimulatedLoop` on it: one for the clients,
one for each life of the server. Killing a server kills its loop, and its pending callbacks never
run.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

#: More callbacks than this within a simulated second indicate an endless loop.
MAX_STEPS_PER_SECOND = 400_000


class BusyLoopError(Exception):
    """Callbacks follow each other without end while no time passes."""


class ProcessEnded(BaseException):
    """The server's process has ended. The server's own handlers cannot catch it."""


class Schedule:
    def __init__(self, random: Random) -> None:
        self.random = random
        #: Seconds since the start; they only increase.
        self.now = 0.0
        self.steps = 0
        self._order = 0
        self._heap: list[tuple[float, int, asyncio.Handle, SimulatedLoop]] = []
        self._second = 0
        self._steps_before = 0

    def add(self, when: float, handle: asyncio.Handle, loop: "SimulatedLoop") -> None:
        self._order += 1
        heappush(self._heap, (max(when, self.now), self._order, handle, loop))

    def step(self) -> bool:
        """Run the next callback. Returns False if none is left."""
        while self._heap:
            when, _, handle, loop = heappop(self._heap)
            if loop.killed or handle.cancelled():
                continue
            # Each callback takes time, so that successive callbacks have different times.
            self.now = max(self.now, when) + self.random.randrange(1, 8) * 1e-6
            self._watch()
            loop.run_handle(handle)
            return True
        return False

    def run_until(self, done: Callable[[], bool]) -> None:
        while not done() and self.step():
            pass

    def _watch(self) -> None:
        self.steps += 1
        if int(self.now) != self._second:
            self._second, self._steps_before = int(self.now), self.steps
        elif self.steps - self._steps_before > MAX_STEPS_PER_SECOND:
            raise BusyLoopError(f"{MAX_STEPS_PER_SECOND} callbacks within one simulated second")


class SimulatedLoop(asyncio.AbstractEventLoop):
    """One party's view of the schedule: the part of a loop that the server and asyncio use."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.killed = False
        #: Called when a task of this loop ends with an exception.
        self.on_error: Callable[[BaseException], None] = _raise
        #: Called after each step.
        self.after_each: Callable[[], None] = _nothing
        #: Ports opened by create_server: port -> factory.
        self.ports: dict[int, Callable[[], asyncio.Protocol]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._next_port = 1000

    def kill(self) -> None:
        self.killed = True
        self.ports.clear()
        for task in self._tasks:
            task._log_destroy_pending = False
            task.get_coro().close()
        self._tasks.clear()

    def run_handle(self, handle: asyncio.Handle) -> None:
        with self:
            handle._context.run(handle._callback, *handle._args)
            self.after_each()

    def __enter__(self) -> None:
        asyncio._set_running_loop(self)

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(None)

    # The interface for asyncio and the server

    def time(self) -> float:
        return self.schedule.now

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return self.killed

    def is_running(self) -> bool:
        return True

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.schedule.add(self.schedule.now, handle, self)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.schedule.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.schedule.add(when, handle, self)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_error(error)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.killed:
            self.on_error(context.get("exception") or AssertionError(context["message"]))

    async def create_server(
        self, protocol_factory: Callable[[], asyncio.Protocol], *_: Any, **__: Any
    ) -> "SimulatedListener":
        self._next_port += 1
        self.ports[self._next_port] = protocol_factory
        return SimulatedListener(self, self._next_port)


class SimulatedListener:
    """The result of create_server: an open port."""

    def __init__(self, loop: SimulatedLoop, port: int) -> None:
        self._loop = loop
        self._port = port
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return "simulated", self._port

    def close(self) -> None:
        self._loop.ports.pop(self._port, None)


def unopened(listeners: Sequence[Any]) -> dict[str, Any]:
    """Replaces the sockets, which `create_server` above does not need."""
    return {listener.name: [None] for listener in listeners}


def _nothing() -> None:
    pass


def _raise(error: BaseException) -> None:
    raise error
