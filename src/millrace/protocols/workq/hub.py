"""What all Workq connections share: the engine, the dialect, who is there."""

from typing import TYPE_CHECKING, Final

from millrace.engine.engine import Engine

if TYPE_CHECKING:
    from .connection import WorkqConnection

#: The largest payload or result.
MOST_BLOCK: Final = 1 << 20
#: The longest line: what the original takes for a command with its payload.
MOST_LINE: Final = 10_000 + MOST_BLOCK


class WorkqHub:
    def __init__(
        self,
        engine: Engine,
        *,
        started_at: int,
        dialect: str = "spec",
        max_connections: int = 10_000,
        max_line: int = 64 << 20,
    ) -> None:
        self.engine = engine
        self.started_at = started_at
        #: The original server's lease line has four fields, the spec's three.
        self.with_ttr = dialect == "original"
        self.max_connections = max_connections
        self.max_line = min(MOST_LINE, max_line)
        self.max_block = min(MOST_BLOCK, max_line)
        self.connections: set[WorkqConnection] = set()
        self.stopping = False

    def stop(self) -> None:
        """The server is about to stop: hand out nothing. The protocol has no word to say so."""
        self.stopping = True
        for connection in self.connections:
            if connection.waiter is not None:
                self.engine.deafen(connection.waiter)
