"""The bound for what all connections together hold, without any connection."""

from millrace.server.memory_limit import MemoryLimit


class Holder:
    """What buffers need to know of a session."""

    def __init__(self, buffers: MemoryLimit) -> None:
        self.buffers = buffers
        self.buffered = 0
        self.reason = ""

    def expel(self, reason: str) -> None:
        self.reason = reason
        self.buffers.change(self, 0)


def crowd(size: int, most: int) -> tuple[MemoryLimit, list[Holder]]:
    holders: list[Holder] = []
    buffers = MemoryLimit(most, holders)
    holders += [Holder(buffers) for _ in range(size)]
    return buffers, holders


def test_whoever_has_the_most_goes_and_no_more_than_must():
    buffers, holders = crowd(3, most=100)
    for holder, size in zip(holders, (30, 60, 10), strict=True):
        buffers.change(holder, size)
    assert not any(holder.reason for holder in holders)
    buffers.change(holders[2], 11)
    assert [bool(holder.reason) for holder in holders] == [False, True, False]
    assert buffers.total == 41


def test_a_bound_that_is_lowered_cuts_any_number_at_once():
    buffers, holders = crowd(2000, most=1 << 20)
    for holder in holders:
        buffers.change(holder, 100)
    buffers.most = 1000
    buffers.change(holders[0], 101)
    assert buffers.total <= 1000
    assert sum(not holder.reason for holder in holders) == 10
