"""Handles of pushed jobs: their state, their result, and their cancellation."""

import json
from base64 import b64decode
from collections.abc import Coroutine
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from . import features, wire
from .errors import JobCancelled, JobFailed, JobNotFound, RequestRefused, TimedOut
from .exchange import Exchange
from .pool import require_body

if TYPE_CHECKING:
    from .app import Millrace

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

#: Seconds that one request waits for the end of a job.
RESULT_WAIT: Final = 10.0
#: States of a job that has not ended.
_UNFINISHED: Final = frozenset({"scheduled", "blocked", "ready", "leased"})


@dataclass(frozen=True, slots=True)
class JobHandle(Generic[R_co]):
    """A job that was pushed."""

    id: str
    app: "Millrace" = field(repr=False, compare=False)

    def __str__(self) -> str:
        return self.id

    def state(self) -> str:
        """One of "scheduled", "blocked", "ready", "leased", "done", "dead"; "unknown" if the server
        has no such job: it has ended and was removed, or it never existed.
        """
        return self.app.run_exchange(_state(self))

    async def state_async(self) -> str:
        """The same for asyncio."""
        return await self.app.run_exchange_async(_state(self))

    @overload
    def result(self: "JobHandle[Coroutine[Any, Any, T]]", timeout: float | None = None) -> T: ...

    @overload
    def result(self, timeout: float | None = None) -> R_co: ...

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end of the job and return the value that its task returned.

        Raises `JobFailed`, `JobCancelled`, `JobNotFound`, or `TimedOut` after `timeout` seconds.
        """
        return self.app.run_exchange(_result(self, timeout))

    @overload
    async def result_async(
        self: "JobHandle[Coroutine[Any, Any, T]]",
        timeout: float | None = None,  # noqa: ASYNC109 - it is the wait of the server
    ) -> T: ...

    @overload
    async def result_async(self, timeout: float | None = None) -> R_co: ...  # noqa: ASYNC109

    async def result_async(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """The same for asyncio."""
        return await self.app.run_exchange_async(_result(self, timeout))

    def track(self) -> bool:
        """Show the job in the operators' list of tracked jobs, even after it has ended. Return
        False if it is already tracked.
        """
        return self.app.run_exchange(features.track(self.app, self.id, tracked=True))

    async def track_async(self) -> bool:
        """The same for asyncio."""
        return await self.app.run_exchange_async(features.track(self.app, self.id, tracked=True))

    def untrack(self) -> bool:
        """Remove the job from that list. Return False if it is not tracked."""
        return self.app.run_exchange(features.track(self.app, self.id, tracked=False))

    async def untrack_async(self) -> bool:
        """The same for asyncio."""
        return await self.app.run_exchange_async(features.track(self.app, self.id, tracked=False))

    def cancel(self) -> bool:
        """Cancel the job, even while it runs. Return False if it has already ended.

        Raises `RequestRefused` if other jobs depend on it.
        """
        return self.app.run_exchange(_cancel(self))

    async def cancel_async(self) -> bool:
        """The same for asyncio."""
        return await self.app.run_exchange_async(_cancel(self))


def _state(handle: JobHandle[Any]) -> Exchange[str]:
    reply = yield from _ask(handle, 0)
    return str(reply["state"])


def _ask(handle: JobHandle[Any], wait: float) -> Exchange[dict[str, Any]]:
    yield from handle.app.require_millrace("results")
    request = {"result": {"jid": handle.id, "wait": wait}}
    (reply,) = yield [wire.command("MILLRACE", request)]
    found: dict[str, Any] = json.loads(require_body(reply))
    return found


def _result(handle: JobHandle[Any], timeout: float | None) -> Exchange[Any]:
    longest = min(RESULT_WAIT, handle.app.timeout / 2)
    deadline = None if timeout is None else monotonic() + timeout
    while True:
        wait = longest if deadline is None else min(longest, max(0.0, deadline - monotonic()))
        reply = yield from _ask(handle, wait)
        if reply["state"] not in _UNFINISHED:
            return _value(handle, reply)
        if deadline is not None and monotonic() >= deadline:
            raise TimedOut(f"Job {handle.id} did not end within {timeout:g} s.")


def _value(handle: JobHandle[Any], reply: dict[str, Any]) -> Any:
    state, text = reply["state"], reply.get("result")
    if state == "done":
        if text is None:
            return None
        if reply.get("result_encoding"):
            return b64decode(text)
        try:
            return handle.app.load_result(json.loads(text))
        except ValueError:
            return text  # a worker of another protocol wrote the result
    if state == "unknown":
        raise JobNotFound(
            f"Job {handle.id} does not exist: it has ended and is not kept, or was never pushed. "
            "To keep completed jobs longer, use keep_result."
        )
    if state == "cancelled":
        raise JobCancelled(f"Job {handle.id} was cancelled.")
    raise JobFailed(reply.get("error_type") or state, reply.get("error_message", ""))


def _cancel(handle: JobHandle[Any]) -> Exchange[bool]:
    yield from handle.app.require_millrace("cancel")
    (reply,) = yield [wire.command("MILLRACE", {"cancel": [handle.id]})]
    found = json.loads(require_body(reply))
    reason = found["refused"].get(handle.id, "")
    if "depend" in reason:
        raise RequestRefused(f"Job {handle.id} cannot be cancelled. {reason}")
    return handle.id in found["cancelled"]
