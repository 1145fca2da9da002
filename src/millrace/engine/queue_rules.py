"""Limit the clients of a port to some queues: `queues = ["signup*"]` in the section of a protocol.

The rule belongs to the caller. The verbs and views of the engine apply the rule of the current
caller: a command that names another queue raises `QueueRefused`, and a job in another queue is
unknown. A caller without a rule uses all queues.

The components of the engine know no rules. They therefore do not call a verb or view that applies
one: a job of a limited client may unblock a job in another queue.
"""

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import TYPE_CHECKING, Final

from .errors import QueueRefused
from .job import Job
from .tables import RestrictedTables, Tables

if TYPE_CHECKING:
    from .engine import Engine

#: Maximum number of names whose result is remembered.
MAX_CACHED_NAMES: Final = 10_000
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
        if known is None:
            if len(self._known) >= MAX_CACHED_NAMES:
                self._known.clear()
            known = self._known[name] = self._matches(name) is not None
        return known

    def check(self, name: str) -> None:
        """Refuse a queue that the rule does not allow."""
        if not self.allows(name):
            raise QueueRefused(f"the queue {name[:MAX_SHOWN_NAME]} is not allowed on this port")

    def visible(self, jobs: Iterable[Job]) -> list[Job]:
        """The jobs in allowed queues."""
        return [job for job in jobs if self.allows(job.queue)]

    def tables(self, engine: "Engine") -> Tables:
        """The jobs and queues that the rule allows, for reading."""
        tables = self._tables
        if tables is None:
            tables = self._tables = RestrictedTables(engine, self.allows, self.check)
        return tables


def rule_for(patterns: tuple[str, ...]) -> QueueRule | None:
    """The rule of a port with these patterns; without patterns, it has none."""
    return QueueRule(patterns) if patterns else None
