"""Workers: fetch jobs, run their tasks, report the results."""

from .context import JobLogFilter, current_job
from .execution import Outcome
from .options import ExecutionMode, WorkerOptions
from .worker import Worker

__all__ = [
    "ExecutionMode",
    "JobLogFilter",
    "Outcome",
    "Worker",
    "WorkerOptions",
    "current_job",
]
