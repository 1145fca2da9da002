"""Features of the engine that the Python SDK uses: limits, recurring jobs and tracked jobs.

    MILLRACE {"limit": {"queue": "images", "maximum": 2}}     at most 2 leased jobs; 0: no limit
    MILLRACE {"recur": {"id": "nightly", "jobtype": "report", "args": [], "every": 86400}}
    MILLRACE {"unrecur": "nightly"}                            end a recurring job
    MILLRACE {"track": ["jid"]}, MILLRACE {"untrack": ["jid"]}

Each reply is {"changed": N}, the number of changes. The jobs that a recurring job creates follow
the rules of jobs that were pushed over HTTP.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from millrace.engine.engine import Engine
from millrace.engine.job import SECOND
from millrace.engine.limits import QUEUE_KEY_PREFIX
from millrace.engine.recurring import RecurringJob
from millrace.protocols.errors import ClientError
from millrace.protocols.registry import HTTP
from millrace.records.types import MAX_PRIORITY

from .forms import DEFAULT_RETRY
from .work_unit import QUEUE_NAME

MAX_LIMIT: Final = 1_000_000
MAX_ARGS_BYTES: Final = 1 << 20
MAX_INTERVAL: Final = 10 * 366 * 86_400
MAX_TRACKED: Final = 1000

_Id = Annotated[str, Meta(min_length=1, max_length=255)]
_Tag = Annotated[str, Meta(min_length=1, max_length=255)]
Ids = Annotated[list[_Id], Meta(max_length=MAX_TRACKED)]


class LimitRequest(msgspec.Struct, forbid_unknown_fields=True):
    queue: str
    maximum: Annotated[int, Meta(ge=0, le=MAX_LIMIT)]


class RecurRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: _Id
    jobtype: _Id
    args: msgspec.Raw
    #: Seconds between two jobs.
    every: Annotated[float, Meta(gt=0, le=MAX_INTERVAL)]
    queue: str = "default"
    retry: Annotated[int, Meta(ge=0, le=1_000_000)] = DEFAULT_RETRY
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    tags: Annotated[list[_Tag], Meta(max_length=100)] = []
    #: Seconds until the first job.
    delay: Annotated[float, Meta(ge=0, le=MAX_INTERVAL)] = 0


def set_limit(engine: Engine, request: LimitRequest, now: int) -> int:
    _check_queue(request.queue)
    if engine.set_limit(QUEUE_KEY_PREFIX + request.queue, request.maximum or None, 0, now, HTTP):
        return 1
    engine.caller.wait()  # its deletion may not be committed yet
    return 0


def put_recurring(engine: Engine, request: RecurRequest, now: int) -> int:
    """Add a recurring job, or replace the one with this id; the new one keeps the old count."""
    _check_queue(request.queue)
    args = bytes(request.args)
    if args[:1] != b"[" or len(args) > MAX_ARGS_BYTES:
        raise ClientError(f"args must be an array of at most {MAX_ARGS_BYTES} bytes")
    known = engine.recurring.by_id.get(request.id)
    engine.open_queue(request.queue)
    engine.put_recurring(
        RecurringJob(
            request.id,
            request.jobtype,
            args,
            request.queue,
            request.every,
            request.priority,
            request.retry,
            1,  # after server downtime, create at most one missed job
            list(dict.fromkeys(request.tags)),
            now + round(request.delay * SECOND),
            0 if known is None else known.count,
            origin=HTTP,
            timed=True,
        )
    )
    return 1


def delete_recurring(engine: Engine, jid: str) -> int:
    if engine.delete_recurring(jid):
        return 1
    engine.caller.wait()
    return 0


def track(engine: Engine, jids: list[str], now: int | None) -> int:
    """Track jobs from `now` on; None stops the tracking."""
    tracked = engine.annotations.tracked
    changed = [jid for jid in dict.fromkeys(jids) if (jid in tracked) == (now is None)]
    for jid in changed:
        engine.track(jid, now, HTTP)
    if not changed:
        engine.caller.wait()
    return len(changed)


def _check_queue(name: str) -> None:
    if QUEUE_NAME.fullmatch(name) is None:
        raise ClientError("queue names must match \\A[a-zA-Z0-9._-]+\\z")
