"""A set of seqs that takes about 2 bytes per seq if they are dense; a Python set takes 64."""

from collections.abc import Iterator
from typing import Final

_SHIFT: Final = 6
_MASK: Final = (1 << _SHIFT) - 1


class SeqSet:
    """Groups of 64 consecutive seqs, one bit each."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[int, int] = {}

    def add(self, seq: int) -> None:
        group = seq >> _SHIFT
        self._groups[group] = self._groups.get(group, 0) | 1 << (seq & _MASK)

    def add_range(self, start: int, end: int) -> None:
        """Add the seqs from `start` up to, but not including, `end`."""
        while start < end:
            group = start >> _SHIFT
            stop = min(end, (group + 1) << _SHIFT)
            bits = ((1 << (stop - start)) - 1) << (start & _MASK)
            self._groups[group] = self._groups.get(group, 0) | bits
            start = stop

    def discard(self, seq: int) -> None:
        group = seq >> _SHIFT
        left = self._groups.get(group, 0) & ~(1 << (seq & _MASK))
        if left:
            self._groups[group] = left
        else:
            self._groups.pop(group, None)

    def __contains__(self, seq: int) -> bool:
        return bool(self._groups.get(seq >> _SHIFT, 0) >> (seq & _MASK) & 1)

    def __iter__(self) -> Iterator[int]:
        for group, bits in self._groups.items():
            for bit in range(_MASK + 1):
                if bits >> bit & 1:
                    yield (group << _SHIFT) + bit

    def __len__(self) -> int:
        return sum(bits.bit_count() for bits in self._groups.values())

    def __bool__(self) -> bool:
        return bool(self._groups)
