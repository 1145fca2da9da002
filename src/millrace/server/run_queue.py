"""Clients with more commands than their share wait here for their next turn.

However many there are, they take only a moment of each turn of the loop together, and between two
such moments everybody is heard who has only one thing to ask. While anybody waits here, a client's
first command is done at once and its others come in here behind those who wait: so what a crowd
of pipeliners makes longer is their own way, not that of those who ask and wait for the answer.

While a commit is under way, the next batch gathers. Those who wait here fill it only so far: a
batch takes as long to write as it is large, and everybody waits for the one that has his command.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .session import Session

#: So many commands of one client are done before the others have their turn,
SHARE: Final = 64
#: and so many if it waited here.
SLICE: Final = 8
#: So long the waiting are served before the loop looks for others, in microseconds;
MOMENT: Final = 500
#: and so many of them at most: a clock may stand still.
MOST: Final = 256


class RunQueue:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        crowded: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._clock = clock
        #: Does the next batch hold enough? Then there is a commit under way, and `resume` follows.
        self._crowded = crowded
        self._paused = False
        self._waiting: deque[Session] = deque()
        self._called = False
        #: How many commands a client may have done that does not wait here.
        self.share = SHARE

    def add(self, session: "Session") -> None:
        self._waiting.append(session)
        self._call()

    def resume(self) -> None:
        """The commit under way is over, and what has gathered is about to be written."""
        if self._paused:
            self._paused = False
            self._call()

    def _call(self) -> None:
        self.share = 1 if self._waiting else SHARE
        if self._waiting and not self._called and not self._paused:
            self._called = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        waiting, clock = self._waiting, self._clock
        if self._crowded():
            self._called, self._paused = False, True
            return
        began = clock()
        try:
            for _ in range(MOST):
                waiting.popleft().go_on(SLICE)
                # The wall clock may jump, also backwards.
                if not waiting or not 0 <= clock() - began < MOMENT:
                    break
        finally:
            self._called = False
            self._call()
