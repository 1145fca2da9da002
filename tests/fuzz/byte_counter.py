"""Bytes that count their use: the number of bytes that were read or copied.

A module under test gets these types instead of `bytes` and `bytearray`, and reads such input.
Slices of them count, too. Unlike time, the count is equal for equal input.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Self

_touched = 0


def _count(size: int) -> None:
    global _touched
    _touched += size


class Counted(bytes):
    def __new__(cls, *args: Any) -> Self:
        made = super().__new__(cls, *args)
        _count(len(made))
        return made

    def __getitem__(self, where: Any) -> Any:
        found = super().__getitem__(where)
        return Counted(found) if isinstance(where, slice) else found

    def __add__(self, other: Any) -> "Counted":
        return Counted(bytes(self) + bytes(other))

    def __contains__(self, what: Any) -> bool:
        _count(len(self))
        return super().__contains__(what)


class CountedArray(bytearray):
    def __iadd__(self, other: Any) -> Self:
        _count(len(other))
        return super().__iadd__(other)

    def __getitem__(self, where: Any) -> Any:
        found = super().__getitem__(where)
        return Counted(found) if isinstance(where, slice) else found

    def __setitem__(self, where: Any, what: Any) -> None:
        _count(len(self) + len(what) if isinstance(where, slice) else 1)
        super().__setitem__(where, what)

    def __contains__(self, what: Any) -> bool:
        _count(len(self))
        return super().__contains__(what)


def _searching(kind: Any, name: str) -> None:
    """Count from the start position to the match, or to the end."""
    search = getattr(kind.__mro__[1], name)

    def counting(self: Any, what: Any, start: int = 0, end: int | None = None) -> int:
        last = len(self) if end is None else min(end, len(self))
        found: int = search(self, what, start, last)
        _count(max(0, (last if found < 0 else found) - start))
        return found

    setattr(kind, name, counting)


def _whole(kind: Any, name: str) -> None:
    """The method reads all bytes."""
    act = getattr(kind.__mro__[1], name)

    def counting(self: Any, *args: Any) -> Any:
        _count(len(self))
        found = act(self, *args)
        return [Counted(part) for part in found] if isinstance(found, list) else found

    setattr(kind, name, counting)


for _kind in (Counted, CountedArray):
    _searching(_kind, "find")
    for _name in (
        "split",
        "partition",
        "translate",
        "count",
        "strip",
        "decode",
        "isascii",
        "isdigit",
    ):
        _whole(_kind, _name)


@contextmanager
def counting(*modules: ModuleType) -> Iterator[None]:
    """Replace the byte types in these modules."""
    for module in modules:
        module.bytes, module.bytearray = Counted, CountedArray  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in modules:
            del module.bytes, module.bytearray


def touched() -> int:
    """The number of bytes that were read or copied so far."""
    return _touched
