"""Long work in slices: a generator yields after each one, so that other clients are served."""

from collections.abc import Callable, Generator, Iterable
from heapq import merge
from typing import Any, Final

#: Number of rows that one slice examines or merges.
SLICE_SIZE: Final = 200
#: Number of rows that one slice sorts.
SORT_BATCH_SIZE: Final = 1000


def run_if_short(work: Generator[None, None, Any]) -> Any:
    """Run the first slice. Return the result if the work ends with it, and the work otherwise."""
    try:
        next(work)
    except StopIteration as ended:
        return ended.value
    return work


def run_all_slices(work: Generator[None, None, Any]) -> Any:
    """Run all slices, and return the result."""
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return ended.value


def sort_in_slices(rows: Iterable[Any]) -> Generator[None, None, list[Any]]:
    """Sort all rows: sort parts of them, then merge the parts, one slice at a time. A None in
    `rows` counts as examined, but is not sorted.
    """
    parts: list[list[Any]] = []
    part: list[Any] = []
    for number, row in enumerate(rows, 1):
        if row is not None:
            part.append(row)
        if len(part) == SORT_BATCH_SIZE:
            parts.append(sorted(part))
            part = []
        if number % SLICE_SIZE == 0:
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


def reverse_sort_in_slices(rows: Iterable[Any]) -> Generator[None, None, list[Any]]:
    """Sort all rows, the greatest first."""
    return (yield from sort_in_slices(rows))[::-1]


def filter_in_slices(
    rows: Iterable[Any], keep: Callable[[Any], bool]
) -> Generator[None, None, list[Any]]:
    """Return the rows that a function accepts, one slice at a time, without rows that are None."""
    found: list[Any] = []
    for number, row in enumerate(rows, 1):
        if row is not None and keep(row):
            found.append(row)
        if number % SLICE_SIZE == 0:
            yield
    return found


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
