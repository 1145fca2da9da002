"""The loop turn and its group commit.

The commands of one turn of the event loop change the engine in memory and collect their changes in
one change set. At the end of the turn the store writes it as one transaction: its statements run
here, on the thread of the loop, and `Store.commit`, which waits for the disk, on another thread. A
reply that announces a change is held until its transaction is synced. During the sync the next
turns fill the next change set, so a thousand connections share one sync.

No reply announces that a lease is durable. A change set that contains only leases therefore waits
for the next change, but only for a short time: a crash can undo the leases that are not written.

A change set that cannot be written is undone in memory as a crash would have undone it, together
with later changes, and its replies become errors. Changes are then refused until the store is
writable again; reads and waiting clients continue.
"""

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from millrace.engine.change_set import ChangeSet
from millrace.engine.durations import ServerDurations
from millrace.engine.engine import Engine
from millrace.protocols.connection import Connection, Reply
from millrace.store import Store, StoreError, StoreSnapshot, StoreWriteFailed, must_write
from millrace.store.store import release_payloads

from .commit_thread import CommitThread
from .push_gate import DISK_FULL, PushGate

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger(__name__)

#: Seconds between two attempts to use a failed store again.
PROBE_INTERVAL = 0.5
#: Seconds between two attempts to allocate the reserve file again.
RESERVE_CHECK_INTERVAL = 0.5
#: A turn with this many events ends even if no reply waits for it. Without a store, ending a turn
#: is cheap (it only counts the events), so a turn with this many changes but no events ends too.
#: With a store, such a turn can contain only leases.
MAX_UNAWAITED_EVENTS = 256
#: A turn with a lease ends after this number of seconds.
LEASE_COMMIT_DELAY = 0.01
#: After a commit with this number of replies, the next turn ends a little later. With few clients,
#: the passes of the loop would cost more than a shared commit saves.
MIN_REPLIES_TO_WAIT = 8
#: The number of events or edits of a change set that takes a few milliseconds to write.
LARGE_TURN_CHANGES = 300
#: The same for changed queues: each is a row of its own, and takes as long as two events.
LARGE_TURN_QUEUES = 150


#: Replies of one session that wait for a sync.
HeldReplies = tuple["Session", list[Reply]]


