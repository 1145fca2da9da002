"""The state shared by all Workq connections: engine, dialect, connections."""

from typing import ClassVar, Final

from millrace.engine.engine import Engine
from millrace.engine.queue_rules import QueueRule
from millrace.protocols.connection import Hub
from millrace.protocols.registry import WORKQ

#: The largest payload or result.
MAX_BLOCK: Final = 1 << 20
#: The longest line. The original accepts this size for a command with its payload.
MAX_LINE: Final = 10_000 + MAX_BLOCK


class WorkqHub(Hub):
    code: ClassVar[int] = WORKQ

    def __init__(
        self,
        engine: Engine,
        *,
        started_at: int,
        dialect: str = "spec",
        max_connections: int = 10_000,
        max_line: int = 64 << 20,
        rule: QueueRule | None = None,
    ) -> None:
        super().__init__(engine, max_connections, rule)
        self.started_at = started_at
        #: The original server's lease line has four fields, the spec's three.
        self.with_ttr = dialect == "original"
        self.max_line = min(MAX_LINE, max_line)
        self.max_block = min(MAX_BLOCK, max_line)
