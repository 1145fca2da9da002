"""Long lists of dependencies: found in slices, and added to their job at once."""

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

from millrace.engine.job import Job
from millrace.protocols.registry import QLESS

from . import lua_values as lua
from .arguments import as_jid
from .state import QlessState

#: A JSON list of this size may name many jobs.
LONG_LIST: Final = 8192
#: The number of names that one slice looks up.
NAMES_PER_SLICE: Final = 100


class StagedJobs:
    """The dependencies of one job, before they take effect."""

    def __init__(self, q: QlessState, jid: str, origin: int) -> None:
        self._q = q
        self._jid = jid
        self._dependencies = q.engine.dependencies
        self._staged = self._dependencies.stage(origin)
        self._waits_for_itself = False
        #: Whether the list names a job. An empty list changes no dependencies.
        self.has_names = False

    def find(self, names: Iterable[str]) -> Generator[None, None, None]:
        """Look up jobs in slices. Unknown and completed jobs are ignored."""
        for count, name in enumerate(names, 1):
            self.has_names = True
            if name == self._jid:
                self._waits_for_itself = True
            elif (job := self._q.find(name)) is not None:
                self._dependencies.add_staged(self._staged, job.seq)
            if count % NAMES_PER_SLICE == 0:
                yield

    def find_listed(self, option: bytes) -> Generator[None, None, None]:
        """Look up the jobs of a JSON list."""
        for piece in lua.pieces_of_list(option):
            yield
            yield from self.find(map(as_jid, piece))

    def first(self, seq: int) -> list[int]:
        """Return one blocker of the job with this seq, if any. It blocks the job until `block`."""
        waiting, origin = self._staged.waiting, self._staged.origin
        if self._waits_for_itself:
            waiting[seq] = None
        for blocker in waiting:
            if blocker == seq or self._dependencies.can_block(blocker, origin):
                return [blocker]
        return []

    def block(self, job: Job) -> None:
        """Add all dependencies to a blocked job."""
        self._q.engine.block_staged(job, self._staged)

    def end(self) -> None:
        """Forget the dependencies if they did not take effect."""
        if not self._staged.seq:
            self._dependencies.drop_staged(self._staged)


def with_staged(
    q: QlessState, jid: str, depends: bytes, change: Callable[[StagedJobs], Any]
) -> Generator[None, None, Any]:
    """Find the jobs of the option `depends` in slices, then make a change that needs them."""
    job = q.find(jid)
    staged = StagedJobs(q, jid, QLESS if job is None else job.origin)
    try:
        yield from staged.find_listed(depends)
        return change(staged)
    finally:
        staged.end()