class Turns:
    def __init__(
        self,
        engine: Engine,
        store: Store | None,
        clock: Callable[[], int],
        *,
        on_resume: Callable[[], None],
        on_fatal_error: Callable[[str], None],
        on_turn_end: Callable[[], None],
        measured: ServerDurations | None = None,
        gate: PushGate | None = None,
        commits: type[CommitThread] = CommitThread,
    ) -> None:
        self.engine = engine
        self._store = store
        self.durable = store is not None
        self._clock = clock
        self._resumed = on_resume
        self._failed = on_fatal_error
        self._turn_finished = on_turn_end
        self._gate = gate or PushGate(engine)
        self._durations = (measured or ServerDurations()).commits
        #: Start of the running commit.
        self._commit_started_at = 0.0
        self._loop = asyncio.get_running_loop()
        #: The turn being filled, and the last one that is durable.
        self.number = 1
        self.synced = 0
        self._held: list[HeldReplies] = []
        #: The turn ends as soon as no commit runs.
        self.due = False
        self._delaying = False
        self._committing: tuple[ChangeSet, list[HeldReplies]] | None = None
        self._idle: asyncio.Future[None] | None = None
        engine.records_transitions = store is not None
        if store is None:
            return
        engine.durable = True
        engine.payloads.reader = store.payload_reader
        self._commits = commits(self._loop, self._after_commit)

    @property
    def is_change_set_large(self) -> bool:
        """Whether the next change set is large while a commit runs."""
        changes = self.engine.change_set
        return self._committing is not None and (
            len(changes.events) >= LARGE_TURN_CHANGES
            or len(changes.queues) >= LARGE_TURN_QUEUES
            or changes.edits >= LARGE_TURN_CHANGES
        )

    def hold(self, session: "Session", replies: list[Reply]) -> None:
        """Hold replies until the turn being filled is synced."""
        self._held.append((session, replies))
        session.pending_turn = self.number
        if not self.due:
            self.schedule()

    def schedule(self) -> None:
        """End the turn after the commands that are already received, because something changed."""
        if not self.due:
            self.due = True
            if self._committing is None:
                self._loop.call_soon(self._end)

    def end_soon(self) -> None:
        """End the turn a little later, because only leases changed; sooner if a reply waits."""
        if not self._delaying:
            self._delaying = True
            self._loop.call_later(LEASE_COMMIT_DELAY, self._delay_ended)

    async def drain(self) -> None:
        """Wait until all changes are written or refused."""
        while self._store is not None and (
            self._committing is not None
            or self._held
            or must_write(self.engine.change_set, self._store)
        ):
            self.schedule()
            self._idle = self._loop.create_future()
            await self._idle

    def close(self) -> None:
        if self._store is not None:
            self._commits.close()

    # Internal

    def _delay_ended(self) -> None:
        self._delaying = False
        if self.engine.change_set:
            self.schedule()

    def _end_after_pass(self) -> None:
        """A commit with many replies has ended. The next turn ends two passes of the loop later:
        commands that arrive while the loop writes the replies share the next commit.
        """
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        if self._committing is not None:
            return  # `_after_commit` ended the turn first, and ends the next one if it is due
        self.due = False
        engine, store = self.engine, self._store
        change_set = engine.take_changes()
        held, self._held = self._held, []
        number = self.number
        self.number += 1
        if store is None or not must_write(change_set, store):
            self._send_held(number, held)
            return
        self._committing = (change_set, held)
        engine.committing = change_set
        self._commit_started_at = perf_counter()  # the clock of the loop counts only milliseconds
        try:
            store.prepare(change_set, engine)
        except Exception as error:
            self._after_commit(error)
        else:
            self._commits.commit(store)

    def _after_commit(self, error: Exception | None) -> None:
        assert self._committing is not None
        change_set, held = self._committing
        self._committing = self.engine.committing = None
        if error is None:
            self._durations.add(round((perf_counter() - self._commit_started_at) * 1_000_000))
            assert self._store is not None
            release_payloads(self._store, self.engine)
            shares = self.due and len(held) >= MIN_REPLIES_TO_WAIT
            try:
                self._send_held(self.number - 1, held)
            finally:  # `schedule` does nothing while a turn is due, so the turn would never end.
                if shares:
                    self._loop.call_soon(self._end_after_pass)
                elif (
                    self.due
                    or self._store.outbox.has_shipped_events
                    or not self.engine.change_set.has_only_leases
                ):
                    self._end()
        elif isinstance(error, StoreWriteFailed):
            self._undo(change_set, held, str(error))
        elif isinstance(error, StoreError):
            self._failed(str(error))
        else:
            # An error in the server: refuse this change set and continue.
            log.error("A change set could not be written.", exc_info=error)
            self._undo(change_set, held, "internal error")

    def _send_held(self, number: int, held: list[HeldReplies]) -> None:
        self.synced = number
        joined: dict[Session, list[Reply]] = {}
        for session, replies in held:
            if session in joined:
                joined[session] += replies
            else:
                joined[session] = replies
        for session, replies in joined.items():
            try:
                session.write(replies)
            except Exception as error:
                session.abort_after_error(error)
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._turn_finished()

    def _undo(self, change_set: ChangeSet, held: list[HeldReplies], reason: str) -> None:
        """Restore the committed state, because a change set could not be written."""
        assert self._store is not None
        engine = self.engine
        change_sets = [change_set, engine.take_changes()]
        self.due = False
        held += self._held
        self._held = []
        try:
            recovered = self._committed_state(change_sets)
        except StoreError as error:
            self._failed(str(error))
            return
        engine.revert(change_sets, recovered.jobs.values(), recovered.queues)
        recovered.fill_counters(engine)
        if self._store.release_reserve():
            self._gate.add_cause(DISK_FULL, reason)
            self._loop.call_later(RESERVE_CHECK_INTERVAL, self._restore_reserve)
        if not engine.unavailable_reason:
            log.error("All changes are refused: %s.", reason)
            self._loop.call_later(PROBE_INTERVAL, self._probe)
        engine.unavailable_reason = reason
        number = self.number
        self.number += 1
        refused = [
            (session, refused_replies(session.connection, replies, reason))
            for session, replies in held
        ]
        self._send_held(number, refused)

    def _committed_state(self, change_sets: list[ChangeSet]) -> StoreSnapshot:
        assert self._store is not None
        if any(change_set.cleared for change_set in change_sets):
            return self._store.load()
        seqs = {seq for b in change_sets for part in b.touched_seqs() for seq in part}
        return self._store.load_jobs(seqs)

    def _probe(self) -> None:
        assert self._store is not None
        if not self._store.can_write():
            self._loop.call_later(PROBE_INTERVAL, self._probe)
            return
        log.info("The store is writable again.")
        self.engine.resume(self._clock())
        self._resumed()

    def _restore_reserve(self) -> None:
        """Accept new jobs as soon as the reserve fits on the disk again."""
        assert self._store is not None
        if self.engine.unavailable_reason or not self._store.restore_reserve():
            self._loop.call_later(RESERVE_CHECK_INTERVAL, self._restore_reserve)
        else:
            self._gate.remove_cause(DISK_FULL)


def refused_replies(connection: Connection, replies: list[Reply], reason: str) -> list[Reply]:
    """The replies to send after their commit failed. Messages that waited for it are dropped."""
    return [
        Reply(connection.unavailable_reply(reason), must_wait=False) if reply.must_wait else reply
        for reply in replies
        if not (reply.must_wait and reply.drop_if_refused)
    ]
