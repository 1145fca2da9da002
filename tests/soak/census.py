"""The sizes of all reachable containers: every dict, list, set and heap."""

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import msgspec

CONTAINERS = (dict, list, set, frozenset, deque, bytearray)
#: Attributes of clients and tests; they hold no data of the server.
LEFT_OUT = frozenset({"session", "owner"})


def census(*roots: object) -> Counter[str]:
    """The lengths of containers by class and attribute, summed by name."""
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    found = [(type(root).__name__, root) for root in roots]
    while found:
        name, thing = found.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, CONTAINERS):
            sizes[name] += len(thing)
            found += [(f"{name}[]", each) for each in _contents(thing) if _has_more(each)]
        if _is_ours(thing):
            kind = type(thing).__name__
            found += [(f"{kind}.{attribute}", each) for attribute, each in _attributes(thing)]
    return sizes


def _contents(thing: Any) -> Iterator[object]:
    if isinstance(thing, bytearray):
        return
    yield from thing
    if isinstance(thing, dict):
        yield from thing.values()


def _has_more(thing: object) -> bool:
    return isinstance(thing, CONTAINERS) or _is_ours(thing)


def _is_ours(thing: object) -> bool:
    return type(thing).__module__.startswith("millrace.")


def _attributes(thing: object) -> Iterator[tuple[str, object]]:
    names = set(getattr(thing, "__dict__", ()))
    for kind in type(thing).__mro__:
        names.update(getattr(kind, "__slots__", ()))
    if isinstance(thing, msgspec.Struct):
        names.update(thing.__struct_fields__)
    for name in names - LEFT_OUT:
        each = getattr(thing, name, None)
        if _has_more(each):
            yield name, each


def grown(before: Counter[str], after: Counter[str], slack: int) -> dict[str, tuple[int, int]]:
    """The containers that grew by more than `slack` and by more than half."""
    return {
        name: (before[name], size)
        for name, size in sorted(after.items())
        if size > before[name] * 1.5 + slack
    }
