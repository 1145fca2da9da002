"""What `millrace` asks a running server over the socket in its data folder.

A request is a line of JSON, an object with the name of what is asked; so is each answer:

    C: {"why": "6ba7b810-9dad-11d1-80b4-00c04fd430c4"}
    S: {"jobs": [...], ...}       (see engine.why; none if no job has that id)
    C: {"sizes": true}
    S: {"jobs": 3, "timers": 4, ...}   (see engine.sizes)
    C: {"journal": true}
    S: {"events": 0, "seconds": 0.0, ...}   (see Journal)
    C: {"ship": true}
    S: the same, once all that is committed by now is in the lake
    C: {"counters": true}
    S: {"event": 17, "queues": [...], "days": [...], "more": true, ...}   (see Counters)
    S: {"event": 23, ..., "more": false}
    C: nonsense
    S: {"error": "..."}

A job may be named by its jid or by its number. Whoever can open the socket may ask; nothing here
changes anything of a job.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from millrace.engine.engine import Engine
from millrace.engine.job import Job, seq_of
from millrace.engine.sizes import sizes
from millrace.engine.states import READY
from millrace.engine.stats import QueueDay
from millrace.engine.why import Why, why

from .connection import Connection, Hub, Lines

MOST_LINE = 65_536
#: Of so many jobs of one id it is told; everybody waits while it is looked at them.
MOST_TOLD = 20
#: So many queues, or days of statistics, are told of at once, for the same reason.
MOST_COUNTED = 64


class Request(msgspec.Struct, forbid_unknown_fields=True):
    why: str | None = None
    sizes: bool = False
    journal: bool = False
    ship: bool = False
    counters: bool = False


class Answer(msgspec.Struct):
    jobs: list[Why]
    now: int
    #: Did a job of that number ever exist?
    known: bool
    #: So many others have that id.
    more: int = 0


class Journal(msgspec.Struct):
    """How far the shipping of events is, and how far behind."""

    #: The id that the lake knows the server by; empty before anything was shipped.
    server: str
    lake: str
    #: The event that comes next, and the first that is not known to be in the lake.
    next_event: int
    next_shipped: int
    #: What waits: so many events, the bytes that the outbox holds, the age of the oldest.
    events: int
    bytes: int
    seconds: float = 0.0
    #: Events that had to go before they were shipped, and files that have landed, since the start.
    dropped: int = 0
    files: int = 0
    #: Why shipping fails at the moment, or does not take place.
    failing: str = ""


class Keeper(Protocol):
    """Whoever ships the journal."""

    def journal(self) -> Journal: ...

    def ship(self, done: Callable[[str], None]) -> None:
        """Ship all that is committed by now; `done` hears of it, or why it cannot be."""
        ...


class Counters(msgspec.Struct):
    """Some of what is counted, as it is after an event of the journal. It is told when all of that
    is durable; what follows is of a later event.
    """

    event: int
    #: Queues, each with its jobs by state.
    queues: list[tuple[str, list[int]]]
    days: list[QueueDay]
    #: Days before this one are being forgotten.
    since: int
    more: bool


class Counting:
    """An answer to `counters` that is on its way: what was there when it was asked for is told,
    with the numbers that it has when its turn comes.
    """

    def __init__(self, hub: "ControlHub") -> None:
        self._hub, engine = hub, hub.engine
        statistics = engine.count()
        self._queues, self._days = list(engine.queues), list(statistics.days)
        self._at = 0
        self._since = statistics.since(engine.latest)
        self._world = (engine.wipes, engine.reverts)

    def next(self) -> Counters | None:
        """The next piece; None where everything was forgotten or undone meanwhile."""
        engine = self._hub.engine
        if (engine.wipes, engine.reverts) != self._world:
            return None
        first, self._at = self._at, self._at + MOST_COUNTED
        queues, others = self._queues[first : self._at], len(self._queues)
        keys = self._days[max(0, first - others) : max(0, self._at - others)]
        days = engine.count().days
        return Counters(
            self._hub.event,
            [(name, _counts(engine, name)) for name in queues],
            [days[key] for key in keys if key in days],
            self._since,
            self._at < others + len(self._days),
        )


def _counts(engine: Engine, name: str) -> list[int]:
    queue = engine.queues.get(name)
    return [0] * 6 if queue is None else list(queue.counts)


_decode = msgspec.json.Decoder(Request).decode


class ControlHub(Hub):
    keeper: Keeper | None = None

    def __init__(
        self, engine: Engine, max_connections: int, next_event: Callable[[], int] = lambda: 1
    ) -> None:
        super().__init__(engine, max_connections)
        #: The number that the next event will have which is given to the store.
        self._next_event = next_event

    @property
    def event(self) -> int:
        """The number that the last event has, or will have when it is written."""
        return self._next_event() - 1 + len(self.engine.batch.events)

    def why(self, name: str, now: int) -> Answer:
        found = named(self.engine, name)
        jobs = [self._why(job, now) for job in found[:MOST_TOLD]]
        seq = _number(name)
        known = bool(jobs) or 0 < seq < self.engine.next_seq
        return Answer(jobs, now, known, len(found) - len(jobs))

    def sizes(self) -> dict[str, int]:
        return sizes(self.engine) | {"connections": sum(len(hub.connections) for hub in self.hubs)}

    def _why(self, job: Job, now: int) -> Why:
        found = why(self.engine, job, now)
        if job.state == READY:
            held = [reason for hub in self.hubs for reason in hub.holds_back(job, now)]
            found.reasons[-1:-1] = held  # its place in the queue says least
        return found


def named(engine: Engine, name: str) -> list[Job]:
    """The jobs that somebody may mean by that name: of that id the oldest first, then of that
    number.
    """
    found = engine.find_all(name)
    job = engine.jobs.get(_number(name))
    return found if job is None or any(each is job for each in found) else [*found, job]


def _number(name: str) -> int:
    """The job's number, if that is what the name is, or what it was made from; else 0."""
    if name.isascii() and name.isdigit() and len(name) < 20:
        return int(name)
    return seq_of(name)


