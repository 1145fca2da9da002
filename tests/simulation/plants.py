"""Mistakes to be put into the server, so that it is known that the simulation finds such."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from fault_plan import Plan

import millrace.protocols.qless.work
from millrace.engine.batch import Batch
from millrace.engine.ready import ReadyQueue
from millrace.engine.transitions import Transitions
from millrace.server.server import Server
from millrace.server.turns import Turns
from millrace.store import SqliteStore

#: Some mistakes show only where certain things happen.
Focus = Callable[[Plan], None]


def a_reply_before_its_commit() -> None:
    def hold(self: Turns, session: Any, replies: list[bytes], marks: list[int]) -> None:
        session.write(replies)
        self.schedule()

    Turns.hold = hold  # type: ignore[method-assign]


def a_lost_wake_up() -> None:
    serve, calls = Transitions.serve, count(1)

    def sometimes(self: Transitions, queue: Any, now: int) -> None:
        if next(calls) % 10:
            serve(self, queue, now)

    Transitions.serve = sometimes  # type: ignore[method-assign]


def half_an_undo() -> None:
    """What was done on top of a batch that could not be written stays."""
    revert = Transitions.revert

    def half(self: Transitions, batches: Iterable[Batch], *more: Any) -> None:
        revert(self, list(batches)[:1], *more)

    Transitions.revert = half  # type: ignore[method-assign]


def whoever_has_it() -> Focus:
    """The end of an attempt is believed to anybody, also to one whose attempt was over."""
    work: Any = millrace.protocols.qless.work
    held = work._held

    def anybodys(q: Any, now: int, jid: str, worker: str, queue: str) -> Any:
        job = q.find(jid)
        return held(q, now, jid, worker if job is None else job.holder, queue)

    work._held = anybodys
    return late_with_qless


def late_with_qless(plan: Plan) -> None:
    plan.working, plan.heartbeat = ["qless"], 2
    plan.clients["worker"] = 8
    plan.manners = (20, 10, 60, 0, 0, 10)


def a_timer_never_armed() -> None:
    arm, calls = Server._arm, count(1)

    def once(self: Server) -> None:
        if next(calls) < 30:
            arm(self)

    Server._arm = once  # type: ignore[method-assign]


def a_commit_that_is_none() -> None:
    commit, calls = SqliteStore.commit, count(1)

    def sometimes(self: SqliteStore) -> None:
        if next(calls) % 20:
            commit(self)
        else:
            self._db.execute("ROLLBACK")

    SqliteStore.commit = sometimes  # type: ignore[method-assign]


def no_sync() -> None:
    begin = SqliteStore.__init__

    def carelessly(self: SqliteStore, folder: Any, **more: Any) -> None:
        begin(self, folder, **more | {"sync": False})

    SqliteStore.__init__ = carelessly  # type: ignore[method-assign]


def the_last_first() -> None:
    pop, calls = ReadyQueue.pop, count(1)

    def sometimes(self: ReadyQueue) -> Any:
        if next(calls) % 10 == 0 and len(self._fifo) > 1 and not self._tombstones:
            return self._fifo.pop()
        return pop(self)

    ReadyQueue.pop = sometimes  # type: ignore[method-assign]


def an_event_too_few() -> None:
    take, calls = Transitions.take_batch, count(1)

    def sometimes(self: Transitions) -> Batch:
        batch = take(self)
        if next(calls) % 20 == 0 and len(batch.events) > 1:
            batch.events.pop(0)
        return batch

    Transitions.take_batch = sometimes  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], Focus | None]] = {
    plant.__name__.replace("_", "-"): plant
    for plant in (
        a_reply_before_its_commit,
        a_lost_wake_up,
        half_an_undo,
        whoever_has_it,
        a_timer_never_armed,
        a_commit_that_is_none,
        no_sync,
        the_last_first,
        an_event_too_few,
    )
}
