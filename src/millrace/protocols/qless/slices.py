"""Long work in slices: a generator yields after each one, so that other clients are served."""

from collections.abc import Callable, Generator, Iterable
from heapq import merge
from typing import Any, Final

#: Number of rows that one slice sorts or merges.
SLICE_SIZE: Final = 200


def at_once_if_short(work: Generator[None, None, Any]) -> Any:
    """Run the first slice. Return the result if the work ends with it, and the work otherwise."""
    try:
        next(work)
    except StopIteration as ended:
        return ended.value
    return work


def then(reply: Any, change: Callable[[Any], Any]) -> Any:
    """Change a reply, or the reply of a long command after its last slice."""
    return _then(reply, change) if isinstance(reply, Generator) else change(reply)


def _then(
    work: Generator[None, None, Any], change: Callable[[Any], Any]
) -> Generator[None, None, Any]:
    return change((yield from work))


def sort_in_slices(rows: Iterable[Any]) -> Generator[None, None, list[Any]]:
    """Sort all rows: sort parts of them, then merge the parts, one slice at a time."""
    parts: list[list[Any]] = []
    part: list[Any] = []
    for row in rows:
        part.append(row)
        if len(part) == SLICE_SIZE:
            parts.append(sorted(part))
            part = []
            yield
    if not parts:
        return sorted(part)
    parts.append(sorted(part))
    order: list[Any] = []
    for row in merge(*parts):
        order.append(row)
        if len(order) % SLICE_SIZE == 0:
            yield
    return order


def map_in_slices(
    rows: Iterable[Any], change: Callable[[Any], Any]
) -> Generator[None, None, list[Any]]:
    """Apply a function to each row, one slice at a time."""
    found: list[Any] = []
    for row in rows:
        found.append(change(row))
        if len(found) % SLICE_SIZE == 0:
            yield
    return found
