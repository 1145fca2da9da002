"""An engine with a virtual clock, and helpers for tests of both."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from millrace.engine.change_set import ChangeSet
from millrace.engine.engine import Engine
from millrace.engine.events import Event
from millrace.engine.job import SECOND, Job, NewJob
from millrace.engine.statistics import Statistics
from millrace.engine.waiters import Waiter
from millrace.protocols.registry import FAKTORY, MASENKO
from millrace.protocols.spec import protocol_rules
from millrace.store import Store, StoreWriteFailed, must_write
from millrace.store.records import PAYLOAD_INDEX, decode_any, encode
from millrace.store.store import Progress, release_payloads

START = 1_700_000_000 * SECOND


def unit(jid: str = "job-1", queue: str = "default", **fields: Any) -> NewJob:
    """A minimal push; `fields` are fields of NewJob."""
    return NewJob(
        jid=jid,
        queue=queue,
        kind=fields.pop("kind", "SomeJob"),
        payload=fields.pop("payload", b'[1,"two"]'),
        origin=fields.pop("origin", FAKTORY),
        retries=fields.pop("retries", 25),
        lease_duration=fields.pop("lease_duration", 1800 * SECOND),
        **fields,
    )


class Scene:
    def __init__(self, engine: Engine | None = None, *, dead_max: int = 100_000) -> None:
        self.engine = engine or Engine(Random(1), protocol_rules(), dead_max=dead_max)
        self.now = START

    def push(self, jid: str = "job-1", queue: str = "default", **fields: Any) -> Job:
        return self.engine.push(unit(jid, queue, **fields), self.now)

    def lease(self, *queues: str, holder: str = "worker-1") -> Job | None:
        return self.engine.lease(queues or ("default",), holder, FAKTORY, self.now)

    def pushed_and_leased(self, jid: str = "job-1", queue: str = "default", **fields: Any) -> Job:
        job = self.push(jid, queue, **fields)
        assert self.lease(queue) is job, "another job was before it"
        return job

    def wait(self, *queues: str, seconds: float = 2, holder: str = "worker-1") -> Waiter:
        waiter = Waiter(queues or ("default",), holder, FAKTORY, None)
        self.engine.add_waiter(waiter, self.now + int(seconds * SECOND))
        return waiter

    def complete(self, job: Job, **more: Any) -> None:
        self.engine.complete(job, self.now, FAKTORY, **more)

    def fail(self, job: Job, group: str = "Oops", message: str = "it broke") -> None:
        self.engine.fail(job, self.now, FAKTORY, group, message, ["line 1", "line 2"])

    def advance(self, seconds: float) -> None:
        """Advance the clock, and execute everything that becomes due."""
        self.now += int(seconds * SECOND)
        self.tick()

    def advance_to(self, moment: int) -> None:
        self.now = max(self.now, moment)
        self.tick()

    def tick(self) -> None:
        while (moment := self.engine.next_timer()) is not None and moment <= self.now:
            self.engine.tick(self.now)

    def events(self) -> list[Event]:
        """The events since the last change set was taken."""
        return [Event(*row) for row in self.engine.change_set.events]

    def causes(self) -> list[str]:
        return [row[1] for row in self.engine.change_set.events]

    def delivered(self) -> list[tuple[Waiter, Job]]:
        """The deliveries since the last call."""
        deliveries, self.engine.waiters.deliveries = self.engine.waiters.deliveries, []
        return deliveries

    def timed_out(self) -> list[Waiter]:
        waiters, self.engine.waiters.timeouts = self.engine.waiters.timeouts, []
        return waiters


class MasenkoScene(Scene):
    """Jobs have the origin Masenko by default, and one attempt; workers are connections, which hold
    their leases.
    """

    def push(self, jid: str = "job-1", queue: str = "default", **fields: Any) -> Job:
        fields.setdefault("origin", MASENKO)
        fields.setdefault("retries", 0)
        return super().push(jid, queue, **fields)

    def lease(self, *queues: str, holder: str = "connection-1") -> Job | None:
        self.engine.leases.holders.add(holder)
        return self.engine.lease(queues or ("default",), holder, MASENKO, self.now)

    def disconnect(self, holder: str = "connection-1") -> None:
        """The action of a hub when a client disconnects."""
        self.engine.leases.holders.discard(holder)
        for job in [job for job in self.engine.leased.values() if job.holder == holder]:
            self.engine.leases.end_after_disconnect(job, self.now, "the client is gone")


@contextmanager
def own_clock(scene: Scene, ahead: int) -> Iterator[int]:
    """The time of a client whose clock is ahead of the server's, for the commands in the block."""
    caller = scene.engine.caller
    caller.use_own_clock(scene.now + ahead, scene.now)
    try:
        yield scene.now + ahead
    finally:
        caller.own_clock = False


