"""The loop turn and its group commit.

The commands of one turn of the event loop change the engine in memory and collect one change set.
At the end of the turn the store writes it as one transaction: its statements run here, on the
thread of the loop, and only COMMIT, which waits for the disk, on another thread. A reply that
announces a change is held until its transaction is synced. During the sync the next turns fill the
next change set, so a thousand connections share one sync.

A change set that cannot be written is undone in memory as a crash would have undone it, together
with later changes, and its replies become errors. Changes are then refused until the store is
writable again; reads and waiting clients continue.
"""

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from millrace.engine.batch import Batch
from millrace.engine.engine import Engine
from millrace.engine.spans import Measured
from millrace.store import Recovered, Store, StoreError, StoreFailing, must_write

from .commit_thread import CommitThread
from .push_gate import DISK_FULL, PushGate

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger(__name__)

#: Seconds between two attempts to use a failed store again.
PROBE_INTERVAL = 0.5
#: Seconds between two attempts to allocate the reserve file again.
RESERVE_CHECK_INTERVAL = 0.5
#: Without a store, a turn ends only to count its events. This many are counted together.
MAX_UNCOUNTED_EVENTS = 256
#: Events of a change set that takes some milliseconds to write.
LARGE_TURN_EVENTS = 300


class HeldReply(NamedTuple):
    """Replies of one session that wait for a sync; `marks` are those that announce a change."""

    session: "Session"
    replies: list[bytes]
    marks: list[int]


class Turns:
    def __init__(
        self,
        engine: Engine,
        store: Store | None,
        clock: Callable[[], int],
        *,
        resumed: Callable[[], None],
        ended: Callable[[str], None],
        settled: Callable[[], None],
        measured: Measured | None = None,
        gate: PushGate | None = None,
        commits: type[CommitThread] = CommitThread,
    ) -> None:
        self.engine = engine
        self._store = store
        self._clock = clock
        self._resumed = resumed
        self._ended = ended
        self._settled = settled
        self._gate = gate or PushGate(engine)
        self._durations = (measured or Measured()).commits
        #: Start of the running commit.
        self._begun = 0.0
        self._loop = asyncio.get_running_loop()
        #: The turn being filled, and the last one that is durable.
        self.number = 1
        self.synced = 0
        self._held: list[HeldReply] = []
        self._scheduled = False
        self._committing: tuple[Batch, list[HeldReply]] | None = None
        self._idle: asyncio.Future[None] | None = None
        if store is None:
            return
        engine.durable = True
        self._commits = commits(self._loop, self._after_commit)

    @property
    def crowded(self) -> bool:
        """Whether the next change set is large while a commit runs."""
        return self._committing is not None and len(self.engine.batch.events) >= LARGE_TURN_EVENTS

    @property
    def durable(self) -> bool:
        return self._store is not None

    @property
    def is_due(self) -> bool:
        """Whether the turn should end soon. Without a store, only events count."""
        batch = self.engine.batch
        if self._store is None:
            return len(batch.events) >= MAX_UNCOUNTED_EVENTS
        return bool(batch)

    def hold(self, session: "Session", replies: list[bytes], marks: list[int]) -> None:
        """Keep replies back until the turn being filled is synced."""
        self._held.append(HeldReply(session, replies, marks))
        session.pending = self.number
        self.schedule()

    def schedule(self) -> None:
        """Something changed: end the turn after the commands that are already received."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end)

    async def drain(self) -> None:
        """Wait until all changes are written or refused."""
        while self._store is not None and (
            self._committing is not None or self._held or must_write(self.engine.batch, self._store)
        ):
            self.schedule()
            self._idle = self._loop.create_future()
            await self._idle

    def close(self) -> None:
        if self._store is not None:
            self._commits.close()

    # Internal

    def _end(self) -> None:
        self._scheduled = False
        if self._committing is not None:
            return  # the next turn follows its commit
        engine, store = self.engine, self._store
        batch = engine.take_batch()
        held, self._held = self._held, []
        number = self.number
        self.number += 1
        if store is None or not must_write(batch, store):
            self._done(number, held)
            return
        self._committing = (batch, held)
        engine.committing = batch
        self._begun = perf_counter()  # the clock of the loop has only milliseconds
        try:
            store.begin(batch, engine)
        except Exception as error:
            self._after_commit(error)
        else:
            self._commits.commit(store)

    def _after_commit(self, error: Exception | None) -> None:
        assert self._committing is not None
        batch, held = self._committing
        self._committing = self.engine.committing = None
        if error is None:
            self._durations.add(round((perf_counter() - self._begun) * 1_000_000))
            self._done(self.number - 1, held)
            assert self._store is not None
            if self._held or must_write(self.engine.batch, self._store):
                self._end()
        elif isinstance(error, StoreFailing):
            self._undo(batch, held, str(error))
        elif isinstance(error, StoreError):
            self._ended(str(error))
        else:
            # An error in the server: refuse this change set and continue.
            log.error("A change set could not be written.", exc_info=error)
            self._undo(batch, held, "internal error")

    def _done(self, number: int, held: list[HeldReply]) -> None:
        self.synced = number
        joined: dict[Session, list[bytes]] = {}
        for session, replies, _ in held:
            if session in joined:
                joined[session] += replies
            else:
                joined[session] = replies
        for session, replies in joined.items():
            session.write(replies)
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._settled()

    def _undo(self, batch: Batch, held: list[HeldReply], reason: str) -> None:
        """A change set could not be written: restore the committed state."""
        assert self._store is not None
        engine = self.engine
        batches = [batch, engine.take_batch()]
        held += self._held
        self._held = []
        try:
            recovered = self._committed_state(batches)
        except StoreError as error:
            self._ended(str(error))
            return
        engine.revert(batches, recovered.jobs.values(), recovered.queues)
        recovered.put_counters(engine)
        if self._store.release_reserve():
            self._gate.close(DISK_FULL, reason)
            self._loop.call_later(RESERVE_CHECK_INTERVAL, self._restore_reserve)
        if not engine.halted:
            log.error("All changes are refused: %s.", reason)
            self._loop.call_later(PROBE_INTERVAL, self._probe)
        engine.halted = reason
        number = self.number
        self.number += 1
        refused = [
            HeldReply(session, _refused(session, replies, marks, reason), [])
            for session, replies, marks in held
        ]
        self._done(number, refused)

    def _committed_state(self, batches: list[Batch]) -> Recovered:
        assert self._store is not None
        if any(batch.cleared for batch in batches):
            return self._store.load()
        seqs = {seq for b in batches for part in b.parts() for seq in part}
        return self._store.reread(seqs)

    def _probe(self) -> None:
        assert self._store is not None
        if not self._store.probe():
            self._loop.call_later(PROBE_INTERVAL, self._probe)
            return
        log.info("The store is writable again.")
        self.engine.resume(self._clock())
        self._resumed()

    def _restore_reserve(self) -> None:
        """Accept new jobs as soon as the reserve fits on the disk again."""
        assert self._store is not None
        if self.engine.halted or not self._store.restore_reserve():
            self._loop.call_later(RESERVE_CHECK_INTERVAL, self._restore_reserve)
        else:
            self._gate.open(DISK_FULL)


def _refused(
    session: "Session", replies: list[bytes], marks: list[int], reason: str
) -> list[bytes]:
    refused = session.connection.refused
    return [refused(reply, reason) if n in marks else reply for n, reply in enumerate(replies)]
