"""A data folder that things happen in, a lake, and what must be found there afterwards."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.engine.batch import Batch
from millrace.engine.engine import Engine
from millrace.engine.events import EVENT_VERSION, Row
from millrace.journal import columns
from millrace.journal.landing import FOLDER, landed
from millrace.journal.shipment import Shipment
from millrace.store import SqliteStore
from scene import Scene, write_turn


class Kept:
    """The store is open between `start` and `crash` or `stop`; `rows` are all committed events."""

    def __init__(self, folder: Path, lake: Path, *, outbox_max: int = 1 << 30) -> None:
        self.folder = folder
        self.lake = lake
        self.outbox_max = outbox_max
        self.rows: list[Row] = []
        self._jobs = 0
        self.start()

    def start(self) -> None:
        self.store = SqliteStore(self.folder, sync=False, outbox_max=self.outbox_max)
        self.scene = Scene(Engine(Random(1)))
        self.store.load().put_into(self.scene.engine)

    def stop(self) -> None:
        self.store.close()

    def work(self, jobs: int = 1, *, message: str = "it broke") -> None:
        """One commit: each job is pushed, leased and done with, or fails."""
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
        """Also of nothing: shipped events go with it."""
        batch = self.scene.engine.take_batch()
        write_turn(batch, self.scene.engine, self.store)
        self.rows += batch.events

    def ship(self, most: int = 1000) -> list[tuple[int, int]]:
        """All there is; the ranges of the files."""
        with Shipment(self.folder, self.lake, most) as shipment:
            files = [sealed.landed for sealed in shipment.ship()]
            self.store.shipped(shipment.next)
        return [(file.first, file.last) for file in files]

    def trim(self) -> None:
        while self.store.trims:
            self.store.begin(Batch(), self.scene.engine)
            self.store.commit()


def in_lake(lake: Path, server: str | None = None) -> pa.Table:
    """All that has landed, in the order of its names."""
    files = [file for file in landed(lake) if server in {None, file.server}]
    return pa.concat_tables(
        pq.read_table(lake / FOLDER / file.name, partitioning=None) for file in files
    )


def assert_exactly_once(lake: Path, server: str, rows: list[Row], first: int = 1) -> None:
    """Every event is there once, in order, each value as the engine told it."""
    expected = columns.table(server, first, EVENT_VERSION, rows)
    found = in_lake(lake, server)
    assert found.column("event_id").to_pylist() == expected.column("event_id").to_pylist()
    assert found.combine_chunks().equals(expected)


@contextlib.contextmanager
def kept(folder: Path, lake: Path) -> Iterator[Kept]:
    made = Kept(folder, lake)
    try:
        yield made
    finally:
        made.stop()
