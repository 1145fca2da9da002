"""One conversation over the control socket: lines of JSON, see messages.py.

What is answered at once is a function in ANSWERS. What takes longer is a generator in LONG: it
yields what is to be said, or None to let others have their turn. Whoever can open the socket may
ask.
"""

from collections.abc import Generator, Iterator
from typing import Any, Final

import msgspec

from millrace.engine.errors import EngineError
from millrace.engine.job import Job
from millrace.protocols.buffers import LineBuffer
from millrace.protocols.connection import Connection
from millrace.protocols.errors import ClientError
from millrace.records import Code, ErrorReply, LeasedJobs, LeaseJobs, SocketRequest

from . import (
    arranging,
    auditing,
    bulk,
    failures,
    jobs,
    metrics,
    overview,
    queues,
    recurring,
    search,
    standing,
    work,
    workers,
)
from .answering import Answering, Said, Telling
from .counting import counters
from .errors import AdminError
from .service import LEASE_KEY, AdminService

#: The longest job that can be pushed over HTTP, and some.
MAX_LINE_BYTES = 24 << 20

_decode = msgspec.json.Decoder(SocketRequest).decode
_encode = msgspec.json.Encoder().encode

_MODULES: Final = (
    overview,
    queues,
    failures,
    metrics,
    jobs,
    search,
    workers,
    recurring,
    standing,
    bulk,
    arranging,
    auditing,
    work,
)
#: Answered at once.
ANSWERS: Final[dict[str, Answering]] = {
    "why": lambda hub, name, now: hub.why(name, now),
    "sizes": lambda hub, *_: hub.sizes(),
}
#: Answered bit by bit.
LONG: Final[dict[str, Telling]] = {
    "counters": lambda hub, *_: counters(hub),
}
for _module in _MODULES:
    ANSWERS.update(_module.ANSWERS)
    LONG.update(_module.LONG)
_NAMES: Final = SocketRequest.__struct_fields__
_ABSENT: Final = (None, False)
#: Overviews and reports on the process: they show the state in memory, also while a commit hangs.
NEVER_WAIT: Final = frozenset(
    {"sizes", "overview", "health", "server", "metrics", "faktory", "pipeline", "journal", "ship"}
)


