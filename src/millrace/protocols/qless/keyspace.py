"""A small scratch space of lists and hashes, for what clients keep beside Qless.

It is in memory only: a restart empties it, and so does FLUSHDB. How many keys it may have and what
they may take is bounded. Nothing here is a job; the keys of Qless itself are not here either.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from millrace.protocols.errors import ClientError

from .commands import WRONG_TYPE

if TYPE_CHECKING:
    from .connection import QlessConnection

#: What a key, and each of its members, takes beside its bytes.
COSTS: Final = 64

Value = list[bytes] | dict[bytes, bytes]


class Keyspace:
    def __init__(self, most_keys: int, most_bytes: int) -> None:
        self._most_keys = most_keys
        self._most_bytes = most_bytes
        self._values: dict[bytes, Value] = {}
        #: When keys go that do not stay; they go when somebody looks.
        self._expires: dict[bytes, int] = {}
        self._size = 0
        #: Who waits for a list to have something, the longest waiter first.
        self._waiters: dict[bytes, dict[QlessConnection, None]] = {}
        #: Lists that got something while somebody waited for it.
        self.pushed: dict[bytes, None] = {}
        #: Who must hear of a change before its EXEC.
        self._watchers: dict[bytes, set[QlessConnection]] = {}

    # Looking

    def get(self, key: bytes, now: int) -> Value | None:
        if self._expires and self._expires.get(key, now) < now:
            self.delete(key, now)
        return self._values.get(key)

    def list_at(self, key: bytes, now: int) -> list[bytes] | None:
        value = self.get(key, now)
        if isinstance(value, dict):
            raise ClientError(WRONG_TYPE)
        return value

    def hash_at(self, key: bytes, now: int) -> dict[bytes, bytes] | None:
        value = self.get(key, now)
        if isinstance(value, list):
            raise ClientError(WRONG_TYPE)
        return value

    def names(self, now: int) -> list[bytes]:
        self._drop_expired(now)
        return list(self._values)

    def expires(self, key: bytes) -> int | None:
        return self._expires.get(key)

    # Changing

    def push(self, key: bytes, items: list[bytes], now: int, *, left: bool) -> int:
        """Put items at an end of a list, one after the other; its length."""
        have = self.list_at(key, now)
        self._make_room(key, have is None, sum(map(len, items)) + COSTS * len(items), now)
        if have is None:
            have = []
            self._values[key] = have
        if left:
            have[:0] = items[::-1]
        else:
            have += items
        if key in self._waiters:
            self.pushed[key] = None
        self._touch(key)
        return len(have)

    def pop(self, key: bytes, now: int) -> bytes | None:
        """Take the last item of a list."""
        have = self.list_at(key, now)
        if not have:
            return None
        item = have.pop()
        self._size -= len(item) + COSTS
        if not have:
            self.delete(key, now)
        self._touch(key)
        return item

    def set_fields(self, key: bytes, fields: dict[bytes, bytes], now: int) -> int:
        """Set fields of a hash; how many of them are new."""
        have = self.hash_at(key, now)
        old = {} if have is None else have
        more = 0
        for field, text in fields.items():
            before = old.get(field)
            more += (
                len(text) - len(before) if before is not None else len(field) + len(text) + COSTS
            )
        self._make_room(key, have is None, more, now)
        if have is None:
            self._values[key] = have = {}
        new = len(fields.keys() - have.keys())
        have.update(fields)
        self._touch(key)
        return new

    def delete(self, key: bytes, now: int) -> bool:
        value = self._values.pop(key, None)
        if value is None:
            return False
        self._expires.pop(key, None)
        parts = value if isinstance(value, list) else [k + v for k, v in value.items()]
        self._size -= sum(map(len, parts)) + COSTS * len(parts) + len(key) + COSTS
        self._touch(key)
        return True

    def expire(self, key: bytes, when: int, now: int) -> bool:
        """Let a key go at that time, or now if it is over."""
        if self.get(key, now) is None:
            return False
        if when <= now:
            self.delete(key, now)
        else:
            self._expires[key] = when
        self._touch(key)
        return True

    def clear(self) -> None:
        self._values.clear()
        self._expires.clear()
        self.pushed.clear()
        self._size = 0
        for key in self._watchers:
            self._touch(key)

    def _make_room(self, key: bytes, new: bool, more: int, now: int) -> None:
        """Take account of what is about to be kept, unless it is too much."""
        if new:
            more += len(key) + COSTS
        if self._expires and not self._fits(new, more):
            self._drop_expired(now)
        if not self._fits(new, more):
            raise ClientError(
                "OOM command not allowed: the scratch space has room for "
                f"{self._most_keys} keys and {self._most_bytes} bytes"
            )
        self._size += more

    def _fits(self, new: bool, more: int) -> bool:
        return self._size + more <= self._most_bytes and len(self._values) + new <= self._most_keys

    def _drop_expired(self, now: int) -> None:
        for key in [key for key, when in self._expires.items() if when < now]:
            self.delete(key, now)

    # Waiting for lists

    def wait(self, keys: list[bytes], waiter: "QlessConnection") -> None:
        for key in keys:
            self._waiters.setdefault(key, {})[waiter] = None

    def unwait(self, keys: list[bytes], waiter: "QlessConnection") -> None:
        for key in keys:
            waiters = self._waiters.get(key, {})
            waiters.pop(waiter, None)
            if not waiters:
                self._waiters.pop(key, None)

    def served(self, now: int) -> Iterator[tuple["QlessConnection", bytes, bytes]]:
        """What those who waited get: the key and the item. They must not wait any longer then."""
        while self.pushed:
            key = next(iter(self.pushed))
            waiters = self._waiters.get(key)
            value = self.get(key, now)
            if not waiters or not isinstance(value, list):
                del self.pushed[key]
                continue
            item = self.pop(key, now)
            assert item is not None, "an empty list was kept"
            yield next(iter(waiters)), key, item

    # Watching

    def watch(self, key: bytes, watcher: "QlessConnection") -> None:
        self._watchers.setdefault(key, set()).add(watcher)

    def unwatch(self, key: bytes, watcher: "QlessConnection") -> None:
        watchers = self._watchers.get(key, set())
        watchers.discard(watcher)
        if not watchers:
            self._watchers.pop(key, None)

    def _touch(self, key: bytes) -> None:
        for watcher in self._watchers.get(key, ()) if self._watchers else ():
            watcher.disturbed = True
