"""A transaction: the commands between ATOMIC and DONE.

Each command is checked when it arrives; the first error becomes the reply. The reply and all
changes follow DONE. After an error the transaction keeps no further commands. Its memory counts as
unfinished input of the connection.
"""

from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.job import NewJob
from millrace.protocols.errors import ClientError

from . import tasks

#: The sizes of records in the original's log.
PUSH_SIZE: Final = 19
BLOCKER_SIZE: Final = 4
ACK_SIZE: Final = 7
#: The approximate memory of an operation besides its bytes.
OPERATION_OVERHEAD: Final = 400
_COMMIT_ERROR_PREFIX: Final = "commit transaction: write to WAL: serialize operation: "


class Transaction:
    __slots__ = (
        "_acknowledged",
        "_command_count",
        "_command_error",
        "_commit_error",
        "_engine",
        "_holder",
        "_max_payload",
        "_max_size",
        "_size",
        "operations",
        "push_count",
    )

    def __init__(self, engine: Engine, holder: str, max_payload: int, max_size: int) -> None:
        self._engine = engine
        self._holder = holder
        #: Limits of the original's log. 0: none.
        self._max_payload = max_payload
        self._max_size = max_size
        #: The operations: tasks to push, and ids of tasks to acknowledge.
        self.operations: list[NewJob | int] = []
        self.push_count = 0
        self._command_count = 0
        self._size = 2
        self._acknowledged: set[int] = set()
        #: The error of a command, and the error of the transaction as a whole.
        self._command_error = ""
        self._commit_error = ""

    @property
    def memory_used(self) -> int:
        """The approximate memory in bytes."""
        return self._size + OPERATION_OVERHEAD * len(self.operations)

    def add_command(self, verb: bytes, payload: bytes) -> None:
        """Check a command, and keep it if all commands so far are valid."""
        if self._command_error:
            return
        number = self._command_count
        self._command_count += 1
        try:
            if verb == b"PUSH":
                self._push(payload)
            elif verb == b"ACK":
                self._ack(payload)
            else:
                self._fail(f"{_verb_text(verb)} is not allowed in transaction.")
        except ClientError as problem:
            self._fail(f"message {number}: {verb.decode()}: {problem}")

    def check(self) -> None:
        """If the transaction has an error, skip the ids of its pushes and raise the error."""
        problem = self._command_error or self._commit_error
        if problem:
            self._engine.skip_seqs(self.push_count)
            raise ClientError(problem)

    def check_rule(self, push: NewJob) -> None:
        """Refuse a push with a queue or a blocker that the rule of the port does not allow."""
        engine = self._engine
        engine.check_queues(push)
        if engine.caller.rule is not None:
            known = [blocker for blocker in push.blockers if blocker > 0]
            engine.check_blockers(tasks.blocker_seqs(known, engine.next_seq))

    def _push(self, payload: bytes) -> None:
        push = tasks.read_push(payload)
        tasks.check_blockers(push, self.push_count)
        self.check_rule(push)
        self.push_count += 1
        if self._commit_error:
            return
        try:
            tasks.check_size(push, self._max_payload)
        except ClientError as problem:
            self._refuse_commit(str(problem))
            return
        names = len(push.queue.encode()) + len(push.kind.encode()) + len(push.dead_queue.encode())
        size = PUSH_SIZE + names + len(push.payload) + BLOCKER_SIZE * len(push.blockers)
        self._keep(push, size)

    def _ack(self, payload: bytes) -> None:
        seq = tasks.read_id(payload, self._engine.next_seq, "ackRequest")
        if seq in self._acknowledged or not self._engine.leases.holds(self._holder, seq):
            self._fail(f"task {seq} not acquired")
            return
        self._acknowledged.add(seq)
        if not self._commit_error:
            self._keep(seq, ACK_SIZE)

    def _keep(self, operation: NewJob | int, size: int) -> None:
        self._size += size
        if 0 < self._max_size < self._size:
            self._refuse_commit("buffer too small: size")
        else:
            self.operations.append(operation)

    def _refuse_commit(self, problem: str) -> None:
        self._commit_error = _COMMIT_ERROR_PREFIX + problem
        self.operations.clear()

    def _fail(self, text: str) -> None:
        self._command_error = text
        self.operations.clear()


def _verb_text(verb: bytes) -> str:
    """The verb in an error: as in the original, U+FFFD for each byte that is not UTF-8."""
    shown = verb.decode("utf-8", "surrogateescape")
    return "".join("\ufffd" if 0xDC80 <= ord(char) <= 0xDCFF else char for char in shown)
