"""The state machine that serves every protocol. No I/O, no clock, no randomness of its own."""

from .engine import Engine
from .job import FAKTORY, PROTOCOLS, WORKQ, Job, Push
from .queues import Queue
from .waiters import Waiter

__all__ = ["FAKTORY", "PROTOCOLS", "WORKQ", "Engine", "Job", "Push", "Queue", "Waiter"]
