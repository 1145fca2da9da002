"""The reasons why a job is not running, as data and as sentences.

A job can have several reasons, for example a paused queue without workers. The list starts with the
strongest reason.
"""

from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from .engine import Engine
from .job import FOREVER, SECOND, Job
from .limits import QUEUE_KEY_PREFIX, keys_of
from .parked_jobs import parked_of
from .queues import Queue
from .states import BLOCKED, DONE, LEASED, READY, SCHEDULED, STATE_NAMES

#: Polling workers request jobs at least this often.
RECENT_PERIOD: Final = 60 * SECOND
#: The position in the queue is exact up to this number of jobs.
MAX_EXAMINED: Final = 1000
#: A reason names at most this number of blockers.
MAX_NAMED: Final = 10

Code = Literal[
    "halted",
    "paused",
    "limit",
    "unasked",
    "queued",
    "not due",
    "blocked",
    "staged",
    "leased",
    "done",
    "dead",
]


class Blocker(msgspec.Struct):
    """A job that blocks another job."""

    jid: str
    seq: int
    state: str


class Reason(msgspec.Struct, omit_defaults=True):
    """One reason why a job is not running. Times are microseconds since 1970. Fields that a code
    does not use are empty.
    """

    code: Code
    #: The time at which the reason began to apply.
    since: int = 0
    #: The time at which the reason ends without a command.
    until: int = 0
    #: The holder of the job and its protocol.
    holder: str = ""
    protocol: str = ""
    #: The number of blockers, of jobs ahead of it, or of jobs that a limit permits.
    count: int = 0
    blockers: list[Blocker] = []
    #: The error, the limit, or the reason why the store fails.
    about: str = ""


class JobReasons(msgspec.Struct):
    """A job and the reasons why it is not running."""

    jid: str
    seq: int
    queue: str
    kind: str
    origin: str
    state: str
    attempt: int
    reasons: list[Reason]


def why(engine: Engine, job: Job, now: int) -> JobReasons:
    return JobReasons(
        job.jid,
        job.seq,
        job.queue,
        job.kind,
        engine.rules.names[job.origin],
        STATE_NAMES[job.state],
        job.history.attempt,
        _unavailable(engine) + _reasons(engine, job, now),
    )


def _reasons(engine: Engine, job: Job, now: int) -> list[Reason]:
    if job.state == READY:
        return _unleased(engine, job, now)
    if job.state == BLOCKED:
        return _staged(job) + _blocked(engine, job)
    if job.state == LEASED:
        until = (
            0
            if job.history.holder_protocol in engine.rules.bound_protocols
            else job.history.deadline
        )
        actor = engine.rules.names[job.history.holder_protocol]
        return [Reason("leased", job.history.leased_at, until, job.history.holder, actor)]
    if job.state == SCHEDULED:
        failed_at = 0 if job.history.failure is None else job.history.failure.last_at
        return [Reason("not due", failed_at, job.due_at, about=_failed(job))]
    kept_until = 0 if job.due_at == FOREVER else job.due_at
    if job.state == DONE:
        return [Reason("done", job.history.ended_at, kept_until)]
    return [Reason("dead", job.history.ended_at, kept_until, about=_failed(job))]


def _unleased(engine: Engine, job: Job, now: int) -> list[Reason]:
    queue = engine.queues[job.queue]
    reasons = [Reason("paused")] if queue.paused else []
    if not queue.waiters and queue.last_requested_at < now - RECENT_PERIOD:
        reasons.append(Reason("unasked", since=queue.last_requested_at))
    if engine.limits.in_use:
        reasons += _limited(engine, job, queue, now)
    if job.seq in queue.ready.parked:
        return reasons
    first = queue.ready.first(MAX_EXAMINED)
    ahead = next((n for n, each in enumerate(first) if each is job), MAX_EXAMINED)
    reasons.append(Reason("queued", since=job.ready_at, count=ahead))
    return reasons


def _limited(engine: Engine, job: Job, queue: Queue, now: int) -> list[Reason]:
    """The limits of a job that are reached, and the limit for which it is parked."""
    limits, parked = engine.limits, parked_of(job)
    found = []
    for key in keys_of(job):
        waits = parked is not None and parked.key == key
        if not limits.has_room(key, now) or waits:
            since = parked.since if parked is not None and waits else 0
            count = int(min(limits.maximum(key, now), FOREVER))
            found.append(Reason("limit", since=since, count=count, about=_name(key)))
    maximum = limits.concurrency.get(queue.name, 0)
    if maximum and not limits.queue_has_room(queue, now):
        found.append(
            Reason("limit", count=int(maximum), about=_name(QUEUE_KEY_PREFIX + queue.name))
        )
    return found


