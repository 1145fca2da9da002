"""Options of a worker."""

import os
from dataclasses import dataclass
from typing import Final, Literal

ExecutionMode = Literal["threads", "processes", "asyncio"]
MODES: Final[tuple[ExecutionMode, ...]] = ("threads", "processes", "asyncio")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    #: Queues to fetch from, in order of preference.
    queues: tuple[str, ...] = ("default",)
    #: Number of jobs that run at the same time.
    concurrency: int = max(2, os.cpu_count() or 2)
    #: Where jobs run: "threads", "processes" or "asyncio".
    mode: ExecutionMode = "threads"
    #: Number of fetched jobs that may wait for a free slot.
    prefetch: int = 0
    #: Time for running jobs to finish when the worker stops, in seconds.
    shutdown_timeout: float = 25.0
    #: Time between two heartbeats, in seconds. They renew leases and tell the worker about
    #: cancelled jobs.
    heartbeat_interval: float = 15.0
    #: Shown in the list of workers.
    labels: tuple[str, ...] = ("python",)

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.prefetch < 0 or not self.queues:
            raise ValueError("A worker needs at least one queue and a concurrency of at least 1.")
        if self.mode not in MODES:
            raise ValueError(f"The mode must be one of {', '.join(MODES)}.")
