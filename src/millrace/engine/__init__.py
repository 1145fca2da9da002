"""The state machine that serves every protocol. No I/O, no clock, no randomness of its own."""

from .engine import Engine
from .job import Job, NewJob
from .queues import Queue
from .waiters import Waiter

__all__ = ["Engine", "Job", "NewJob", "Queue", "Waiter"]
