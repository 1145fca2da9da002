"""Large transactions: several pushes and completions that take effect together, in bounded steps.

A client stages the pushes over several turns. Staged jobs are blocked, so no client can lease one.
`seal` is the commit point: one durable setting records the completions, and that the staged
jobs are released. A timer then carries out a batch per turn. After a restart, or after a refused
commit, a transaction that was not sealed is discarded, and a sealed one continues.
"""

from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from .job import Job, NewJob
from .states import LEASED

if TYPE_CHECKING:
    from .engine import Engine

#: The number of jobs that one turn stages, completes, releases or discards.
TRANSACTION_BATCH_SIZE: Final = 80
#: Settings of sealed transactions: this prefix and the name of the transaction. Loads with such
#: names contain the staged jobs.
TRANSACTION_PREFIX: Final = "transactions/"
TRANSACTION_TIMER: Final = "transactions"


class _Sealed(msgspec.Struct, array_like=True):
    """The completions of a sealed transaction: the protocol, the holder and the seqs."""

    actor: int
    holder: str
    completed: list[int]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Sealed).decode


class Transactions:
    __slots__ = ("_completing", "_engine", "_last_number", "_open", "_sealed")

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._last_number = 0
        #: Transactions that a connected client is staging.
        self._open: set[str] = set()
        #: Sealed transactions with the seqs that they have not completed yet.
        self._sealed: dict[str, _Sealed] = {}
        #: All of these seqs.
        self._completing: set[int] = set()

    def load(self, settings: dict[str, bytes]) -> None:
        """Read the sealed transactions from the settings, at start-up or after a revert."""
        self._sealed = {
            key: _decode(value)
            for key, value in settings.items()
            if key.startswith(TRANSACTION_PREFIX)
        }
        self._completing = {seq for each in self._sealed.values() for seq in each.completed}
        self._set_timer(0)

    def begin(self, now: int) -> str:
        """Open a transaction, and return its name."""
        self._last_number += 1
        name = f"{TRANSACTION_PREFIX}{self._engine.next_seq}-{self._last_number}"
        self._open.add(name)
        return name

    def stage(self, name: str, push: NewJob, now: int) -> Job:
        """Push a job that stays blocked until the transaction is sealed."""
        push.load = name
        return self._engine.arrivals.push(push, now)

    def seal(self, name: str, actor: int, holder: str, completed: list[int], now: int) -> None:
        """Make the transaction take effect: complete jobs of a holder, release the staged jobs."""
        self._open.discard(name)
        self._sealed[name] = sealed = _Sealed(actor, holder, completed)
        self._completing.update(completed)
        self._engine.set_setting(name, _encode(sealed))
        self._set_timer(now)

    def completes(self, seq: int) -> bool:
        """Whether a sealed transaction is about to complete this job."""
        return seq in self._completing

    def is_sealed(self, name: str) -> bool:
        """Whether a sealed transaction has batches left."""
        return name in self._sealed

    def abandon(self, name: str, now: int) -> None:
        """Discard the staged jobs, after the client has disconnected or a step was refused."""
        self._open.discard(name)
        self._set_timer(now)

    def is_abandoned(self, job: Job) -> bool:
        """Whether an abandoned transaction has staged this job, which a timer discards."""
        load = "" if job.extra is None else job.extra.load
        is_finished = load not in self._open and load not in self._sealed
        return load.startswith(TRANSACTION_PREFIX) and is_finished

    def after_restart(self, now: int) -> None:
        """Carry out sealed transactions and discard the others before the first client connects.

        A client saw the whole transaction before the crash, so no client may see only a part of it
        now. The completions come before the leases of connections are returned.
        """
        while self._sealed or self._abandoned():
            self._step(now)

    def tick(self, now: int) -> None:
        """Carry out a batch of a sealed transaction, or discard a batch of an abandoned one."""
        self._step(now)
        self._set_timer(now)

    def _step(self, now: int) -> None:
        name = next(iter(self._sealed), "")
        if name:
            self.carry_out(name, now)
        else:
            staged = self._engine.staged.get(self._abandoned(), {})
            for job in list(islice(staged.values(), TRANSACTION_BATCH_SIZE)):
                self._engine.cancel(job, now)

    def carry_out(self, name: str, now: int) -> None:
        """Complete and release the next batch of a sealed transaction."""
        engine, sealed = self._engine, self._sealed[name]
        left = TRANSACTION_BATCH_SIZE - self._complete(sealed, TRANSACTION_BATCH_SIZE, now)
        with engine.hold_queues(now):
            for job in list(islice(engine.staged.get(name, {}).values(), left)):
                engine.edits.release_from_load(job, now)
        if not sealed.completed and name not in engine.staged:
            del self._sealed[name]
            engine.set_setting(name, None)

    def _complete(self, sealed: _Sealed, limit: int, now: int) -> int:
        """Complete up to `limit` jobs that the holder still has. A crash may have undone a lease,
        so a job that is ready again counts too.
        """
        engine, seqs = self._engine, sealed.completed[:limit]
        del sealed.completed[:limit]
        self._completing.difference_update(seqs)
        for seq in seqs:
            job = engine.jobs.get(seq)
            if job is None or not engine.reclaim(job, sealed.holder, sealed.actor, now):
                continue
            if job.state == LEASED:
                engine.complete(job, now, sealed.actor)
        return len(seqs)

    def _abandoned(self) -> str:
        """The load of a transaction that is neither open nor sealed; empty if there is none."""
        staged = (name for name in self._engine.staged if name.startswith(TRANSACTION_PREFIX))
        return next((n for n in staged if n not in self._open and n not in self._sealed), "")

    def _set_timer(self, now: int) -> None:
        if self._sealed or self._abandoned():
            self._engine.timers.set(TRANSACTION_TIMER, now)