def _name(key: str) -> str:
    if key.startswith(QUEUE_KEY_PREFIX):
        return f'The limit of the queue "{key[len(QUEUE_KEY_PREFIX) :]}"'
    return f'The limit "{key}"'


def _staged(job: Job) -> list[Reason]:
    load = "" if job.extra is None else job.extra.load
    return [Reason("staged", since=job.created, about=load)] if load else []


def _blocked(engine: Engine, job: Job) -> list[Reason]:
    seqs = [] if job.extra is None else job.extra.blockers
    if not seqs:
        return []
    found = [engine.jobs[seq] for seq in seqs[:MAX_NAMED] if seq in engine.jobs]
    rule = engine.caller.rule
    if rule is not None:
        found = rule.visible(found)
    blockers = [Blocker(each.jid, each.seq, STATE_NAMES[each.state]) for each in found]
    return [Reason("blocked", count=len(seqs), blockers=blockers)]


def _unavailable(engine: Engine) -> list[Reason]:
    return [Reason("halted", about=engine.unavailable_reason)] if engine.unavailable_reason else []


def _failed(job: Job) -> str:
    failure = job.history.failure
    if failure is None:
        return ""
    return f"{failure.group}: {failure.message}" if failure.group else failure.message


# Sentences


def sentence(reason: Reason, job: JobReasons, now: int) -> str:
    """One reason as a sentence."""
    since, until, about = reason.since, reason.until, reason.about
    match reason.code:
        case "halted":
            return (
                f"The server cannot write to the store ({about}), so it leases no jobs. It resumes "
                "when the store works again."
            )
        case "paused":
            return f'Queue "{job.queue}" is paused. Resume it.'
        case "limit":
            return f"{about} is reached: at most {reason.count} of its jobs may be leased."
        case "unasked":
            last = f"the last fetch was {format_time(since, now)}"
            known = last if since else "no worker has fetched since the server started"
            return f'No worker is fetching from queue "{job.queue}"; {known}. Start a worker.'
        case "queued":
            return f"Ready since {format_time(since, now)}; {_position(reason.count)}."
        case "not due":
            failed = f" Attempt {job.attempt} failed {format_time(since, now)} ({about})."
            return f"Due {format_time(until, now)}.{failed if since else ''}"
        case "blocked":
            return _waits_for(reason)
        case "staged":
            return (
                f"Part of the load {about}, staged {format_time(since, now)}. "
                "The load is not released; release or discard it."
            )
        case "leased":
            who = f"{reason.holder or 'an unnamed worker'} ({reason.protocol})"
            return f"Leased by {who} since {format_time(since, now)}{_lease_end(until, now)}."
        case "done":
            return f"Completed {format_time(since, now)}.{_retained(until, now)}"
        case "dead":
            failed = f" ({about})" if about else ""
            kept = _retained(until, now)
            return (
                f"Failed permanently {format_time(since, now)}{failed}.{kept} Retry or delete it."
            )


def format_time(at: int, now: int) -> str:
    """A time and its distance from now: `2026-11-16 09:30:00 UTC, in 5 min`."""
    if not at:
        return "at an unknown time"  # recorded by an old version
    try:
        text = datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):
        return "after the year 9999"
    return (
        f"{text}, {format_span(now - at)} ago"
        if at <= now
        else f"{text}, in {format_span(at - now)}"
    )


def format_span(microseconds: int) -> str:
    """An approximate duration."""
    seconds = microseconds / SECOND
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _position(ahead: int) -> str:
    if not ahead:
        return "next in its queue"
    many = f"at least {MAX_EXAMINED}" if ahead >= MAX_EXAMINED else ahead
    return f"behind {many} other {'jobs' if ahead > 1 else 'job'}"


def _waits_for(reason: Reason) -> str:
    listed = [f"{each.jid} ({each.state})" for each in reason.blockers]
    more = reason.count - len(reason.blockers)
    if not listed:
        return f"Waits for {more} {'jobs' if more > 1 else 'job'}."
    text = f"Waits for {', '.join(listed)}{f' and {more} more' if more else ''}."
    if any(each.state == "dead" for each in reason.blockers):
        text += " A dead job blocks it until you retry or delete that job."
    return text


def _lease_end(until: int, now: int) -> str:
    if not until:
        return "; the lease lasts while its connection is open"
    if until <= now:  # the clock of the next client decides
        expired = format_time(until, now)
        return f"; the lease expired {expired}, and the next worker that requests a job receives it"
    return f"; the lease expires {format_time(until, now)}"


def _retained(until: int, now: int) -> str:
    return f" Retained until {format_time(until, now)}." if until else ""
