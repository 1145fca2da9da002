"""The content of keys under `ql:`: scores of jobs and fields of hashes, as in the scripts."""

from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Final

from millrace.engine.annotations import read_details
from millrace.engine.job import SECOND, Job
from millrace.engine.leases import FRONT_RANK
from millrace.engine.recurring import RecurringJob
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.engine.statistics import DurationSummary
from millrace.protocols.payloads import BASE64

from . import lua_values as lua
from . import queries
from .job_view import (
    klass_of,
    last_put_time,
    remaining,
    shown_data,
    shown_expiry,
    shown_worker,
)
from .names import encode_name
from .state import QlessState

Fields = list[tuple[bytes, bytes]]

#: Divisor of the time of a waiting job in its score. The priority always takes precedence.
TIME_DIVISOR: Final = 10_000_000_000 * SECOND


# Scores of jobs


def _waiting_score(job: Job) -> float:
    """Return a score by priority, then by time. A job that `timeout` unlocked is first."""
    return inf if job.rank >= FRONT_RANK else job.rank - job.position / TIME_DIVISOR


def _time(job: Job) -> float:
    """Return the time at which the job was last put, popped or completed."""
    details = read_details(job)
    if job.state == DONE:
        return details.done_at / SECOND
    return (details.waiting_since or job.history.leased_at or job.created) / SECOND


SCORES: Final[dict[int, Callable[[Job], float]]] = {
    READY: _waiting_score,
    LEASED: lambda job: job.history.deadline / SECOND,
    SCHEDULED: lambda job: job.due_at / SECOND,
    BLOCKED: lambda job: last_put_time(job) / SECOND,
}


# Fields of hashes


def format_number(value: lua.Number) -> bytes:
    """Format a number as the scripts pass it to Redis."""
    return b"%d" % value if isinstance(value, int) else b"%.17g" % value


def _format_seconds(microseconds: int) -> bytes:
    whole, rest = divmod(microseconds, SECOND)
    return b"%d" % whole if not rest else format_number(microseconds / SECOND)


def encode_pairs(found: Iterable[tuple[str, str]]) -> Fields:
    return [(encode_name(name), encode_name(value)) for name, value in found]


def _tags_json(tags: list[Any]) -> bytes:
    return lua.encode(tags) if tags else lua.EMPTY_LIST


def _throttles_json(q: QlessState, tids: list[str]) -> bytes:
    return lua.encode([q.client_throttle_name(tid) for tid in tids])


def _expires(job: Job) -> bytes:
    """Return the expiry of the lock: 0 without a lock, an empty string for a failed job."""
    return b"" if job.state == DEAD else shown_expiry(job)


def stage_json(when: float, what: str, more: dict[str, Any] | None) -> bytes:
    return lua.encode([when, what, more] if more else [when, what])


def of_job(q: QlessState, job: Job) -> Fields:
    details = read_details(job)
    data, encoding = shown_data(q.engine, job)
    found = [
        (b"jid", encode_name(q.client_name(job.jid))),
        (b"klass", encode_name(klass_of(job))),
        (b"type", encode_name(klass_of(job))),
        (b"data", data),
        (b"priority", format_number(details.priority)),
        (b"tags", _tags_json(details.tag_names())),
        (b"state", q.shown_state(job).encode()),
        (b"worker", encode_name(shown_worker(job))),
        (b"expires", _expires(job)),
        (b"queue", b"" if job.state == DONE else encode_name(q.client_name(job.queue))),
        (b"retries", b"%d" % job.retries),
        (b"remaining", b"%d" % remaining(job)),
        (b"time", b"%.20f" % _time(job)),
        (b"history", lua.encode(queries.stages(details.log))),
    ]
    failure = queries.failure_json(job)
    if failure != lua.EMPTY_LIST or job.state == DONE:
        found.append((b"failure", failure))
    if details.spawned_from:
        found.append((b"spawned_from_jid", encode_name(details.spawned_from)))
    if details.lapsed_at is not None:
        found.append((b"grace", b"1"))
    if job.state == BLOCKED and job.due_at:
        found.append((b"scheduled", _format_seconds(job.due_at)))
    if details.limits:
        found.append((b"throttles", _throttles_json(q, details.limits)))
    if encoding:
        found.append((b"encoding", BASE64.encode()))
    return found


def of_recurring(q: QlessState, recurring: RecurringJob) -> Fields:
    found = [
        (b"jid", encode_name(q.client_name(recurring.jid))),
        (b"klass", encode_name(recurring.kind)),
        (b"data", recurring.payload),
        (b"priority", format_number(recurring.priority)),
        (b"tags", _tags_json(recurring.tags)),
        (b"state", b"recur"),
        (b"queue", encode_name(q.client_name(recurring.queue))),
        (b"type", b"interval"),
        (b"count", b"%d" % recurring.count),
        (b"interval", format_number(recurring.interval)),
        (b"retries", b"%d" % recurring.retries),
        (b"backlog", format_number(recurring.backlog)),
    ]
    if recurring.limits:
        found.append((b"throttles", _throttles_json(q, recurring.limits)))
    return found


def of_durations(spread: DurationSummary) -> Fields:
    """The spec's names: `s0` and so on are seconds, `m`, `h`, `d` minutes, hours and days."""
    if not spread.count:
        return []
    found = [
        (b"total", b"%d" % spread.count),
        (b"mean", format_number(spread.mean)),
        (b"vk", format_number(spread.vk)),
    ]
    return found + [(_slot(at), b"%d" % count) for at, count in sorted(spread.histogram.items())]


def _slot(at: int) -> bytes:
    for letter, first in ((b"d", 142), (b"h", 119), (b"m", 60)):
        if at >= first:
            return b"%b%d" % (letter, at - first + 1)
    return b"s%d" % at
