"""Defects that tests insert into the server to show that the simulation finds them."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from fault_plan import Plan

import millrace.protocols.qless.attempts
from millrace.engine.assignments import Assignments
from millrace.engine.change_set import ChangeSet
from millrace.engine.engine import Engine
from millrace.engine.ready import ReadyQueue
from millrace.server.server import Server
from millrace.server.turns import Turns
from millrace.store import SqliteStore

#: Some defects only appear under certain conditions.
Focus = Callable[[Plan], None]


def a_reply_before_its_commit() -> None:
    def hold(self: Turns, session: Any, replies: list[Any]) -> None:
        session.write(replies)
        self.schedule()

    Turns.hold = hold  # type: ignore[method-assign]


def a_lost_wake_up() -> None:
    serve, calls = Assignments.serve_waiters, count(1)

    def sometimes(self: Assignments, queue: Any, now: int) -> None:
        if next(calls) % 10:
            serve(self, queue, now)

    Assignments.serve_waiters = sometimes  # type: ignore[method-assign]


def partial_undo() -> None:
    """Changes on top of a failed batch are not undone."""
    revert = Engine.revert

    def half(self: Engine, batches: Iterable[ChangeSet], *more: Any) -> None:
        revert(self, list(batches)[:1], *more)

    Engine.revert = half  # type: ignore[method-assign]


def any_worker_ends() -> Focus:
    """Any worker can end an attempt, even if its own attempt is over."""
    attempts: Any = millrace.protocols.qless.attempts
    held = attempts._find_held_job

    def any_lease(q: Any, now: int, jid: str, worker: str, queue: str) -> Any:
        job = q.find(jid)
        return held(q, now, jid, worker if job is None else job.holder, queue)

    attempts._find_held_job = any_lease
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


def commit_without_write() -> None:
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


def newest_first() -> None:
    pop, calls = ReadyQueue.pop, count(1)

    def sometimes(self: ReadyQueue) -> Any:
        if next(calls) % 10 == 0 and len(self._fifo) > 1 and not self._tombstones:
            return self._fifo.pop()
        return pop(self)

    ReadyQueue.pop = sometimes  # type: ignore[method-assign]


def missing_event() -> None:
    take, calls = Engine.take_changes, count(1)

    def sometimes(self: Engine) -> ChangeSet:
        batch = take(self)
        if next(calls) % 20 == 0 and len(batch.events) > 1:
            batch.events.pop(0)
        return batch

    Engine.take_changes = sometimes  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], Focus | None]] = {
    plant.__name__.replace("_", "-"): plant
    for plant in (
        a_reply_before_its_commit,
        a_lost_wake_up,
        partial_undo,
        any_worker_ends,
        a_timer_never_armed,
        commit_without_write,
        no_sync,
        newest_first,
        missing_event,
    )
}
