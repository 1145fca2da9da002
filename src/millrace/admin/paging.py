"""Things that have names, a page at a time: those behind a name, in the order of names.

There may be a hundred thousand of them, and they come and go: so the page is picked out bit by bit,
without sorting all.
"""

from collections.abc import Generator
from typing import Final, TypeVar

from .errors import AdminError

MAX_PAGE_SIZE: Final = 1000
#: So many names are looked at before others have their turn.
NAME_SLICE_SIZE: Final = 1000

N = TypeVar("N", str, tuple[str, str], tuple[int, str])


def page_of(
    names: list[N], after: N | None, most: int
) -> Generator[None, None, tuple[list[N], bool]]:
    """The first `most` names behind `after`, and whether there are more. Yields now and then."""
    if not 0 < most <= MAX_PAGE_SIZE:
        raise AdminError(f"`most` is from 1 to {MAX_PAGE_SIZE}")
    best: list[N] = []
    for first in range(0, len(names), NAME_SLICE_SIZE):
        if first:
            yield
        some = names[first : first + NAME_SLICE_SIZE]
        if after is not None:
            some = [name for name in some if name > after]
        if len(best) > most:
            last = best[-1]
            some = [name for name in some if name < last]
        best = sorted(best + some)[: most + 1]
    return best[:most], len(best) > most
