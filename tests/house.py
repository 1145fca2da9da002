"""All protocols on one engine, as the server serves them, without sockets, on a clock that only
we move; and clients of them, each with a speaker.

    house = House()
    pusher, worker = house.client("workq"), house.client("faktory")
    pusher.push(Work(id=..., queue="q", payload=b"[1]"))
    held = worker.lease("q")
    worker.complete(held)
"""

from typing import Any

import msgspec

from millrace.admin.connection import AdminConnection
from millrace.admin.service import AdminService
from millrace.config import Config
from millrace.engine.batch import Batch
from millrace.engine.job import Job
from millrace.server.app import listeners
from millrace.server.server import Listener
from millrace.store import MemoryStore
from scene import recover, write_turn
from speakers import EVERYBODY, Accepted, Answer, Held, Leased, Nothing, Speaker, Work
from wires import SECOND, START, Wire, World

#: More connections than any test makes.
MOST = 10_000


class House(World):
    def __init__(self, **options: Any) -> None:
        """`options` are settings by their section: goqueue={"max_deliveries": 3}."""
        super().__init__()
        # Nobody here has to say something all the time.
        settings = {"masenko": {"heartbeat": 100 * 86_400.0}, **options}
        self._config = msgspec.convert(settings, Config)
        self.store = MemoryStore()
        self._open()

    def _open(self) -> None:
        config = self._config
        self.listeners = {each.name: each for each in listeners(config, self.engine, START, MOST)}
        control = AdminService(self.engine, MOST)
        http = Listener("http", None, control, lambda: AdminConnection(control))
        self.listeners["http"] = http
        hubs = [listener.hub for listener in self.listeners.values()]
        self.touched = hubs[0].touched
        for hub in hubs:
            hub.hubs, hub.touched = hubs, self.touched

    def client(self, protocol: str, name: str = "worker") -> "Client":
        """Somebody who has said hello."""
        wire = Wire(self, self.listeners[protocol].connect())
        self.clients.append(wire)
        wire.flush()
        return Client(self, wire, EVERYBODY[protocol](name))

    def pass_time(self, seconds: float) -> None:
        self.advance(round(seconds * SECOND))

    def keep(self, batch: Batch) -> None:
        write_turn(batch, self.engine, self.store)

    def crash(self) -> None:
        """The server is killed and started again: what was acknowledged is there."""
        self.now += 1  # it takes a moment
        self._holds_commits = False
        self.engine = recover(self.store)
        self.engine.random = self.dice
        self.engine.begin_anew(self.now)
        self.clients = []
        self._open()

    def tell(self) -> None:
        while True:
            super().tell()
            while self.touched:
                self.touched.pop().session.flush()
            when = self.engine.next_timer()
            if when is None or when > self.now:
                return
            self.engine.tick(self.now)

    def job(self, seq: int = 1) -> Job:
        return self.engine.jobs[seq]


class Client:
    """One connection and who speaks on it."""

    def __init__(self, house: House, wire: Wire, speaker: Speaker) -> None:
        self.house = house
        self.wire = wire
        self.speaker = speaker
        self._heard = 0
        hello = speaker.hello()
        if hello:
            self.says(hello)
            self.hears_accepted()

    # What is on the wire

    @property
    def now(self) -> int:
        return self.house.now

    def says(self, data: bytes) -> None:
        self.wire.receive(data)

    def hears(self) -> list[Answer]:
        """All that was answered since this was last asked."""
        if len(self.wire.heard) == self._heard:
            return []
        data = bytes(self.wire.heard[self._heard :])
        self._heard += len(data)
        return self.speaker.receive(data)

    def hears_one(self) -> Answer:
        answers = self.hears()
        assert len(answers) == 1, answers
        return answers[0]

    def hears_accepted(self) -> str:
        answer = self.hears_one()
        assert isinstance(answer, Accepted), answer
        return answer.id

    def hears_held(self) -> Held:
        answer = self.hears_one()
        assert isinstance(answer, Leased), answer
        return answer.held

    def hangs_up(self) -> None:
        self.wire.lose()
        self.house.tell()

    # Commands

    def push(self, work: Work) -> str:
        """The id that it got, as this protocol shows it."""
        self.says(self.speaker.push(work, self.now))
        return self.hears_accepted()

    def lease(self, queue: str) -> Held:
        """The job that is there at once."""
        self.says(self.speaker.lease(queue, self.now))
        return self.hears_held()

    def waits(self, queue: str, wait: float) -> None:
        self.says(self.speaker.lease(queue, self.now, wait))
        assert self.hears() == []

    def finds_nothing(self, queue: str) -> None:
        """There is no job; some protocols need some time to say so."""
        self.says(self.speaker.lease(queue, self.now))
        if not (answers := self.hears()):
            self.house.pass_time(self.speaker.least_wait)
            answers = self.hears()
        assert [type(answer) for answer in answers] == [Nothing], answers

    def complete(self, held: Held, result: bytes = b"") -> None:
        self.says(self.speaker.complete(held, self.now, result))
        self.hears_accepted()

    def fail(self, held: Held, message: str = "failed") -> None:
        self.says(self.speaker.fail(held, self.now, message))
        self.hears_accepted()

    def asks(self, command: str, *args: Any) -> Answer:
        """Any command of the speaker's, and its one answer."""
        arguments = (args[0], self.now, *args[1:])
        self.says(getattr(self.speaker, command)(*arguments))
        return self.hears_one()
