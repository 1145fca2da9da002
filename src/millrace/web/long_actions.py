"""Long actions: start, progress and cancellation."""

import asyncio
import itertools
import time
from collections import OrderedDict
from typing import Any, Final

import msgspec

from millrace.admin.client import AdminClient
from millrace.admin.errors import AdminError
from millrace.records import ActionRequest, BulkProgress, Code

#: Number of actions above which finished actions are removed.
MAX_KEPT_ACTIONS: Final = 100
#: Number of bulk actions that run at a time.
MAX_RUNNING: Final = 4
#: Seconds to wait for the end of an action before the reply.
SYNC_WAIT: Final = 0.5
#: Maximum digits of an action's number. Python rejects very long numbers.
MAX_NUMBER_DIGITS: Final = 18
#: Maximum named jobs of a short action. It ends within one turn of the server and is not counted.
MAX_SHORT_ACTION: Final = 50


class BulkAction:
    def __init__(self, number: int, title: str, by: str, *, bulk: bool = True) -> None:
        self.number = number
        self.bulk = bulk
        self.title = title
        self.by = by
        self.began = time.time()
        self.ended = 0.0
        self.progress = BulkProgress(0, [], finished=False)
        self.error = ""
        self.code: Code | None = None
        self.stopped = False
        self.running: asyncio.Task[None] | None = None

    @property
    def state(self) -> str:
        if not self.ended:
            return "running"
        if self.error:
            return "failed"
        return "stopped" if self.stopped and not self.progress.finished else "done"

    def end(self, _: object) -> None:
        self.ended = time.time()


class BulkActions:
    """Runs actions. An action continues after the user closes the page that started it."""

    def __init__(self, control: AdminClient) -> None:
        self._control = control
        self._numbers = itertools.count(1)
        self.known: OrderedDict[int, BulkAction] = OrderedDict()

    @property
    def running(self) -> list[BulkAction]:
        return [task for task in self.known.values() if not task.ended]

    def begin(self, title: str, by: str, **request: Any) -> BulkAction:
        """Start an `act` or `act_on_queue` request."""
        bulk = _is_bulk(request.get("act"))
        if bulk and sum(task.bulk for task in self.running) >= MAX_RUNNING:
            raise AdminError(
                "Four bulk actions are already running. Wait for one to finish, or stop one.",
                "conflict",
            )
        task = BulkAction(next(self._numbers), title, by, bulk=bulk)
        self.known[task.number] = task
        over = [number for number, each in self.known.items() if each.ended]
        for number in over[: max(0, len(self.known) - MAX_KEPT_ACTIONS)]:
            del self.known[number]
        task.running = asyncio.create_task(self._run(task, request))
        task.running.add_done_callback(task.end)  # also if stopped before it starts
        return task

    async def run(self, title: str, by: str, **request: Any) -> BulkAction:
        """Start an action and wait for its end, but not long: a longer one has a progress page."""
        task = self.begin(title, by, **request)
        await self.wait(task, SYNC_WAIT)
        return task

    async def wait(self, task: BulkAction, seconds: float) -> None:
        if task.running is not None:
            await asyncio.wait([task.running], timeout=seconds)

    def find(self, number: str) -> BulkAction:
        known = number.isascii() and number.isdigit() and len(number) <= MAX_NUMBER_DIGITS
        task = self.known.get(int(number)) if known else None
        if task is None:
            raise AdminError(
                f"Action {number[:MAX_NUMBER_DIGITS]} not found. Only the newest actions are "
                "retained.",
                "not found",
            )
        return task

    def stop(self, task: BulkAction) -> None:
        if task.running is not None and not task.ended:
            task.stopped = True
            task.running.cancel()

    def close(self) -> None:
        for task in self.running:
            self.stop(task)

    async def _run(self, task: BulkAction, request: dict[str, Any]) -> None:
        told = self._control.follow(BulkProgress, **request)
        try:
            async for progress in told:
                task.progress = progress
                if progress.finished:
                    break
        except AdminError as error:
            task.error, task.code = str(error), error.code
        except msgspec.MsgspecError as error:
            task.error = str(error)
        finally:
            await told.aclose()  # type: ignore[attr-defined]


def _is_bulk(act: ActionRequest | None) -> bool:
    """Return True for an action on a queue, on a filter or on more than MAX_SHORT_ACTION jobs."""
    if act is None or act.query is not None:
        return True
    return len(act.jobs) + len(act.seqs) > MAX_SHORT_ACTION
