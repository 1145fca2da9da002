"""Names of jobs and queues in the 16 Redis databases.

Names of database 5 have the prefix `db5:` in the engine, and names of database 0 have no prefix.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from millrace.engine.job import Job
from millrace.engine.limits import QUEUE_KEY_PREFIX

if TYPE_CHECKING:
    from .hub import QlessHub

_DATABASE: Final = re.compile(r"db(?:[1-9]|1[0-5]):")


def database_prefix(number: int) -> str:
    return f"db{number}:" if number else ""


def database_of(name: str) -> str:
    """Return the database prefix of a name in the engine. It is empty for database 0."""
    found = _DATABASE.match(name)
    return "" if found is None else found[0]


class DatabaseNames:
    """The names in the database of the current command."""

    hub: "QlessHub"

    def engine_name(self, name: str) -> str:
        """Return the name in the engine for a name that a client sent."""
        return self.hub.prefix + name

    def queue_name(self, name: str) -> str:
        """Return the name in the engine for a queue that a client named. The port may refuse it."""
        name, rule = self.hub.prefix + name, self.hub.rule
        if rule is not None:
            rule.check(name)
        return name

    def client_name(self, name: str) -> str:
        """Return the name that clients use for a name in the engine."""
        prefix = self.hub.prefix
        return name.removeprefix(prefix) if prefix else name

    def client_jids(self, jobs: Iterable[Job]) -> list[str]:
        """Return the ids that clients use for these jobs."""
        prefix = self.hub.prefix
        jids = [job.jid for job in jobs]
        return [jid.removeprefix(prefix) for jid in jids] if prefix else jids

    def is_in_database(self, name: str) -> bool:
        """Return whether a name belongs to the current database."""
        prefix = self.hub.prefix
        if prefix:
            return name.startswith(prefix)
        return not name.startswith("db") or database_of(name) == ""

    def throttle_name(self, tid: str) -> str:
        """Return the name in the engine for a throttle that a client named. The port may refuse the
        throttle of a queue.
        """
        if tid.startswith(QUEUE_KEY_PREFIX):
            return QUEUE_KEY_PREFIX + self.queue_name(tid.removeprefix(QUEUE_KEY_PREFIX))
        return self.engine_name(tid)

    def engine_throttle_name(self, tid: str) -> str:
        """Return the name in the engine of any throttle."""
        if tid.startswith(QUEUE_KEY_PREFIX):
            return QUEUE_KEY_PREFIX + self.engine_name(tid.removeprefix(QUEUE_KEY_PREFIX))
        return self.engine_name(tid)

    def client_throttle_name(self, tid: str) -> str:
        if tid.startswith(QUEUE_KEY_PREFIX):
            return QUEUE_KEY_PREFIX + self.client_name(tid.removeprefix(QUEUE_KEY_PREFIX))
        return self.client_name(tid)

    def allows_throttle(self, tid: str) -> bool:
        """Return whether the port allows a throttle, by its name in the engine."""
        queue = tid.removeprefix(QUEUE_KEY_PREFIX)
        return queue == tid or self.hub.allows(queue)

    def lists_throttle(self, tid: str) -> bool:
        """Return whether clients see a throttle, by its name in the engine."""
        return self.is_in_database(tid.removeprefix(QUEUE_KEY_PREFIX)) and self.allows_throttle(tid)
