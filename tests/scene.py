"""An engine with a clock that moves only when told, and the words in which tests speak of both."""

from random import Random
from typing import Any

from millrace.engine.batch import Batch
from millrace.engine.engine import Engine
from millrace.engine.events import Event
from millrace.engine.job import FAKTORY, MASENKO, Job, Push
from millrace.engine.policy import SECOND
from millrace.engine.stats import Statistics
from millrace.engine.waiters import Waiter
from millrace.store import Store, StoreFailing, must_write
from millrace.store.changes import decode_any, encode
from millrace.store.recovered import Progress

START = 1_700_000_000 * SECOND


def unit(jid: str = "job-1", queue: str = "default", **fields: Any) -> Push:
    """A push with the least that it needs; `fields` are Push's own."""
    return Push(
        jid=jid,
        queue=queue,
        kind=fields.pop("kind", "SomeJob"),
        payload=fields.pop("payload", b'[1,"two"]'),
        origin=fields.pop("origin", FAKTORY),
        retries=fields.pop("retries", 25),
        lease_for=fields.pop("lease_for", 1800 * SECOND),
        **fields,
    )


class Scene:
    def __init__(self, engine: Engine | None = None, *, dead_max: int = 100_000) -> None:
        self.engine = engine or Engine(Random(1), dead_max=dead_max)
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
        self.engine.wait(waiter, self.now + int(seconds * SECOND))
        return waiter

    def complete(self, job: Job, **more: Any) -> None:
        self.engine.complete(job, self.now, FAKTORY, **more)

    def fail(self, job: Job, group: str = "Oops", message: str = "it broke") -> None:
        self.engine.fail(job, self.now, FAKTORY, group, message, ["line 1", "line 2"])

    def advance(self, seconds: float) -> None:
        """Let time pass, and do everything that falls due."""
        self.now += int(seconds * SECOND)
        self.tick()

    def advance_to(self, moment: int) -> None:
        self.now = max(self.now, moment)
        self.tick()

    def tick(self) -> None:
        while (moment := self.engine.next_timer()) is not None and moment <= self.now:
            self.engine.tick(self.now)

    def events(self) -> list[Event]:
        """What has happened since the batch was last taken."""
        return [Event(*row) for row in self.engine.batch.events]

    def causes(self) -> list[str]:
        return [row[1] for row in self.engine.batch.events]

    def delivered(self) -> list[tuple[Waiter, Job]]:
        """Who got what since this was last asked."""
        deliveries, self.engine.deliveries = self.engine.deliveries, []
        return deliveries

    def timed_out(self) -> list[Waiter]:
        waiters, self.engine.timeouts = self.engine.timeouts, []
        return waiters


class MasenkoScene(Scene):
    """Jobs are Masenko's unless they say otherwise, and have one try; workers are connections, to
    which their leases are bound.
    """

    def push(self, jid: str = "job-1", queue: str = "default", **fields: Any) -> Job:
        fields.setdefault("origin", MASENKO)
        fields.setdefault("retries", 0)
        return super().push(jid, queue, **fields)

    def lease(self, *queues: str, holder: str = "connection-1") -> Job | None:
        self.engine.holders.add(holder)
        return self.engine.lease(queues or ("default",), holder, MASENKO, self.now)

    def disconnect(self, holder: str = "connection-1") -> None:
        """What a hub does when a client is gone."""
        self.engine.holders.discard(holder)
        for job in [job for job in self.engine.leased.values() if job.holder == holder]:
            self.engine.forsake(job, self.now, "the client is gone")


def ready_jids(engine: Engine, queue: str = "default") -> list[str]:
    """The jids of a queue's ready jobs, in the order in which they will be handed out."""
    ready = engine.queues[queue].ready
    return [job.jid for job in ready.first(len(ready))]


# What the server's turn does with a store, without the loop.


def write_turn(batch: Batch, engine: Engine, store: Store) -> None:
    """Commit a turn as the server does: an empty one is not written."""
    if must_write(batch, store):
        store.begin(batch, engine)
        store.commit()


def commit(engine: Engine, store: Store) -> None:
    """End a turn: everything changed so far becomes durable, or StoreFailing."""
    write_turn(engine.take_batch(), engine, store)


def commit_or_revert(engine: Engine, store: Store) -> bool:
    """End a turn; if it cannot be written, put everything back as the store has it."""
    batch = engine.take_batch()
    try:
        write_turn(batch, engine, store)
    except StoreFailing as failing:
        undo(engine, store, [batch, engine.take_batch()], str(failing))
        return False
    return True


def undo(engine: Engine, store: Store, batches: list[Any], reason: str) -> None:
    if any(batch.cleared for batch in batches):
        recovered = store.load()
    else:
        parts = [part for b in batches for part in b.parts()]
        recovered = store.reread({seq for part in parts for seq in part})
    engine.revert(batches, recovered.jobs.values(), recovered.queues)
    recovered.put_counters(engine)
    engine.halted = reason


def recover(store: Store, *, dead_max: int = 100_000, progress: Progress | None = None) -> Engine:
    """An engine with everything the store holds, as the server makes it at its start."""
    engine = Engine(Random(1), dead_max=dead_max)
    recovered = store.load(progress)
    recovered.put_into(engine)
    return engine


def restarted(scene: Scene, store: Store) -> Scene:
    """The same at the same moment, after everything was written down and read back."""
    commit(scene.engine, store)
    again = type(scene)(recover(store, dead_max=scene.engine.dead_max))
    again.now = scene.now
    return again


def refused(scene: Scene, store: Any) -> None:
    """End a turn that cannot be written, as commit_or_revert, and go on as if it then could."""
    store.fail = "commit"
    assert not commit_or_revert(scene.engine, store)
    store.fail = ""
    scene.engine.resume(scene.now)


def durable_state(engine: Engine) -> dict[str, Any]:
    """All that must be the same after a restart, in a form that compares and prints."""
    return {
        "jobs": {seq: decode_any(encode(job)) for seq, job in sorted(engine.jobs.items())},
        "queues": {q.name: q.paused for q in engine.queues.values() if q.known},
        "next_seq": engine.next_seq,
        "processed": engine.totals.processed,
        "failures": engine.totals.failures,
        "statistics": days_of(engine.statistics),
    }


def durable_but_for_seqs(engine: Engine) -> dict[str, Any]:
    """The same, without the next seq: after a revert it may go on, as a seq that was refused need
    not be used.
    """
    state = durable_state(engine)
    state.pop("next_seq")
    return state


def days_of(statistics: Statistics) -> dict[tuple[str, int], Any]:
    return {key: decode_any(encode(day)) for key, day in sorted(statistics.days.items())}