class ControlConnection(Connection):
    def __init__(self, hub: ControlHub) -> None:
        super().__init__()
        self.hub = hub
        self._lines = Lines(MOST_LINE)
        self._counting: Counting | None = None
        hub.connections.add(self)

    @property
    def backlog(self) -> int:
        return self._lines.size

    @property
    def held(self) -> int:
        return self._lines.held

    def discard(self) -> None:
        self._lines, self._counting = Lines(0), None

    def feed(self, data: bytes) -> None:
        self._lines.feed(data)

    def receive(self, data: bytes, now: int, most: int) -> bool:
        self.feed(data)
        return self.run(now, most)

    def run(self, now: int, most: int) -> bool:
        lines = self._lines
        while lines.pending and most > 0 and not self.closing and self._counting is None:
            self._answer(lines.take(), now)
            most -= 1
        if self._counting is not None:
            self._count(self._counting)  # one piece is as much as many commands
            return not self.closing
        if lines.too_long and not lines.pending and not self.closing:
            self.replies.append(self.refusal(f"a line is longer than {MOST_LINE} bytes"))
            self.closing = True
        return bool(lines.pending) and not self.closing

    def _answer(self, line: bytes, now: int) -> None:
        try:
            request = _decode(line)
        except msgspec.DecodeError as error:
            self.replies.append(self.refusal(str(error)))
            return
        keeper = self.hub.keeper
        if request.sizes:
            self._say(self.hub.sizes())
        elif request.counters:
            self._counting = Counting(self.hub)
        elif request.journal or request.ship:
            if keeper is None:
                reason = "nothing is kept here, so nothing can be shipped"
                self.replies.append(self.refusal(reason))
            elif request.ship:
                keeper.ship(self._shipped)  # which answers later
            else:
                self._say(keeper.journal())
        elif request.why is None:
            asked = "`why`, `sizes`, `counters`, `journal` or `ship`"
            self.replies.append(self.refusal(f"nothing was asked: {asked}"))
        else:
            self._say(self.hub.why(request.why, now))

    def _count(self, counting: Counting) -> None:
        found = counting.next()
        if found is None or not found.more:
            self._counting = None
        if found is None:
            self.replies.append(self.refusal("what is counted began anew meanwhile: ask again"))
            return
        self.marks.append(len(self.replies))  # events that are not durable are in it
        self._say(found)

    def _say(self, answer: Answer | Counters | Journal | dict[str, int]) -> None:
        self.replies.append(msgspec.json.encode(answer) + b"\n")

    def _shipped(self, failing: str) -> None:
        if self not in self.hub.connections:
            return
        keeper = self.hub.keeper
        assert keeper is not None
        if failing:
            self.replies.append(self.refusal(failing))
        else:
            self._say(keeper.journal())
        self.hub.touched.add(self)

    def refusal(self, reason: str) -> bytes:
        return msgspec.json.encode({"error": reason}) + b"\n"

    def lost(self, now: int) -> None:
        self.hub.connections.discard(self)
