"""A bounded scratch space for strings, lists, hashes, sets and sorted sets, separate from the jobs.

It is in memory only: a restart empties it, and FLUSHDB empties it for one database. The number of
keys and their size are bounded. The keys of Qless itself are not stored here.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from millrace.protocols.errors import ClientError

from .commands import NOT_INTEGER, WRONG_TYPE, parse_integer

if TYPE_CHECKING:
    from .connection import QlessConnection
    from .multi import Multi

#: Overhead of a key and of each member, in bytes.
MEMBER_COST: Final = 64
_OTHER_DATABASE: Final = re.compile(rb"\0[0-9]+\0")


class SortedSet:
    """The members of a sorted set with their scores."""

    __slots__ = ("scores",)

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}

    def ordered(self) -> list[tuple[bytes, float]]:
        """Return the members by score, the lowest first, then by bytes."""
        return sorted(self.scores.items(), key=lambda item: (item[1], item[0]))


Value = bytes | list[bytes] | dict[bytes, bytes] | set[bytes] | SortedSet


def key_type_of(value: Value) -> str:
    if isinstance(value, bytes):
        return "string"
    if isinstance(value, list):
        return "list"
    if isinstance(value, dict):
        return "hash"
    return "set" if isinstance(value, set) else "zset"


def scratch_prefix(database: int) -> bytes:
    """Return the prefix of the keys of a database."""
    return b"\0%d\0" % database if database else b""


class ScratchKeys:
    """The keys of all databases. Every name has the `scratch_prefix` of its database."""

    def __init__(self, max_keys: int, max_bytes: int) -> None:
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._values: dict[bytes, Value] = {}
        #: Expiry times of keys. An expired key is removed when a command accesses it.
        self._expires: dict[bytes, int] = {}
        self._size = 0
        #: Connections that wait for an item in a list, the longest waiting first.
        self._waiters: dict[bytes, dict[QlessConnection, None]] = {}
        #: Lists that got an item while a connection waited for it.
        self.pushed: dict[bytes, None] = {}
        #: The state of the connections that watch a key for EXEC.
        self._watchers: dict[bytes, set[Multi]] = {}

    # Reading

    def get(self, key: bytes, now: int) -> Value | None:
        if self._expires and self._expires.get(key, now) < now:
            self.delete(key, now)
        return self._values.get(key)

    def string_at(self, key: bytes, now: int) -> bytes | None:
        value = self.get(key, now)
        if value is not None and not isinstance(value, bytes):
            raise ClientError(WRONG_TYPE)
        return value

    def list_at(self, key: bytes, now: int) -> list[bytes] | None:
        value = self.get(key, now)
        if value is not None and not isinstance(value, list):
            raise ClientError(WRONG_TYPE)
        return value

    def hash_at(self, key: bytes, now: int) -> dict[bytes, bytes] | None:
        value = self.get(key, now)
        if value is not None and not isinstance(value, dict):
            raise ClientError(WRONG_TYPE)
        return value

    def set_at(self, key: bytes, now: int) -> set[bytes] | None:
        value = self.get(key, now)
        if value is not None and not isinstance(value, set):
            raise ClientError(WRONG_TYPE)
        return value

    def sorted_set_at(self, key: bytes, now: int) -> SortedSet | None:
        value = self.get(key, now)
        if value is not None and not isinstance(value, SortedSet):
            raise ClientError(WRONG_TYPE)
        return value

    def names(self, now: int, prefix: bytes = b"") -> list[bytes]:
        """Return the keys of one database, without its prefix."""
        self._drop_expired(now)
        if prefix:
            start = len(prefix)
            return [key[start:] for key in self._values if key.startswith(prefix)]
        return [key for key in self._values if not _OTHER_DATABASE.match(key)]

    def expiry_time(self, key: bytes) -> int | None:
        return self._expires.get(key)

    # Writing

    def set_string(self, key: bytes, text: bytes, now: int, expires: int = 0) -> None:
        """Set a string. Replace any previous value of the key."""
        current = self.get(key, now)
        freed = 0 if current is None else _size(current) + len(key) + MEMBER_COST
        self._make_room(
            key, new=True, added_bytes=len(text) - freed, now=now, adds_key=current is None
        )
        self._values[key] = text
        self._expires.pop(key, None)
        if expires:
            self._expires[key] = expires
        self._touch(key)

    def increment(self, key: bytes, by: int, now: int) -> int:
        current = self.string_at(key, now)
        number = (0 if current is None else parse_integer(current)) + by
        if not -(1 << 63) <= number < 1 << 63:
            raise ClientError(NOT_INTEGER)
        self.set_string(key, b"%d" % number, now, self._expires.get(key, 0))
        return number

    def push(self, key: bytes, items: list[bytes], now: int, *, left: bool) -> int:
        """Add items one by one at one end of a list, and return its length."""
        current = self.list_at(key, now)
        self._make_room(key, current is None, sum(map(len, items)) + MEMBER_COST * len(items), now)
        if current is None:
            current = []
            self._values[key] = current
        if left:
            current[:0] = items[::-1]
        else:
            current += items
        if key in self._waiters:
            self.pushed[key] = None
        self._touch(key)
        return len(current)

    def pop(self, key: bytes, now: int, *, left: bool = False) -> bytes | None:
        """Remove and return the last or the first item of a list."""
        current = self.list_at(key, now)
        if not current:
            return None
        item = current.pop(0 if left else -1)
        self._size -= len(item) + MEMBER_COST
        self._drop_if_empty(key, current, now)
        return item

    def pop_many(self, key: bytes, count: int, now: int, *, left: bool) -> list[bytes] | None:
        """Remove and return up to `count` items, or None if there is no list."""
        current = self.list_at(key, now)
        if current is None:
            return None
        count = min(count, len(current))
        if left:
            items = current[:count]
            del current[:count]
        else:
            items = current[len(current) - count :][::-1]
            del current[len(current) - count :]
        self._size -= sum(map(len, items)) + MEMBER_COST * count
        self._drop_if_empty(key, current, now)
        return items

    def set_fields(self, key: bytes, fields: dict[bytes, bytes], now: int) -> int:
        """Set fields of a hash, and return the number of new fields."""
        current = self.hash_at(key, now)
        old = {} if current is None else current
        added_bytes = 0
        for field, text in fields.items():
            before = old.get(field)
            if before is None:
                added_bytes += len(field) + len(text) + MEMBER_COST
            else:
                added_bytes += len(text) - len(before)
        self._make_room(key, current is None, added_bytes, now)
        if current is None:
            self._values[key] = current = {}
        new = len(fields.keys() - current.keys())
        current.update(fields)
        self._touch(key)
        return new

    def add_members(self, key: bytes, members: list[bytes], now: int) -> int:
        """Add members to a set, and return the number of new members."""
        current = self.set_at(key, now)
        new = set(members) - (current or set())
        if not new:
            return 0
        self._make_room(key, current is None, sum(map(len, new)) + MEMBER_COST * len(new), now)
        if current is None:
            self._values[key] = current = set()
        current |= new
        self._touch(key)
        return len(new)

    def remove_members(self, key: bytes, members: list[bytes], now: int) -> int:
        current = self.set_at(key, now)
        if current is None:
            return 0
        gone = current & set(members)
        current -= gone
        self._size -= sum(map(len, gone)) + MEMBER_COST * len(gone)
        self._drop_if_empty(key, current, now)
        return len(gone)

    def set_scores(self, key: bytes, scores: dict[bytes, float], now: int) -> int:
        """Set scores of members of a sorted set, and return the number of new members."""
        current = self.sorted_set_at(key, now)
        known = {} if current is None else current.scores
        new = scores.keys() - known.keys()
        self._make_room(key, current is None, sum(map(len, new)) + MEMBER_COST * len(new), now)
        if current is None:
            current = SortedSet()
            self._values[key] = current
        current.scores.update(scores)
        self._touch(key)
        return len(new)

    def remove_scores(self, key: bytes, members: list[bytes], now: int) -> int:
        current = self.sorted_set_at(key, now)
        if current is None:
            return 0
        gone = current.scores.keys() & set(members)
        for member in gone:
            del current.scores[member]
        self._size -= sum(map(len, gone)) + MEMBER_COST * len(gone)
        self._drop_if_empty(key, current.scores, now)
        return len(gone)

    def delete(self, key: bytes, now: int) -> bool:
        value = self._values.pop(key, None)
        if value is None:
            return False
        self._expires.pop(key, None)
        self._size -= _size(value) + len(key) + MEMBER_COST
        self._touch(key)
        return True

    def expire(self, key: bytes, when: int, now: int) -> bool:
        """Remove a key at that time, or now if the time has passed. Return False if the key does
        not exist.
        """
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

    def clear_database(self, prefix: bytes, now: int) -> None:
        for name in self.names(now, prefix):
            self.delete(prefix + name, now)

    def _drop_if_empty(self, key: bytes, value: object, now: int) -> None:
        if not value:
            self.delete(key, now)
        self._touch(key)

    def _make_room(
        self, key: bytes, new: bool, added_bytes: int, now: int, *, adds_key: bool | None = None
    ) -> None:
        """Add `added_bytes` to the size, and the size of the key if it is `new`. Raise ClientError
        above a limit. `adds_key` tells whether the number of keys grows; by default, this is `new`.
        """
        if adds_key is None:
            adds_key = new
        if new:
            added_bytes += len(key) + MEMBER_COST
        if self._expires and not self._fits(adds_key, added_bytes):
            self._drop_expired(now)
        if not self._fits(adds_key, added_bytes):
            raise ClientError(
                "OOM command not allowed: the scratch space has room for "
                f"{self._max_keys} keys and {self._max_bytes} bytes"
            )
        self._size += added_bytes

    def _fits(self, new: bool, added_bytes: int) -> bool:
        return (
            self._size + added_bytes <= self._max_bytes
            and len(self._values) + new <= self._max_keys
        )

    def _drop_expired(self, now: int) -> None:
        for key in [key for key, when in self._expires.items() if when < now]:
            self.delete(key, now)

    # Waiting for lists

    def add_waiter(self, keys: list[bytes], waiter: "QlessConnection") -> None:
        for key in keys:
            self._waiters.setdefault(key, {})[waiter] = None

    def remove_waiter(self, keys: list[bytes], waiter: "QlessConnection") -> None:
        for key in keys:
            waiters = self._waiters.get(key, {})
            waiters.pop(waiter, None)
            if not waiters:
                self._waiters.pop(key, None)

    def take_deliveries(self, now: int) -> Iterator[tuple["QlessConnection", bytes, bytes]]:
        """Remove the items that connections wait for, and return each connection with its key and
        item.
        """
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

    def watch(self, key: bytes, watcher: "Multi") -> None:
        self._watchers.setdefault(key, set()).add(watcher)

    def unwatch(self, key: bytes, watcher: "Multi") -> None:
        watchers = self._watchers.get(key, set())
        watchers.discard(watcher)
        if not watchers:
            self._watchers.pop(key, None)

    def _touch(self, key: bytes) -> None:
        for watcher in self._watchers.get(key, ()) if self._watchers else ():
            watcher.watch_triggered = True


def _size(value: Value) -> int:
    """Return the size of a value without its key."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(len(k) + len(v) + MEMBER_COST for k, v in value.items())
    members = value.scores if isinstance(value, SortedSet) else value
    return sum(len(member) + MEMBER_COST for member in members)
