"""The state shared by all Go Job Queue connections: engine, limits, connections."""

from typing import ClassVar

from millrace.engine.engine import Engine
from millrace.engine.queue_rules import QueueRule
from millrace.protocols.connection import Hub
from millrace.protocols.registry import GOQUEUE


class GoqueueHub(Hub):
    code: ClassVar[int] = GOQUEUE

    def __init__(
        self,
        engine: Engine,
        *,
        max_connections: int = 10_000,
        max_data: int = 16 << 20,
        max_deliveries: int = 0,
        rule: QueueRule | None = None,
    ) -> None:
        super().__init__(engine, max_connections, rule)
        #: Maximum size of the data of a job.
        self.max_data = max_data
        #: The number of leases after which a job goes to the dead set. 0: no limit.
        self.max_deliveries = max_deliveries
