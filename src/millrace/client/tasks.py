"""Tasks: functions that jobs run. An application pushes a call of a task as a job."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from .jobs import DEFAULT_RETRIES, Delay, NewJob, due_time

if TYPE_CHECKING:
    from .app import Millrace
    from .handles import JobHandle

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Options for the jobs of a task."""

    queue: str = "default"
    retries: int = DEFAULT_RETRIES
    timeout: float | None = None
    priority: int = 0
    tags: tuple[str, ...] = ()
    depends_on: tuple["str | JobHandle[Any]", ...] = ()
    delay: Delay | None = None
    at: datetime | float | None = None
    #: Seconds that the server retains the completed job. None: the setting of its queue applies; if
    #: the queue has none, ten minutes if the task returns a value.
    keep_result: float | None = None


@dataclass(frozen=True, slots=True)
class BoundTask(Generic[P, R]):
    """A task together with options; see `Task.options`."""

    app: "Millrace" = field(repr=False)
    name: str
    function: Callable[P, R] = field(repr=False)
    defaults: TaskOptions

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Create a job that runs this call, without pushing it; see `push_many` and `recur`."""
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
            keep_result=options.keep_result,
        )

    def push(self, *args: P.args, **kwargs: P.kwargs) -> "JobHandle[R]":
        """Push this call as a job. Returns once the server has stored it."""
        return self.app.push(self.job(*args, **kwargs))

    async def push_async(self, *args: P.args, **kwargs: P.kwargs) -> "JobHandle[R]":
        """The same for asyncio."""
        return await self.app.push_async(self.job(*args, **kwargs))

    def push_later(
        self,
        *args: Any,
        delay: Delay | None = None,
        at: datetime | float | None = None,
        **kwargs: Any,
    ) -> "JobHandle[R]":
        """Push this call as a job that becomes ready after a delay, or at a time.

        `delay` is in seconds or a timedelta; `at` is a datetime with a time zone, or seconds since
        1970. This method checks the arguments at run time. With `options(delay=...).push(...)`,
        type checkers check them too.
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
        depends_on: "Sequence[str | JobHandle[Any]] | None" = None,
        delay: Delay | None = None,
        at: datetime | float | None = None,
        keep_result: float | None = None,
    ) -> "BoundTask[P, R]":
        """The same task with other options, as in `send.options(priority=5).push(...)`.

        `retries` is the number of attempts after the first one, and `timeout` the maximum duration
        of an attempt in seconds. Higher priorities run first. The job waits until the jobs in
        `depends_on` have completed. `delay` and `at` schedule it. The server keeps the completed
        job with its result for `keep_result` seconds.
        """
        given: dict[str, Any] = {
            "queue": queue,
            "retries": retries,
            "timeout": timeout,
            "priority": priority,
            "tags": None if tags is None else tuple(tags),
            "depends_on": None if depends_on is None else tuple(depends_on),
            "delay": delay,
            "at": at,
            "keep_result": keep_result,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        options = replace(self.defaults, **changes)
        return BoundTask(self.app, self.name, self.function, options)


@dataclass(frozen=True, slots=True)
class Task(BoundTask[P, R]):
    """A registered function. A direct call runs it immediately, without the server."""

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
