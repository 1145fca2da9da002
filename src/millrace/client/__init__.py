"""The Python SDK: declare tasks, push jobs, run workers.

The SDK speaks the Faktory protocol and needs only the standard library. `Millrace.testing()` also
needs the server's engine.
"""

from .app import Middleware, Millrace, PushFailed
from .errors import (
    AlreadyDeleted,
    BadReply,
    ConnectionLost,
    InvalidAddress,
    InvalidArguments,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobTimedOut,
    MillraceError,
    NotConnected,
    NotSupported,
    RequestRefused,
    TimedOut,
    UnknownTask,
    WorkerCrashed,
    WorkerStopped,
)
from .goqueue import GoJobQueue, ReservedJob
from .handles import JobHandle
from .jobs import Job, JsonSerializer, NewJob, Serializer
from .tasks import BoundTask, Task
from .worker import Worker, WorkerOptions, current_job

__all__ = [
    "AlreadyDeleted",
    "BadReply",
    "BoundTask",
    "ConnectionLost",
    "GoJobQueue",
    "InvalidAddress",
    "InvalidArguments",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "JobTimedOut",
    "JsonSerializer",
    "Middleware",
    "Millrace",
    "MillraceError",
    "NewJob",
    "NotConnected",
    "NotSupported",
    "PushFailed",
    "RequestRefused",
    "ReservedJob",
    "Serializer",
    "Task",
    "TimedOut",
    "UnknownTask",
    "Worker",
    "WorkerCrashed",
    "WorkerOptions",
    "WorkerStopped",
    "current_job",
]
