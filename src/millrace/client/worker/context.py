"""The job that the current thread or asyncio task runs, for user code and for log records."""

import logging
from contextvars import ContextVar

from millrace.client.jobs import Job

_current: ContextVar[Job | None] = ContextVar("millrace_job", default=None)

set_current = _current.set
reset_current = _current.reset


def current_job() -> Job | None:
    """The job that runs here, or None outside of a job."""
    return _current.get()


class JobLogFilter(logging.Filter):
    """Adds `job_id` and `task` to every log record; both are "-" outside of a job."""

    def filter(self, record: logging.LogRecord) -> bool:
        job = _current.get()
        record.job_id = "-" if job is None else job.id
        record.task = "-" if job is None else job.name
        return True
