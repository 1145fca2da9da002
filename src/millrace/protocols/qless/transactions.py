"""Large transactions: EXEC of many commands, or of long ones, in bounded steps.

A transaction that needs one step runs at once: no other command runs in between, and one commit
writes its changes. A larger transaction with changes continues step by step, driven by the hub, so
that it also ends if its client disconnects or does not read. Its record (see redo.py) lets it
continue after a crash or a refused commit. Until it ends, the other clients of the port wait, up to
a maximum number of steps; the clients of other protocols do not wait. No client waits for a larger
transaction without changes.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.engine.timers import UNAVAILABLE_RETRY

from .commands import MAX_REPLY_BYTES, TOO_LARGE, NoReply, Slices
from .edits import MovedJobs
from .errors import ChangeRefused
from .job_replies import PoppedJobs
from .redo import PIECE_SIZE, Position, RedoRecord
from .resp import CommittedReply, EncodedReply, Error, encode, encode_in_slices

if TYPE_CHECKING:
    from .commands import Command
    from .connection import QlessConnection
    from .hub import QlessHub

#: The cost of one step. A short command costs 1, and a slice of a long command ends the step.
STEP_COST: Final = 30
SLICE_COST: Final = STEP_COST
#: Steps of one transaction for which the other clients of the port wait. The maximum number of
#: short commands needs two thirds of them.
MAX_EXCLUSIVE_STEPS: Final = 500
#: The name of the alarm for the next step.
NEXT_STEP: Final = "transactions"


class QueuedCommand(NamedTuple):
    """A command between MULTI and EXEC: its name and arguments."""

    command: "Command"
    words: list[bytes]


class StepReverted(Exception):
    """The store has refused the changes of a step."""


class WorkStep:
    """One slice of a long command. Calling it returns the reply, or itself if there is more."""

    __slots__ = ("work",)

    def __init__(self, work: Slices) -> None:
        self.work = work

    def __call__(self) -> object:
        try:
            next(self.work)
        except StopIteration as ended:
            return ended.value
        return self


class QueuedCommands:
    """The commands of one EXEC."""

    __slots__ = (
        "_connection",
        "_done_before",
        "_engine",
        "_is_long",
        "_is_pop",
        "_moved",
        "_moved_before",
        "_now",
        "_parts",
        "_popped",
        "_queued",
        "_redo",
        "_reverts",
        "_room",
        "_version",
    )

    def __init__(
        self,
        connection: "QlessConnection",
        queued: list[QueuedCommand],
        redo: RedoRecord | None,
        now: int,
    ) -> None:
        self._connection = connection
        self._engine = connection.engine
        self._queued = queued
        #: None if it changes nothing.
        self._redo = redo
        self._now = now
        #: The current command has taken a slice.
        self._is_long = False
        #: The current command is a pop.
        self._is_pop = False
        #: The jobs that the current command has moved.
        self._moved = MovedJobs()
        #: The number of jobs that the next command had moved before a restart or a refused commit.
        self._moved_before = 0
        #: The encoded replies of the commands that are done.
        self._parts: list[bytes] = []
        #: The jobs of each pop, by the number of commands before it.
        self._popped: dict[int, PoppedJobs] = {}
        #: The number of commands that were done before a restart.
        self._done_before = 0
        #: The remaining cost of the current step.
        self._room = STEP_COST
        self._reverts = self._engine.revert_count
        #: The version of the engine before the current step.
        self._version = self._engine.version

    def run(self) -> Slices:
        """Run all commands in order, and yield after each step."""
        connection, redo = self._connection, self._redo
        connection.in_exec = True
        try:
            yield from self._run()
            connection.serve_list_waiters(self._now)
        finally:
            connection.in_exec = False
            if redo is not None and redo.is_large and redo.is_written and redo.position() is None:
                connection.hub.transactions.add(WorkStep(_without_reply(redo.delete())))
        reply = b"".join([b"*%d\r\n" % len(self._parts), *self._parts])
        return (
            CommittedReply(reply) if redo is not None and redo.is_written else EncodedReply(reply)
        )

    def resume(self) -> Slices:
        """Continue a recorded transaction after a restart."""
        assert self._redo is not None
        position = self._redo.position()
        assert position is not None
        self._connection.use_database(position.database)
        # The reply of a pop is lost, so it leases no more jobs.
        self._done_before = position.done + position.pop_in_progress
        self._parts = [b""] * self._done_before
        self._moved_before = position.moved
        return self.run()

    def _run(self) -> Iterator[None]:
        while True:
            try:
                yield from self._run_commands()
                yield from self._end()
            except StepReverted:
                yield from self._rewind()
            else:
                return

    def _run_commands(self) -> Iterator[None]:
        connection, parts, redo = self._connection, self._parts, self._redo
        if redo is not None and redo.is_large and not redo.is_written and self._needs_steps():
            for _ in redo.write():
                yield from self._pause()
        room = MAX_REPLY_BYTES - sum(map(len, parts))
        while len(parts) < len(self._queued):
            command, words = self._queued[len(parts)]
            self._is_long = False
            answer = self._perform(command, words)
            if isinstance(answer, Generator):
                answer = yield from self._finish(answer)
            assert not isinstance(answer, NoReply), "a command in a transaction has an answer"
            encoding = encode_in_slices(answer, connection.resp_version)
            part: bytes = yield from self._finish(encoding)
            if len(part) > room:
                part = encode(Error(TOO_LARGE), connection.resp_version)
            room -= len(part)
            parts.append(part)
            yield from self._count(SLICE_COST if self._is_long else 1)

    def _perform(self, command: "Command", words: list[bytes]) -> Any:
        hub, number = self._connection.hub, len(self._parts)
        hub.is_pop = False
        hub.popped = popped = self._popped.get(number) or PoppedJobs(self._engine)
        hub.moved = self._moved = MovedJobs(self._moved_before)
        self._moved_before = 0
        try:
            return self._connection.perform(command, words[1:], self._now)
        finally:
            hub.popped = hub.moved = None
            self._is_pop = hub.is_pop  # before other commands change it
            if self._is_pop:
                self._popped[number] = popped

    def _needs_steps(self) -> bool:
        return len(self._queued) >= STEP_COST and not self._engine.unavailable_reason

    def _finish(self, work: Generator[None, None, Any]) -> Generator[None, None, Any]:
        """Run all slices of a long command."""
        step = WorkStep(work)
        try:
            while (answer := self._connection.attempt(step)) is step:
                self._is_long = True
                yield from self._count(SLICE_COST, is_done=False)
        finally:
            work.close()
        return answer

    def _count(self, cost: int, *, is_done: bool = True) -> Iterator[None]:
        """End the step if its cost is reached. `is_done`: the current command has ended."""
        self._room -= cost
        if self._room > 0:
            return
        self._room = STEP_COST
        done, connection = len(self._parts), self._connection
        if self._redo is not None and self._engine.version != self._version:
            leases = not is_done and self._is_pop
            moved = 0 if is_done else self._moved.count
            self._redo.move_to(Position(done, connection.database, leases, moved))
        yield from self._pause()

    def _pause(self) -> Iterator[None]:
        yield
        if self._engine.revert_count != self._reverts:
            raise StepReverted
        self._version = self._engine.version

    def _end(self) -> Iterator[None]:
        """Wait until the last step is durable, so that its refusal cannot undo part of the
        transaction.
        """
        redo, engine = self._redo, self._engine
        if redo is None or redo.position() is None:
            return  # one step
        redo.end()
        turn = engine.turn
        self._connection.hub.transactions.release(self._connection)
        while engine.is_turn_uncommitted(turn):
            self._connection.hub.transactions.await_commit()
            yield from self._pause()
        if engine.durable:
            self._connection.caller.must_wait = False

    def _rewind(self) -> Iterator[None]:
        """Continue at the last durable step, as soon as the store is writable. If no step is
        durable, the transaction has had no effect. A pop keeps the jobs of its durable slices.
        """
        self._reverts = self._engine.revert_count
        position = None if self._redo is None else self._redo.position()
        if position is None:
            raise ChangeRefused
        while self._engine.unavailable_reason:
            yield
        del self._parts[max(position.done, self._done_before) :]
        self._moved_before = position.moved
        self._connection.use_database(position.database)
        self._room = STEP_COST
        self._version = self._engine.version


def _without_reply(work: Iterator[None]) -> Slices:
    yield from work
    return None


class RunningTransaction:
    """A transaction after its first step. `owner.attempt_step(step)` returns the result or the
    error of the transaction, or `step` if there is more.
    """

    __slots__ = ("owner", "result", "step", "steps_left")

    def __init__(self, step: WorkStep, owner: "QlessConnection | None") -> None:
        self.step = step
        #: None if no client waits for it.
        self.owner = owner
        self.steps_left = MAX_EXCLUSIVE_STEPS
        #: `step` until the end; None after a defect.
        self.result: object = step

    @property
    def has_ended(self) -> bool:
        return self.result is not self.step


class RunningTransactions:
    """The transactions that are carried out in steps."""

    __slots__ = ("_hub", "_last_number", "_running", "exclusive", "step_waits")

    def __init__(self, hub: "QlessHub") -> None:
        self._hub = hub
        self._last_number = 0
        self._running: list[RunningTransaction] = []
        #: The transaction for which the other clients wait.
        self.exclusive: RunningTransaction | None = None
        #: The last step only waits for a commit or a payload.
        self.step_waits = False

    def new_record(self, queued: list[QueuedCommand], size: int, now: int) -> RedoRecord:
        """Return the record of a new transaction of at most `size` bytes. Its name is unique, even
        across restarts.
        """
        self._last_number += 1
        name = f"{self._hub.started_at}-{self._last_number}"
        commands = [words for _, words in queued]
        if size > PIECE_SIZE:
            size = sum([sum(map(len, words)) for words in commands])
        return RedoRecord(self._hub.engine, name, commands, size, now)

    def start(self, step: WorkStep, owner: "QlessConnection") -> RunningTransaction:
        """Carry out the remaining steps of a transaction."""
        running = self.add(step, owner)
        self.exclusive = running
        return running

    def add(self, step: WorkStep, owner: "QlessConnection | None" = None) -> RunningTransaction:
        """Carry out the steps of work that no other client waits for."""
        running = RunningTransaction(step, owner)
        self._running.append(running)
        self._hub.engine.set_alarm((self._hub, NEXT_STEP), 0)
        return running

    def await_commit(self) -> None:
        """The current step waits for a commit."""
        self._hub.engine.commit_waiters[self._hub] = None
        self.step_waits = True

    def wake(self) -> None:
        """A commit or a read of a payload has ended: continue soon."""
        if self._running:
            self._hub.engine.set_alarm((self._hub, NEXT_STEP), 0)

    def release(self, owner: "QlessConnection") -> None:
        """Let the other clients continue: all changes of the transaction have been made but not yet
        committed.
        """
        if self.exclusive is not None and self.exclusive.owner is owner:
            self.exclusive = None

    def finish(self, running: RunningTransaction, now: int) -> None:
        """Carry out all steps at once, before the first client connects."""
        running.steps_left = 1 << 30
        while self.exclusive is running:
            self.advance(now)

    def advance(self, now: int) -> None:
        """Carry out the next step of each transaction."""
        has_work = False
        payloads = self._hub.engine.payloads
        for running in list(self._running):
            running.steps_left -= 1
            self.step_waits = False
            payloads.awaited = None
            result: object = None
            try:
                owner = running.owner
                result = running.step() if owner is None else owner.attempt_step(running.step)
            finally:
                running.result = result
                if running.has_ended:
                    self._running.remove(running)
                    if running.owner is not None:
                        running.owner.wake(now)
                elif (read := payloads.take_awaited()) is not None:
                    read.owner = self._hub
                    self.step_waits = True
                has_work = has_work or not self.step_waits
                if self.exclusive is running and (running.has_ended or running.steps_left <= 0):
                    self.exclusive = None
        unavailable = bool(self._hub.engine.unavailable_reason)
        if unavailable:
            self.exclusive = None
        if self._running and (has_work or unavailable):
            when = now + UNAVAILABLE_RETRY if unavailable else now
            self._hub.engine.set_alarm((self._hub, NEXT_STEP), when)
