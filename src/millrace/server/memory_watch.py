"""The memory limit of the process: above `server.max_memory`, new jobs are refused.

Above half of it, the store keeps even small payloads of new jobs outside memory: a server that uses
so much memory has a backlog, and workers take the new jobs last.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from millrace.engine.engine import Engine
from millrace.store.store import Store

from .push_gate import PushGate

#: Fraction of the available memory that a server uses by default.
DEFAULT_FRACTION: Final = 0.75
#: Seconds between two checks.
CHECK_INTERVAL: Final = 0.25
#: New jobs are accepted again when the memory is below this fraction of the limit, or the number of
#: jobs is below this fraction of the number at the refusal: Python reuses the memory of ended jobs
#: but rarely returns it to the system.
RESUME_FRACTION: Final = 0.95
#: Above this fraction of the limit, or of the memory at the last refusal if higher, new jobs
#: are refused regardless of the number of jobs.
HARD_FRACTION: Final = 1.1
#: At or above this fraction of the limit, payloads above `MAX_PAYLOAD_WHILE_PAGING` bytes are
#: stored, until memory or the number of jobs is below `END_PAGING_FRACTION` of its value at that
#: time.
PAGING_FRACTION: Final = 0.5
END_PAGING_FRACTION: Final = 0.9
MAX_PAYLOAD_WHILE_PAGING: Final = 128
CAUSE: Final = "the memory limit"
_CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def available_memory() -> int:
    """The memory of the machine, or the limit of the control group if that is lower; in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():  # "max" means no limit
            total = min(total, int(text))
    return total


def effective_limit(max_memory: int) -> int:
    """The limit in bytes for a configured value; 0 means automatic."""
    return max_memory or int(available_memory() * DEFAULT_FRACTION)


class MemoryWatch:
    def __init__(
        self,
        engine: Engine,
        gate: PushGate,
        memory_mb: Callable[[], int],
        limit: int,
        store: Store | None = None,
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._memory_mb = memory_mb
        self.limit = limit
        self._refusing = False
        #: Number of jobs when the limit was last reached.
        self._jobs_at_limit = 0
        self._used_at_limit = 0
        self._store = store
        self._max_inline_payload = 0 if store is None else store.max_inline_payload
        self._paging = False
        self._jobs_at_paging = 0

    def check(self) -> None:
        """Compare the memory of the process with the limit. Called at short intervals."""
        used, jobs = self._memory_mb() << 20, len(self._engine.jobs)
        if self._store is not None and self._max_inline_payload > MAX_PAYLOAD_WHILE_PAGING:
            self._page(self._store, used, jobs)
        hard_limit = max(self.limit, self._used_at_limit) * HARD_FRACTION
        if self._refusing:
            has_room = jobs < self._jobs_at_limit * RESUME_FRACTION
            if used < self.limit * RESUME_FRACTION or (has_room and used < hard_limit):
                self._refusing = False
                self._gate.remove_cause(CAUSE)
        elif used >= hard_limit or (used >= self.limit and jobs >= self._jobs_at_limit):
            self._refusing = True
            self._jobs_at_limit, self._used_at_limit = jobs, used
            self._gate.add_cause(CAUSE, f"memory limit reached ({self.limit >> 20} MiB)")

    def _page(self, store: Store, used: int, jobs: int) -> None:
        """Keep small payloads of new jobs outside memory while the process uses much of it."""
        start = self.limit * PAGING_FRACTION
        if not self._paging:
            if used >= start and jobs >= self._jobs_at_paging:
                self._paging, self._jobs_at_paging = True, jobs
                store.max_inline_payload = MAX_PAYLOAD_WHILE_PAGING
        elif (
            used < start * END_PAGING_FRACTION or jobs < self._jobs_at_paging * END_PAGING_FRACTION
        ):
            self._paging = False
            store.max_inline_payload = self._max_inline_payload
