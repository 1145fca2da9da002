"""Replies with a large number of jobs: `pop` and `peek` with a large count run in slices."""

from collections.abc import Callable, Generator
from typing import Any, Final

from millrace.engine.job import Job

from . import lua_values as lua
from .commands import MAX_REPLY_BYTES
from .resp import Reply
from .state import Qless

#: Number of jobs that are popped or written in one slice.
JOBS_BATCH_SIZE: Final = 200

JobWriter = Callable[[Qless, Job], bytes]


def reply(
    api: Any, call: Any, write: JobWriter, finish: Callable[[list[bytes]], Reply]
) -> Reply | Generator[None, None, Reply]:
    """The reply to `pop` (queue, worker, count) or `peek` (queue, count)."""
    at = 2 if call.command == "pop" else 1
    count = lua.tonumber(call.args[at]) if len(call.args) > at else None
    if count is None or count <= JOBS_BATCH_SIZE:
        jobs: list[Job] = api.do(call.command, call.now, call.args)
        return finish([write(api.qless, job) for job in jobs])
    if call.command == "pop":
        return _pop(api, call, count, write, finish)
    return in_slices(api.qless, api.do(call.command, call.now, call.args), write, finish)


def _pop(
    api: Any, call: Any, count: float, write: JobWriter, finish: Callable[[list[bytes]], Reply]
) -> Generator[None, None, Reply]:
    """Pop until there are enough jobs, no more jobs, or the reply has its maximum size."""
    found: list[bytes] = []
    size = 0
    while len(found) < count and size < MAX_REPLY_BYTES:
        wanted = min(JOBS_BATCH_SIZE, count - len(found))
        args = [*call.args[:2], b"%d" % -(-wanted // 1), *call.args[3:]]
        jobs: list[Job] = api.do(call.command, call.now, args)
        rows = [write(api.qless, job) for job in jobs]
        found += rows
        size += sum(map(len, rows))
        if len(jobs) < wanted:
            break
        yield
    return finish(found)


def in_slices(
    q: Qless, jobs: list[Job], write: JobWriter, finish: Callable[[list[bytes]], Reply]
) -> Generator[None, None, Reply]:
    """Encode jobs up to the maximum size of a reply. Jobs removed between slices are skipped."""
    found: list[bytes] = []
    size = 0
    for number, job in enumerate(jobs, 1):
        if job.seq in q.engine.jobs and size < MAX_REPLY_BYTES:
            found.append(write(q, job))
            size += len(found[-1])
        if number % JOBS_BATCH_SIZE == 0:
            yield
    return finish(found)
