"""The kinds of keys that are computed from the engine on each read."""

from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple

from millrace.engine.queues import Queue
from millrace.protocols.slices import filter_in_slices, replace_in_slices, sort_in_slices

from .fields import Fields
from .names import encode_name

Scores = list[tuple[bytes, float]]


class Key(NamedTuple):
    """A possible key. It exists if it has members."""

    key_type: str
    length: Callable[[], int]
    read: Callable[[], list[Any]]
    score: Callable[[str], float | None] | None = None
    #: The same as `read`, in slices, for keys that may have a large number of members.
    read_in_slices: Callable[[], Generator[None, None, list[Any]]] | None = None
    #: Whether the key has members, where `length` must read all of them.
    exists: Callable[[], bool] | None = None
    #: The items that `read_in_slices` examines, for use within one slice.
    rows: Callable[[], Iterable[Any]] | None = None
    #: The queue whose jobs are the members.
    queue: Queue | None = None


def zset_key(read: Callable[[], Scores], score: Callable[[str], float | None] | None = None) -> Key:
    return Key("zset", lambda: len(read()), read, score)


def hash_key(read: Callable[[], Fields]) -> Key:
    return Key("hash", lambda: len(read()), read)


def list_key(read: Callable[[], list[bytes]]) -> Key:
    return Key("list", lambda: len(read()), read)


def set_key(read: Callable[[], Iterable[str]]) -> Key:
    def members() -> list[bytes]:
        return [encode_name(member) for member in read()]

    return Key("set", lambda: len(members()), members)


def long_key(
    key_type: str,
    rows: Callable[[bool], Iterable[Any]],
    score: Callable[[str], float | None] | None = None,
) -> Key:
    """A key with any number of members, read in slices. `rows` returns its members, and None for
    each examined item that is not a member. `rows(True)` is for use within one slice.
    """

    def read() -> list[Any]:
        """Return all members at once."""
        found = [row for row in rows(True) if row is not None]
        return (
            sorted(found, key=lambda member: (member[1], member[0]))
            if key_type == "zset"
            else found
        )

    def read_in_slices() -> Generator[None, None, list[Any]]:
        if key_type != "zset":
            return (yield from filter_in_slices(rows(False), lambda _: True))
        order = yield from sort_in_slices(
            None if row is None else (row[1], row[0]) for row in rows(False)
        )
        return (yield from replace_in_slices(order, lambda row: (row[1], row[0])))

    def exists() -> bool:
        return any(row is not None for row in rows(True))

    length, rows_at_once = lambda: len(read()), lambda: rows(True)
    return Key(key_type, length, read, score, read_in_slices, exists, rows_at_once)


def sorted_scores(found: Iterable[tuple[str, float]]) -> Scores:
    """Sort by score, the lowest first, then by bytes."""
    members = ((encode_name(name), score) for name, score in found)
    return sorted(members, key=lambda member: (member[1], member[0]))
