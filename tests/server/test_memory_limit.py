"""The limit for the buffers of all connections, without any connection."""

from millrace.server.memory_limit import BufferLimit


class Holder:
    """The session interface that buffers use."""

    def __init__(self, buffers: BufferLimit) -> None:
        self.buffers = buffers
        self.buffered = 0
        self.reason = ""

    def evict(self, reason: str) -> None:
        self.reason = reason
        self.buffers.change(self, 0)


def crowd(size: int, most: int) -> tuple[BufferLimit, list[Holder]]:
    holders: list[Holder] = []
    buffers = BufferLimit(most, holders)
    holders += [Holder(buffers) for _ in range(size)]
    return buffers, holders


def test_the_largest_holder_is_evicted_and_no_other():
    buffers, holders = crowd(3, most=100)
    for holder, size in zip(holders, (30, 60, 10), strict=True):
        buffers.change(holder, size)
    assert not any(holder.reason for holder in holders)
    buffers.change(holders[2], 11)
    assert [bool(holder.reason) for holder in holders] == [False, True, False]
    assert buffers.total == 41


def test_a_lowered_limit_evicts_several_holders():
    buffers, holders = crowd(2000, most=1 << 20)
    for holder in holders:
        buffers.change(holder, 100)
    buffers.limit = 1000
    buffers.change(holders[0], 101)
    assert buffers.total <= 1000
    assert sum(not holder.reason for holder in holders) == 10
