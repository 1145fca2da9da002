"""A Masenko server without sockets, with a store that can fail, crash and reload.
The test ends the turns: `begin` takes the changes so far, `finish` commits or refuses them. A crash
loses changes without `finish`.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from conversation import START, World
from masenko_conversation import MasenkoClient, MasenkoWorld

from failing_stores import FailingMemoryStore
from millrace.engine.change_set import ChangeSet
from millrace.engine.engine import Engine
from millrace.engine.states import LEASED
from millrace.protocols.masenko.hub import MasenkoHub
from millrace.store import must_write
from scene import recover, undo


class FailingMasenkoServer(MasenkoWorld):
    def __init__(self, **options: Any) -> None:
        self.store = FailingMemoryStore()
        self.options = options
        self.now = START
        self.begun: ChangeSet | None = None
        self.start()

    def start(self) -> None:
        self.now += 1  # the start takes some time
        self.engine = recover(self.store)
        self.engine.random = Random(1)
        self.engine.restoration.after_restart(self.now)
        self.hub = MasenkoHub(self.engine, **self.options)
        self.clients = []
        self.begun = None

    def tell(self) -> None:
        """As in the base class, but a change set is taken at the end of a turn."""
        taken: Callable[[], ChangeSet] = self.engine.take_changes
        self.engine.take_changes = ChangeSet  # type: ignore[method-assign]
        try:
            World.tell(self)
        finally:
            del self.engine.take_changes
        assert self.engine.take_changes == taken

    # Clients: each receives its replies immediately

    def client(self) -> MasenkoClient:
        self.connect()
        return _Client(self, len(self.clients) - 1)

    # Turns

    def begin(self) -> None:
        assert self.begun is None
        self.begun = self.engine.take_changes()
        self.engine.statistics.add_events(self.begun.events)
        if must_write(self.begun, self.store):
            self.store.prepare(self.begun, self.engine)

    def finish(self, *, fails: bool = False) -> None:
        assert self.begun is not None
        batch, self.begun = self.begun, None
        if fails:
            self.store._prepared = None
            undo(self.engine, self.store, [batch, self.engine.take_changes()], "disk full")
        elif must_write(batch, self.store):
            self.store.commit()

    def sync(self) -> None:
        if self.begun is not None:
            self.finish()
        self.begin()
        self.finish()

    def fail(self) -> None:
        """The commit of everything since the last sync fails."""
        if self.begun is None:
            self.begin()
        self.finish(fails=True)

    def resume(self) -> None:
        self.engine.resume(self.now)
        self.tell()

    # End of the server

    def crash(self) -> None:
        self.start()

    def restart(self) -> None:
        """An orderly stop and a new start."""
        self.hub.stop()
        for wire in self.clients:
            wire.lose()
        self.sync()
        self.start()


class _Client(MasenkoClient):
    """A client without recorded input for other runs."""

    def __init__(self, house: FailingMasenkoServer, number: int) -> None:
        super().__init__(_SingleRun(house), number)  # type: ignore[arg-type]


class _SingleRun:
    def __init__(self, world: FailingMasenkoServer) -> None:
        self.world = world
        self.failed = False

    def do_step(self, step: Any) -> None:
        from conversation import play

        play(self.world, step)

    def advance(self, seconds: float) -> None:
        self.world.advance(round(seconds * 1_000_000))


def leased(engine: Engine) -> list[int]:
    return [seq for seq, job in engine.jobs.items() if job.state == LEASED]
