"""The state shared by all Masenko connections: engine, heartbeat, INFO counters."""

from typing import ClassVar, Final

from millrace.engine.engine import Engine
from millrace.engine.job import SECOND
from millrace.engine.queue_rules import QueueRule
from millrace.protocols.connection import Hub
from millrace.protocols.registry import MASENKO

MAX_LINE: Final = 8 << 20
MAX_LOG_PAYLOAD: Final = 65_535
MAX_LOG_RECORD: Final = 1_000_000
HEARTBEAT: Final = 45 * SECOND


class MasenkoHub(Hub):
    code: ClassVar[int] = MASENKO

    def __init__(
        self,
        engine: Engine,
        *,
        heartbeat: int = HEARTBEAT,
        dialect: str = "spec",
        max_connections: int = 10_000,
        max_line: int = MAX_LINE,
        rule: QueueRule | None = None,
    ) -> None:
        super().__init__(engine, max_connections, rule)
        self.heartbeat = heartbeat
        #: INFO contains metrics in the spec, and not in the original.
        self.with_metrics = dialect != "original"
        #: The limits of the original's log apply in its dialect: bytes of a payload, and of all
        #: records of a transaction. 0 means that only the server's limits apply.
        self.max_payload = MAX_LOG_PAYLOAD if dialect == "original" else 0
        self.max_transaction = MAX_LOG_RECORD if dialect == "original" else 0
        self.max_line = max_line
        #: Counters of requests and responses by verb. As in the original, PUSH, FETCH, ACK, NACK
        #: and ATOMIC count only if they succeed.
        self.requests = dict.fromkeys(
            (b"PING", b"PUSH", b"FETCH", b"ACK", b"NACK", b"INFO", b"QUIT", b"ATOMIC"), 0
        )
        self.responses = dict.fromkeys((b"OK", b"EMPTY", b"ERR", b"PONG"), 0)
        self._last_number = 0
        self._first_named_at = 0

    def original_metrics(self) -> dict[str, dict[str, int]]:
        return {
            "masenko_clients_total": {"": len(self.connections)},
            "masenko_requests_total": {verb.decode(): n for verb, n in self.requests.items()},
            "masenko_responses_total": {verb.decode(): n for verb, n in self.responses.items()},
        }

    def new_holder_name(self, now: int) -> str:
        """A name that no connection has had before, in this run of the server or an earlier one:
        the store contains leases with such names.
        """
        self._first_named_at = self._first_named_at or now
        self._last_number += 1
        return f"masenko-{self._first_named_at:x}-{self._last_number}"
