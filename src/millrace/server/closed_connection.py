"""The connection of a session that has ended.

A reference to the protocol's connection would keep its input in memory, and later calls from the
session must have no effect.
"""

from millrace.protocols.connection import Connection


class ClosedConnection(Connection):
    """Replaces the connection of a closed session."""

    @property
    def unprocessed_bytes(self) -> int:
        return 0

    @property
    def memory_used(self) -> int:
        return 0

    def drop_input(self) -> None:
        pass

    def feed(self, data: bytes) -> None:
        pass

    def run(self, now: int, max_cost: int) -> bool:
        return False

    def unavailable_reply(self, reason: str) -> bytes:
        return b""
