"""All protocols on one engine, as the server runs them, without sockets, on a virtual clock; and
their clients, each with a speaker.

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
from millrace.config import Config, section_types
from millrace.engine.change_set import ChangeSet
from millrace.engine.job import Job
from millrace.server.app import listeners
from millrace.server.server import Listener
from payload_store import PayloadStore
from scene import recover, write_turn
from speakers import ALL_SPEAKERS, Accepted, Answer, Held, Leased, Nothing, Speaker, Work
from wires import SECOND, START, Wire, World

#: More connections than any test opens.
MOST = 10_000


class House(World):
    def __init__(self, **options: Any) -> None:
        """`options` are settings by their section: goqueue={"max_deliveries": 3}."""
        super().__init__()
        # No client has to send heartbeats.
        settings = {"masenko": {"heartbeat": 100 * 86_400.0}, **options}
        types = section_types()
        self._config = Config(
            **{name: msgspec.convert(each, types[name]) for name, each in settings.items()}
        )
        self.store = PayloadStore()
        self._open()

    def _open(self) -> None:
        config = self._config
        self.listeners = {each.name: each for each in listeners(config, self.engine, START, MOST)}
        control = AdminService(self.engine, MOST)
        http = Listener("http", None, control, lambda: AdminConnection(control))
        self.listeners["http"] = http
        hubs = [listener.hub for listener in self.listeners.values()]
        self.touched = hubs[0].connections_with_messages
        for hub in hubs:
            hub.hubs, hub.connections_with_messages = hubs, self.touched

    def client(self, protocol: str, name: str = "worker") -> "Client":
        """A client that has sent its greeting."""
        wire = Wire(self, self.listeners[protocol].connect())
        self.clients.append(wire)
        wire.flush()
        return Client(self, wire, ALL_SPEAKERS[protocol](name))

    def pass_time(self, seconds: float) -> None:
        self.advance(round(seconds * SECOND))

    def keep(self, batch: ChangeSet) -> None:
        write_turn(batch, self.engine, self.store)

    def crash(self) -> None:
        """Kill the server and start it again: acknowledged changes survive."""
        self.now += 1  # a restart takes time
        self._holds_commits = False
        self.engine = recover(self.store)
        self.engine.random = self.dice
        self.engine.restoration.after_restart(self.now)
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
    """One connection and its protocol encoder."""

    def __init__(self, house: House, wire: Wire, speaker: Speaker) -> None:
        self.house = house
        self.wire = wire
        self.speaker = speaker
        self._heard = 0
        hello = speaker.hello()
        if hello:
            self.says(hello)
            self.hears_accepted()

    # The wire

    @property
    def now(self) -> int:
        return self.house.now

    def says(self, data: bytes) -> None:
        self.wire.receive(data)

    def hears(self) -> list[Answer]:
        """All answers since the last call."""
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
        """The assigned id, in the form of this protocol."""
        self.says(self.speaker.push(work, self.now))
        return self.hears_accepted()

    def lease(self, queue: str) -> Held:
        """A job that is ready now."""
        self.says(self.speaker.lease(queue, self.now))
        return self.hears_held()

    def waits(self, queue: str, wait: float) -> None:
        self.says(self.speaker.lease(queue, self.now, wait))
        assert self.hears() == []

    def finds_nothing(self, queue: str) -> None:
        """The queue has no ready job; some protocols reply after a delay."""
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
        """Any command of the speaker, and its single answer."""
        arguments = (args[0], self.now, *args[1:])
        self.says(getattr(self.speaker, command)(*arguments))
        return self.hears_one()
