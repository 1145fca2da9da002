"""The keys of Qless that clients write directly: throttles, and the data that reqless stores for
its workers.
"""

from typing import Final

from millrace.engine.annotations import read_details
from millrace.engine.job import SECOND, Job
from millrace.protocols.errors import ClientError

from . import fields, queue_patterns
from . import lua_values as lua
from .commands import clip_argument
from .computed_keys import Key, Scores, hash_key, list_key, sorted_scores, zset_key
from .errors import ChangeRefused
from .names import decode_name, encode_name
from .state import QlessState

#: Keys of Qless that clients write directly, and their types.
WRITABLE: Final = {b"ql:qp:identifiers": "hash", b"ql:qp:priorities": "list"}
#: Prefix of the keys of throttles. These keys are also writable.
THROTTLE_KEY: Final = b"ql:th:"
PATTERN_KEYS: Final = ("identifiers", "priorities")
#: Suffixes of the sets of jobs that hold a throttle or wait for it.
THROTTLE_SETS: Final = ("locks", "pending")


def writable_key_type(key: bytes) -> str:
    """Return the type of a writable key of Qless, or an empty string for any other key."""
    return "hash" if key.startswith(THROTTLE_KEY) else WRITABLE.get(key, "")


class WritableKeys:
    def __init__(self, qless: QlessState) -> None:
        self.qless = qless

    def throttle(self, name: str) -> Key | None:
        """Return a throttle, or the set of jobs that hold it or wait for it. The name of a queue
        may look like the name of such a set.
        """
        throttles, qless = self.qless.throttles, self.qless
        full_name = qless.engine_throttle_name(name)
        tid, _, part = full_name.rpartition("-")
        is_set = part in THROTTLE_SETS and qless.allows_throttle(tid)
        if not is_set:
            qless.throttle_name(name)  # the port may refuse it
        limit = throttles.limits.get(full_name) if qless.allows_throttle(full_name) else None
        if limit is not None:
            maximum = fields.format_number(limit.maximum)
            return hash_key(lambda: [(b"id", encode_name(name)), (b"maximum", maximum)])
        if not is_set or tid not in throttles.limits:
            return None
        if part == "pending":
            return zset_key(lambda: self.waiting_for(throttles.waiting(tid)))
        return zset_key(
            lambda: sorted_scores(
                (qless.client_name(job.jid), 1.0) for job in throttles.jobs_holding(tid)
            )
        )

    def waiting_for(self, jobs: list[Job]) -> Scores:
        """Return throttled jobs, ordered by the time at which they began to wait."""
        found = ((job, read_details(job).parked) for job in jobs)
        local = self.qless.client_name
        return sorted_scores(
            (local(job.jid), parked.since / SECOND) for job, parked in found if parked
        )

    def patterns(self, name: str) -> Key | None:
        if name not in PATTERN_KEYS or not queue_patterns.is_stored(self.qless, name):
            return None
        if name == "identifiers":
            return hash_key(
                lambda: fields.encode_pairs(queue_patterns.stored_identifiers(self.qless).items())
            )
        return list_key(
            lambda: [encode_name(each) for each in queue_patterns.stored_priorities(self.qless)]
        )

    def set_fields(self, key: bytes, fields: dict[bytes, bytes], now: int) -> int:
        """Set fields of a hash, and return the number of new fields. This method and the following
        ones raise ChangeRefused if changes cannot be made durable now.
        """
        if not key.startswith(THROTTLE_KEY):
            return queue_patterns.add_identifiers(self.qless, fields)
        return self._set_throttle(self._tid(key), fields, now)

    def _set_throttle(self, tid: str, fields: dict[bytes, bytes], now: int) -> int:
        """Set the maximum of a limit, and return the number of new fields. The id is part of the
        key.
        """
        if self.qless.engine.unavailable_reason:
            raise ChangeRefused
        self.qless.refresh()
        throttles = self.qless.throttles
        limit = throttles.limit(tid, now)
        maximum = 0 if limit is None else limit.maximum
        if b"maximum" in fields:
            found = lua.tonumber(fields[b"maximum"])
            if found is None:
                raise ClientError("ERR the maximum of a throttle must be a number")
            maximum = found
        if unknown := fields.keys() - {b"id", b"maximum"}:
            raise ClientError(f"ERR a throttle has no field '{clip_argument(min(unknown))}'")
        throttles.set(tid, maximum, 0, now)
        return len(fields) if limit is None else 0

    def _tid(self, key: bytes) -> str:
        return self.qless.throttle_name(decode_name(key.removeprefix(THROTTLE_KEY)))

    def push(self, key: bytes, items: list[bytes], *, left: bool) -> int:
        """Add items one by one at one end of a list, and return its length."""
        return queue_patterns.add_priorities(self.qless, items, left=left)

    def check(self, key: bytes) -> None:
        """Refuse a key that the clients of the port may not change."""
        if key.startswith(THROTTLE_KEY):
            self._tid(key)
        else:
            queue_patterns.check_rule(self.qless)

    def delete(self, key: bytes, now: int) -> bool:
        """Remove a key, and return whether it existed."""
        if key.startswith(THROTTLE_KEY):
            self.qless.refresh()
            throttles, tid = self.qless.throttles, self._tid(key)
            if tid not in throttles.limits:
                return False
            if self.qless.engine.unavailable_reason:
                raise ChangeRefused
            throttles.delete(tid, now)
            return True
        return queue_patterns.remove_patterns(self.qless, decode_name(key).rpartition(":")[2])
