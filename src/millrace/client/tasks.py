"""Tasks: functions whose calls can be pushed as jobs."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from .jobs import DEFAULT_RETRIES, Delay, NewJob, due_time

if TYPE_CHECKING:
    from .app import JobHandle, Millrace

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How the jobs of a task are pushed."""

    queue: str = "default"
    retries: int = DEFAULT_RETRIES
    timeout: float | None = None
    priority: int = 0
    tags: tuple[str, ...] = ()
    depends_on: tuple["str | JobHandle", ...] = ()
    delay: Delay | None = None
    at: datetime | float | None = None


@dataclass(frozen=True, slots=True)
class BoundTask(Generic[P, R]):
    """A task together with options; see `Task.options`."""

    app: "Millrace" = field(repr=False)
    name: str
    function: Callable[P, R] = field(repr=False)
    defaults: TaskOptions

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """A job that runs this call. Nothing is sent."""
        inspect.signature(self.function).bind(*args, **kwargs)
        options = self.defaults
        return NewJob(
            name=self.name,
            args=args,
            kwargs=kwargs,
            queue=options.queue,
            retries=options.retries,
            timeout=options.timeout,
            at=due_time(options.delay, options.at, self.app.now()),
            priority=options.priority,
            tags=options.tags,
            depends_on=tuple(str(each) for each in options.depends_on),
        )

    def push(self, *args: P.args, **kwargs: P.kwargs) -> "JobHandle":
        """Push this call as a job. Returns once the server has stored it."""
        return self.app.push(self.job(*args, **kwargs))

    async def push_async(self, *args: P.args, **kwargs: P.kwargs) -> "JobHandle":
        """The same for asyncio."""
        return await self.app.push_async(self.job(*args, **kwargs))

    def push_later(
        self,
        *args: Any,
        delay: Delay | None = None,
        at: datetime | float | None = None,
        **kwargs: Any,
    ) -> "JobHandle":
        """Push this call as a job that becomes ready after a delay, or at a time.

        The arguments are checked when the call runs; `options(delay=...).push(...)` also has them
        checked by type checkers.
        """
        return self.options(delay=delay, at=at).push(*args, **kwargs)

    def options(
        self,
        *,
        queue: str | None = None,
        retries: int | None = None,
        timeout: float | None = None,
        priority: int | None = None,
        tags: Sequence[str] | None = None,
        depends_on: "Sequence[str | JobHandle] | None" = None,
        delay: Delay | None = None,
        at: datetime | float | None = None,
    ) -> "BoundTask[P, R]":
        """The same task with other options. `options(priority=5).push(...)`"""
        given: dict[str, Any] = {
            "queue": queue,
            "retries": retries,
            "timeout": timeout,
            "priority": priority,
            "tags": None if tags is None else tuple(tags),
            "depends_on": None if depends_on is None else tuple(depends_on),
            "delay": delay,
            "at": at,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        options = replace(self.defaults, **changes)
        return BoundTask(self.app, self.name, self.function, options)


@dataclass(frozen=True, slots=True)
class Task(BoundTask[P, R]):
    """A registered function. Calling it runs it here and now, without the server."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)


def default_name(function: Callable[..., Any]) -> str:
    """`module.function`. For a script, the module is the name of its file, so that a script and the
    worker that imports it agree on the name.
    """
    module = function.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        path = getattr(main, "__file__", None)
        if spec is not None and spec.name != "__main__":
            module = spec.name.removesuffix(".__main__")
        elif path:
            module = Path(path).stem
    return f"{module}.{function.__qualname__}"
