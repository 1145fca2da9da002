"""A data folder with work, a lake, and the expected events in it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import event_tables
from millrace.engine.change_set import ChangeSet
from millrace.engine.engine import Engine
from millrace.engine.events import EVENT_VERSION, EventTuple
from millrace.journal.shipment import Shipment
from millrace.protocols.spec import protocol_rules
from millrace.store import SqliteStore
from scene import Scene, write_turn


class Kept:
    """The store is open between `start` and `crash` or `stop`; `rows` are all committed events."""

    def __init__(self, folder: Path, lake: Path, *, outbox_max: int = 1 << 30) -> None:
        self.folder = folder
        self.lake = lake
        self.outbox_max = outbox_max
        self.rows: list[EventTuple] = []
        self._jobs = 0
        self.start()

    def start(self) -> None:
        self.store = SqliteStore(self.folder, sync=False, outbox_max=self.outbox_max)
        self.scene = Scene(Engine(Random(1), protocol_rules()))
        self.store.load().fill(self.scene.engine)

    def stop(self) -> None:
        self.store.close()

    def work(self, jobs: int = 1, *, message: str = "it broke") -> None:
        """One commit: each job is pushed, leased, and completed or failed."""
        scene = self.scene
        for _ in range(jobs):
            self._jobs += 1
            scene.now += 7
            scene.push(f"job-{self._jobs}", f"queue-{self._jobs % 3}")
            job = scene.lease(f"queue-{self._jobs % 3}")
            assert job is not None
            scene.now += 11
            if self._jobs % 4:
                scene.complete(job)
            else:
                scene.fail(job, message=message)
        self.commit()

    def commit(self) -> None:
        """Also commits an empty change set, which removes shipped events."""
        batch = self.scene.engine.take_changes()
        write_turn(batch, self.scene.engine, self.store)
        self.rows += batch.events

    def ship(self, most: int = 1000) -> list[tuple[int, int]]:
        """Ship all events and return the ranges of the commits."""
        with Shipment(self.folder, self.lake, most) as shipment:
            commits = list(shipment.ship())
            self.store.outbox.mark_shipped(shipment.next)
        return [(commit.first, commit.last) for commit in commits]

    def trim(self) -> None:
        while self.store.outbox.has_shipped_events:
            self.store.prepare(ChangeSet(), self.scene.engine)
            self.store.commit()


def assert_exactly_once(lake: Path, server: str, rows: list[EventTuple], first: int = 1) -> None:
    """Every event is in the lake once, in order, with the engine's values."""
    expected = event_tables.table(server, first, EVENT_VERSION, rows)
    found = event_tables.in_lake(lake, server)
    assert found.column("event_id").to_pylist() == expected.column("event_id").to_pylist()
    assert found.combine_chunks().equals(expected.combine_chunks())


@contextlib.contextmanager
def kept(folder: Path, lake: Path) -> Iterator[Kept]:
    made = Kept(folder, lake)
    try:
        yield made
    finally:
        made.stop()
