"""Limit the clients of a port to some queues: `queues = ["signup*"]` in the section of a protocol.

The rule belongs to the caller. The verbs and views of the engine apply the rule of the current
caller: a command that names another queue raises `QueueRefused`, and a job in another queue is
unknown. A caller without a rule uses all queues.

The components of the engine do not know about rules. They therefore do not call a verb or view that
applies one: a job of a limited client may unblock a job in another queue.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from typing import TYPE_CHECKING, Final

from .errors import QueueRefused
from .job import Job, NewJob
from .jobs_by_seq import JobsBySeq
from .limits import QUEUE_KEY_PREFIX
from .table import JobTable
from .tables import RestrictedTables, Tables

if TYPE_CHECKING:
    from .engine import Engine

#: Maximum number and length of names whose result is remembered.
MAX_CACHED_NAMES: Final = 10_000
MAX_CACHED_LENGTH: Final = 255
#: Names of queues in an error are cut to this length.
MAX_SHOWN_NAME: Final = 100


class QueueRule:
    """The queues that a caller may use: glob patterns with `*`, `?` and `[...]`."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._matches = re.compile("|".join(map(translate, patterns))).match
        self._known: dict[str, bool] = {}
        self._tables: Tables | None = None

    def allows(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None and len(name) > MAX_CACHED_LENGTH:
            return self._matches(name) is not None
        if known is None:
            if len(self._known) >= MAX_CACHED_NAMES:
                self._known.clear()
            known = self._known[name] = self._matches(name) is not None
        return known

    def check(self, name: str) -> None:
        """Refuse a queue that the rule does not allow."""
        if not self.allows(name):
            raise QueueRefused(f"the queue {name[:MAX_SHOWN_NAME]} is not allowed on this port")

    def check_all(self, names: Iterable[str]) -> None:
        """Refuse the queues if the rule disallows any of them."""
        for name in names:
            self.check(name)

    def check_push(self, push: NewJob, jobs: JobsBySeq) -> None:
        """Refuse a job with a queue or a blocker that the rule does not allow."""
        self.check_queues_of(push)
        self.check_blockers(push.blockers, jobs)

    def check_queues_of(self, push: NewJob) -> None:
        """Refuse a job if the rule does not allow its queue, the queue that it moves to after its
        last failure, or a queue whose limit it uses.
        """
        self.check(push.queue)
        if push.dead_queue:
            self.check(push.dead_queue)
        if push.details is not None:
            self.check_limits(push.details.limits)

    def check_blockers(self, blockers: Iterable[int], jobs: JobsBySeq) -> None:
        """Refuse the seqs of jobs in queues that the rule does not allow."""
        for blocker in blockers:
            job = jobs.get(blocker)
            if job is not None and not self.allows(job.queue):
                raise QueueRefused(f"the job {blocker} is in a queue that is not allowed here")

    def check_limits(self, keys: Iterable[str]) -> None:
        """Refuse the limits of queues that the rule does not allow. It allows other limits."""
        for key in keys:
            if key.startswith(QUEUE_KEY_PREFIX):
                self.check(key.removeprefix(QUEUE_KEY_PREFIX))

    def refuse(self, command: str) -> None:
        """Refuse a command that concerns all queues."""
        raise QueueRefused(f"{command} is not allowed on this port: it has a rule for queues")

    def visible_job(self, job: Job | None) -> Job | None:
        """The job, or None if it is in a queue that the rule does not allow."""
        return job if job is not None and self.allows(job.queue) else None

    def visible(self, jobs: Iterable[Job]) -> list[Job]:
        """The jobs in allowed queues."""
        return [job for job in jobs if self.allows(job.queue)]

    def sum(self, counts: Mapping[str, int]) -> int:
        """The sum of the counts of allowed queues."""
        return sum([count for name, count in counts.items() if self.allows(name)])

    def find_below(self, table: JobTable, jid: str, below: int, limit: int) -> list[Job]:
        """Jobs in allowed queues with that jid and a lower seq, the newest first."""
        found = table.find_below(jid, below, limit)
        while found:
            if visible := self.visible(found):
                return visible
            found = table.find_below(jid, found[-1].seq, limit)
        return []

    def tables(self, engine: "Engine") -> Tables:
        """The jobs and queues that the rule allows, for reading."""
        tables = self._tables
        if tables is None:
            tables = self._tables = RestrictedTables(engine, self.allows, self.check)
        return tables


def rule_for(patterns: tuple[str, ...]) -> QueueRule | None:
    """The rule of a port with these patterns; without patterns, it has none."""
    return QueueRule(patterns) if patterns else None