class AdminConnection(Connection):
    def __init__(self, hub: AdminService) -> None:
        super().__init__()
        self.hub = hub
        self._lines = LineBuffer(MAX_LINE_BYTES)
        self._telling: Iterator[Said | None] | None = None
        #: Whether replies to the request in progress wait for commits, and how many changes there
        #: were before it.
        self._waits, self._before = True, 0
        hub.connections.add(self)

    @property
    def backlog(self) -> int:
        return self._lines.size

    @property
    def held(self) -> int:
        return self._lines.held

    def discard(self) -> None:
        self._lines = LineBuffer(0)
        self._stop_telling()

    def feed(self, data: bytes) -> None:
        self._lines.feed(data)

    def receive(self, data: bytes, now: int, most: int) -> bool:
        self.feed(data)
        return self.run(now, most)

    def run(self, now: int, most: int) -> bool:
        lines, self.hub.now = self._lines, now
        while lines.pending and most > 0 and not self.closing and not self._is_busy:
            self._answer(lines.take(), now)
            most -= 1
        if self._telling is not None:
            self._tell(self._telling)  # one piece is as much as many commands
            return not self.closing
        if lines.too_long and not lines.pending and not self.closing:
            self._refuse(AdminError(f"a line is longer than {MAX_LINE_BYTES} bytes", "too large"))
            self.closing = True
        return bool(lines.pending) and not self.closing and not self._is_busy

    @property
    def _is_busy(self) -> bool:
        """Is a request being answered, or does one wait?"""
        return self._telling is not None or self.waiter is not None

    def _answer(self, line: bytes, now: int) -> None:
        try:
            request = _decode(line)
        except msgspec.DecodeError as error:
            self._refuse(AdminError(str(error)))
            return
        self.hub.commands += 1
        try:
            name, asked = _asked(request)
        except AdminError as error:
            self._refuse(error)
            return
        self._waits, self._before = name not in NEVER_WAIT, self.hub.engine.changes
        try:
            if name == "lease":
                self._lease(asked, now)
            elif name in ANSWERS:
                answer = ANSWERS[name](self.hub, asked, now)
                self._wait()
                self._say(answer)
            elif name in LONG:
                self._telling = LONG[name](self.hub, asked, now)
            elif name in {"journal", "ship"}:
                self._about_journal(name)
            else:
                asked_for = ", ".join(f"`{each}`" for each in _NAMES)
                self._refuse(AdminError(f"nothing was asked: one of {asked_for}"))
        except (ClientError, EngineError) as error:
            self._wait()
            self._refuse(error)

    def _wait(self) -> None:
        """Hold the next reply back until everything is committed that it may depend on."""
        engine = self.hub.engine
        if self._waits and (engine.changes != self._before or engine.has_uncommitted):
            self.marks.append(len(self.replies))

    def _about_journal(self, name: str) -> None:
        keeper = self.hub.keeper
        if keeper is None:
            raise AdminError("nothing is kept here, so nothing can be shipped", "unavailable")
        if name == "ship":
            keeper.ship(self._shipped)  # which answers later
        else:
            self._say(keeper.journal())

    def _tell(self, telling: Iterator[Said | None]) -> None:
        try:
            said = next(telling)
        except StopIteration:
            self._telling = None
        except (ClientError, EngineError) as error:
            self._telling = None
            self._wait()
            self._refuse(error)
        else:
            if said is not None:
                self._wait()
                self._say(said)

    def _say(self, answer: Said) -> None:
        self.replies.append(_encode(answer) + b"\n")

    def _refuse(self, error: ClientError | EngineError) -> None:
        self.hub.errors += 1
        code: Code = "conflict" if isinstance(error, EngineError) else "bad request"
        if isinstance(error, AdminError):
            code = error.code
        reason = str(error) or str(type(error).__doc__)
        self.replies.append(_encode(ErrorReply(reason, code)) + b"\n")

    def _stop_telling(self) -> None:
        """Whatever is under way stops where it is, and notes how far it came."""
        telling, self._telling = self._telling, None
        if isinstance(telling, Generator):
            telling.close()

    def _shipped(self, failing: str) -> None:
        if self not in self.hub.connections:
            return
        keeper = self.hub.keeper
        assert keeper is not None
        if failing:
            self._refuse(AdminError(failing, "unavailable"))
        else:
            self._say(keeper.journal())
        self.hub.touched.add(self)

    def _lease(self, asked: LeaseJobs, now: int) -> None:
        engine, queues = self.hub.engine, work.queues_of(self.hub, asked)
        jobs = work.lease(self.hub, queues, asked, now)
        if jobs or asked.wait <= 0:
            self._hand_all(jobs)
            return
        self.waiter = work.waiter(queues, asked, self)
        engine.wait(self.waiter, now + min(asked.wait, work.MAX_WAIT))

    def deliver(self, job: Job, now: int) -> None:
        self.waiter = None
        self._hand_all([job])

    def timed_out(self, now: int) -> None:
        self.waiter = None
        self._hand_all([])

    def _hand_all(self, jobs: list[Job]) -> None:
        engine = self.hub.engine
        leased = LeasedJobs([work.leased(self.hub, job) for job in jobs])
        if any(job.seq in engine.unsettled for job in jobs) or (
            jobs and engine.is_note_uncommitted(LEASE_KEY)
        ):
            self.marks.append(len(self.replies))
        self.handed += [(job, job.attempt) for job in jobs]
        self._say(leased)

    def refusal(self, reason: str) -> bytes:
        return _encode(ErrorReply(reason, "unavailable")) + b"\n"

    def lost(self, now: int) -> None:
        self.hub.now = now
        self._stop_telling()
        if self.waiter is not None:
            self.hub.engine.unwait(self.waiter)
            self.waiter = None
        self.hub.connections.discard(self)


def _asked(request: SocketRequest) -> tuple[str, Any]:
    given = [(name, asked) for name in _NAMES if (asked := getattr(request, name)) not in _ABSENT]
    if len(given) > 1:
        names = ", ".join(f"`{name}`" for name, _ in given)
        raise AdminError(
            f"A request must have exactly one operation; this one has {len(given)}: {names}."
        )
    return given[0] if given else ("", None)
