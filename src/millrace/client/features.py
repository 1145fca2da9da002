"""Limits, recurring jobs and tracked jobs, as requests to a Millrace server."""

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from . import wire
from .errors import InvalidArguments
from .exchange import Exchange
from .jobs import Delay, JsonSerializer, NewJob
from .pool import require_body

if TYPE_CHECKING:
    from .app import Millrace


def set_limit(app: "Millrace", queue: str, maximum: int | None) -> Exchange[None]:
    if maximum is not None and maximum < 1:
        raise ValueError("A limit is at least 1; None removes it.")
    request = {"limit": {"queue": queue, "maximum": maximum or 0}}
    yield from _change(app, "limits", request)


def recur(app: "Millrace", name: str, job: NewJob, every: Delay, delay: Delay) -> Exchange[None]:
    if job.kwargs:
        raise InvalidArguments("A recurring job takes positional arguments only.")
    if job.depends_on or job.at is not None:
        raise InvalidArguments(
            "A recurring job cannot have `depends_on` or `at`. Pass `delay` to `recur`."
        )
    if app.serializer_name != JsonSerializer.name:
        raise InvalidArguments(
            "A recurring job takes JSON arguments only. Use an application without serializers."
        )
    request = {
        "id": name,
        "jobtype": job.name,
        "args": app.dump_arguments(job),
        "queue": job.queue,
        "retry": max(0, job.retries),
        "priority": job.priority,
        "tags": list(job.tags),
        "every": _seconds(every),
        "delay": _seconds(delay),
    }
    yield from _change(app, "recurring jobs", {"recur": request})


def unrecur(app: "Millrace", name: str) -> Exchange[bool]:
    changed = yield from _change(app, "recurring jobs", {"unrecur": name})
    return changed > 0


def track(app: "Millrace", job_id: str, *, tracked: bool) -> Exchange[bool]:
    name = "track" if tracked else "untrack"
    changed = yield from _change(app, "tracking", {name: [job_id]})
    return changed > 0


def _change(app: "Millrace", feature: str, request: dict[str, Any]) -> Exchange[int]:
    """Send a request and return the number of changes."""
    yield from app.require_millrace(feature)
    (reply,) = yield [wire.command("MILLRACE", request)]
    return int(json.loads(require_body(reply))["changed"])


def _seconds(delay: Delay) -> float:
    return delay.total_seconds() if isinstance(delay, timedelta) else delay
