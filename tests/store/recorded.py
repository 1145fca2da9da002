"""A recorded run of a store: every write to its folder, and the expected state after each commit.
The run has its own process (`record_work`), because a preloaded library records it.
"""

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import millrace.store.sqlite.generations
from disk.recording import NOTE, WRITES, Operation, Recorder, preloaded, read_record
from failing_stores import FailingSqliteStore
from older_formats import downgrade
from scene import SECOND, Scene, commit_or_revert, durable_state, recover

#: Everything that a restart must restore.
State = dict[str, Any]


class Work(NamedTuple):
    """The recorded writes, and the expected state by turn; turn 0 is before the first write."""

    operations: list[Operation]
    before: dict[str, bytes]
    states: dict[int, State]
    #: After each operation: the last turn with a completed commit.
    acknowledged: list[int]


def state_of(store: FailingSqliteStore, scene: Scene) -> State:
    """The complete loaded state, with the events that are not yet shipped. Rows before the first of
    them may reappear with an old page; no reader uses them.
    """
    kept = "SELECT * FROM outbox WHERE first >= ? ORDER BY first"
    return {
        **durable_state(scene.engine),
        "queues in order": [q.name for q in scene.engine.queues.values() if q.registered],
        "notes": dict(scene.engine.settings),
        "outbox": store._db.execute(kept, (store._summary.first_event,)).fetchall(),
    }


class Worker:
    """Applies random operations to a store; some commits fail."""

    def __init__(self, folder: Path, recorder: Recorder, seed: int, **options: Any) -> None:
        self.folder, self.recorder, self.options = folder, recorder, options
        self.rng = Random(seed)
        self.states: dict[int, State] = {}
        self.pushed = 0
        self.open()

    def open(self) -> None:
        self.store = FailingSqliteStore(self.folder, outbox_max=20_000, **self.options)
        self.store._db.execute("PRAGMA wal_autocheckpoint = 30")
        self.store._db.execute("PRAGMA journal_size_limit = 50000")
        self.scene = Scene(recover(self.store))
        self.states[self.store._turn] = state_of(self.store, self.scene)

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def turn(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            self.rng.choice(
                (self.push, self.push, self.push, self.lease, self.lease, self.pause, self.note)
            )()
        if self.rng.random() < 0.04:
            self.recorder.fail(
                WRITES, self.rng.choice((errno.ENOSPC, errno.EIO)), after=self.rng.randint(0, 6)
            )
        done = commit_or_revert(self.scene.engine, self.store)
        self.recorder.heal()
        if done:
            self.states[self.store._turn] = state_of(self.store, self.scene)
            self.recorder.note(str(self.store._turn))
        else:
            self.scene.engine.resume(self.scene.now)

    def push(self) -> None:
        self.pushed += 1
        size = self.rng.choice((10, 10, 100, 1000, 9000))
        self.scene.push(
            f"job-{self.pushed}",
            self.rng.choice("abc"),
            payload=self.rng.randbytes(size),
            retries=self.rng.choice((0, 1, 25)),
        )

    def lease(self) -> None:
        job = self.scene.lease(*self.rng.sample("abc", 3))
        if job is None:
            return
        self.scene.now += self.rng.randint(0, 10) * SECOND
        if self.rng.random() < 0.6:
            self.scene.complete(job)
        elif self.rng.random() < 0.5:
            self.scene.fail(job)

    def pause(self) -> None:
        queue = self.rng.choice("abcd")
        if self.rng.random() < 0.2:
            self.scene.engine.remove_queue(queue, self.scene.now)
        else:
            self.scene.engine.pause(queue, paused=self.rng.random() < 0.3, now=self.scene.now)

    def note(self) -> None:
        value = None if self.rng.random() < 0.3 else self.rng.randbytes(30)
        self.scene.engine.set_setting(f"note/{self.rng.randint(1, 5)}", value)


def small_generations() -> None:
    millrace.store.sqlite.generations.GENERATION_JOBS = 12
    millrace.store.sqlite.generations.GENERATION_BYTES = 8000
    FailingSqliteStore.max_write_back = 4


def main() -> None:
    folder, target, turns, seed, version = (
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        *map(int, sys.argv[3:]),
    )
    small_generations()
    recorder = Recorder()
    before: dict[str, bytes] = {}
    if version:
        worker = Worker(folder, recorder, seed, max_inline_payload=1 << 30)
        for _ in range(20):
            worker.turn()
        worker.store.close()
        downgrade(folder, version)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with recorder.record(folder, target / "log"):
        worker = Worker(folder, recorder, seed)
        for number in range(turns):
            worker.turn()
            if number % 30 == 29:
                worker.reopen()
            if number % 50 == 49:
                worker.scene.engine.flush(worker.scene.now)
    (target / "states").write_bytes(pickle.dumps((before, worker.states)))


def record_work(target: Path, *, turns: int, seed: int, version: int = 0) -> Work:
    """Run a store for this number of turns; first on a folder of an older format, if one is given."""
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, *sys.path])
    subprocess.run(
        [sys.executable, __file__, target / "data", target, str(turns), str(seed), str(version)],
        env=preloaded({**os.environ, "PYTHONPATH": path}),
        check=True,
        timeout=300,
    )
    before, states = pickle.loads((target / "states").read_bytes())
    operations = read_record(target / "log")
    acknowledged, turn = [], 0
    for operation in operations:
        turn = int(operation.data) if operation.kind == NOTE else turn
        acknowledged.append(turn)
    return Work(operations, before, states, acknowledged)


if __name__ == "__main__":
    main()
