"""A fair queue for clients that pipeline more commands than one read may execute.

Together they get one slice of each pass of the loop. Between two slices the loop serves the clients
with single commands. While the queue is not empty, the first command of a read runs immediately and
the rest joins the queue: a pipelining client delays only other pipelining clients.

During a commit the next change set grows. The queue stops when that set is large, because the time
of a commit grows with its size and delays every client in it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .session import Session

#: The number of commands of one client per read while the queue is empty.
COMMANDS_PER_READ: Final = 64
#: The number of commands of one client per slice of the queue.
COMMANDS_PER_SLICE: Final = 8
#: Duration of a slice.
SLICE_MICROSECONDS: Final = 500
#: Maximum number of clients per slice, in case the clock does not advance.
MAX_CLIENTS_PER_SLICE: Final = 256


class RunQueue:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        is_change_set_large: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._clock = clock
        #: Whether the next change set is large while a commit runs; `resume` follows.
        self._is_change_set_large = is_change_set_large
        self._paused = False
        self._waiting: deque[Session] = deque()
        self._is_scheduled = False
        #: Commands per read of a client that is not in the queue.
        self.commands_per_read = COMMANDS_PER_READ

    def add(self, session: "Session") -> None:
        self._waiting.append(session)
        self._schedule()

    def resume(self) -> None:
        """Continue after a commit: the next change set is about to be written."""
        if self._paused:
            self._paused = False
            self._schedule()

    def _schedule(self) -> None:
        self.commands_per_read = 1 if self._waiting else COMMANDS_PER_READ
        if self._waiting and not self._is_scheduled and not self._paused:
            self._is_scheduled = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        waiting, clock = self._waiting, self._clock
        if self._is_change_set_large():
            self._is_scheduled, self._paused = False, True
            return
        began = clock()
        try:
            for _ in range(MAX_CLIENTS_PER_SLICE):
                waiting.popleft().resume(COMMANDS_PER_SLICE)
                # The wall clock can jump, even backwards.
                if not waiting or not 0 <= clock() - began < SLICE_MICROSECONDS:
                    break
        finally:
            self._is_scheduled = False
            self._schedule()
