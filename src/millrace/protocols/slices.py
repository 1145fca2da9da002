"""Long work in slices: a generator yields after each one, so that other clients are served."""

from collections.abc import Callable, Generator, Iterable
from heapq import merge
from typing import Any, Final

#: Number of rows that one slice examines or merges.
SLICE_SIZE: Final = 200
#: Number of rows that one slice sorts.
SORT_BATCH_SIZE: Final = 1000
#: Number of rows that one slice frees.
FREE_BATCH_SIZE: Final = 2000


def run_if_short(work: Generator[None, None, Any]) -> Any:
    """Run the first slice. Return the result if that completes the work, else the work."""
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
            parts.append(part)
            part.sort()
            part = []
        if number % SLICE_SIZE == 0:
            yield
    part.sort()
    if not parts:
        return part
    parts.append(part)
    for each in parts:  # the merge pops the rows from the end, until None
        each.append(None)
        each.reverse()
    order: list[Any] = []
    for row in merge(*[iter(each.pop, None) for each in parts]):
        order.append(row)
        if len(order) % SLICE_SIZE == 0:
            yield
    return order


def reverse_sort_in_slices(rows: Iterable[Any]) -> Generator[None, None, list[Any]]:
    """Sort all rows, the greatest first."""
    order = yield from sort_in_slices(rows)
    order.reverse()
    return order


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


# Freeing a million rows at once would be a long slice, and so would copying their list. These
# functions change the caller's list, and free rows in each slice.


def replace_in_slices(
    rows: list[Any], change: Callable[[Any], Any]
) -> Generator[None, None, list[Any]]:
    """Replace each row with the result of a function, and return the list."""
    for start in range(0, len(rows), SLICE_SIZE):
        if start:
            yield
        rows[start : start + SLICE_SIZE] = map(change, rows[start : start + SLICE_SIZE])
    return rows


def keep_range_in_slices(rows: list[Any], first: int, end: int) -> Generator[None, None, list[Any]]:
    """Return the rows from `first` up to `end`, and free the others."""
    end = max(first, end)
    freed = 0
    while len(rows) > end:
        freed = min(len(rows) - end, FREE_BATCH_SIZE)
        del rows[-freed:]
        if freed == FREE_BATCH_SIZE:
            freed = 0
            yield
    if not first:
        return rows
    rows.reverse()
    found: list[Any] = []
    for number in range(len(rows)):
        row = rows.pop()
        if number >= first:
            found.append(row)
        if (freed + number + 1) % FREE_BATCH_SIZE == 0:
            yield
    return found


def free_in_slices(rows: list[Any]) -> Generator[None, None, None]:
    """Remove all rows."""
    while len(rows) > FREE_BATCH_SIZE:
        del rows[-FREE_BATCH_SIZE:]
        yield
    rows.clear()