def ready_jids(engine: Engine, queue: str = "default") -> list[str]:
    """The jids of a queue's ready jobs, in lease order."""
    ready = engine.queues[queue].ready
    return [job.jid for job in ready.first(len(ready))]


# The steps of the server's turn with a store, without the loop.


def write_turn(batch: ChangeSet, engine: Engine, store: Store) -> None:
    """Commit a turn as the server does: an empty one is not written."""
    if must_write(batch, store):
        store.prepare(batch, engine)
        store.commit()
        engine.payloads.reader = store.payload_reader
        release_payloads(store, engine)


def commit(engine: Engine, store: Store) -> None:
    """End a turn: everything changed so far becomes durable, or StoreWriteFailed."""
    write_turn(engine.take_changes(), engine, store)


def commit_or_revert(engine: Engine, store: Store) -> bool:
    """End a turn; if it cannot be written, restore the state of the store."""
    batch = engine.take_changes()
    try:
        write_turn(batch, engine, store)
    except StoreWriteFailed as failing:
        undo(engine, store, [batch, engine.take_changes()], str(failing))
        return False
    return True


def undo(engine: Engine, store: Store, batches: list[Any], reason: str) -> None:
    if any(batch.cleared for batch in batches):
        recovered = store.load()
    else:
        parts = [part for b in batches for part in b.touched_seqs()]
        recovered = store.load_jobs({seq for part in parts for seq in part})
    engine.revert(batches, recovered.jobs.values(), recovered.queues)
    recovered.fill_counters(engine)
    engine.unavailable_reason = reason


def recover(store: Store, *, dead_max: int = 100_000, progress: Progress | None = None) -> Engine:
    """An engine with the contents of the store, as the server creates it at its start."""
    engine = Engine(Random(1), protocol_rules(), dead_max=dead_max)
    recovered = store.load(progress, engine.jobs)
    recovered.fill(engine)
    engine.payloads.reader = store.payload_reader
    return engine


def restarted(scene: Scene, store: Store) -> Scene:
    """The same scene at the same time, after everything was written and read back."""
    commit(scene.engine, store)
    again = type(scene)(recover(store, dead_max=scene.engine.retention.dead_max))
    again.now = scene.now
    return again


def refused(scene: Scene, store: Any) -> None:
    """End a turn that cannot be written, like commit_or_revert, and continue with a working
    store.
    """
    store.fail = "commit"
    assert not commit_or_revert(scene.engine, store)
    store.fail = ""
    scene.engine.resume(scene.now)


def durable_state(engine: Engine) -> dict[str, Any]:
    """All state that must be the same after a restart, in a form for comparison and output."""
    return {
        "jobs": {seq: _whole_row(engine, job) for seq, job in sorted(engine.jobs.items())},
        "queues": {q.name: q.paused for q in engine.queues.values() if q.registered},
        "next_seq": engine.next_seq,
        "processed": engine.totals.processed,
        "failures": engine.totals.failures,
        "statistics": days_of(engine.statistics),
    }


def _whole_row(engine: Engine, job: Job) -> list[Any]:
    """The row of a job with its payload, which may live in the store."""
    row: list[Any] = decode_any(encode(job))
    row[PAYLOAD_INDEX] = engine.payload(job)
    return row


def durable_but_for_seqs(engine: Engine) -> dict[str, Any]:
    """The same, without the next seq: after a revert it may be higher, because a refused seq need
    not be reused.
    """
    state = durable_state(engine)
    state.pop("next_seq")
    return state


def days_of(statistics: Statistics) -> dict[tuple[str, int], Any]:
    return {key: decode_any(encode(day)) for key, day in sorted(statistics.days.items())}
