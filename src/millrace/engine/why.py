"""The reasons why a job is not running, as data and as sentences.

A job can have several reasons, for example a paused queue without workers. The strongest reason
comes first. A protocol can add reasons, see `Hub.holds_back`.
"""

from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from .engine import Engine
from .job import FOREVER, PROTOCOLS, Job
from .policy import BOUND, SECOND
from .states import BLOCKED, DONE, LEASED, READY, SCHEDULED, STATE_NAMES

#: Polling workers request jobs at least this often.
LATELY: Final = 60 * SECOND
#: The position in the queue is exact up to this number of jobs.
FIRST: Final = 1000
#: A reason names at most this number of blockers.
NAMED: Final = 10

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
    """Times are microseconds since 1970; fields that a code does not use are empty."""

    code: Code
    #: The start of the reason.
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


class Why(msgspec.Struct):
    """A job and the reasons why it is not running."""

    jid: str
    seq: int
    queue: str
    kind: str
    origin: str
    state: str
    attempt: int
    reasons: list[Reason]


def why(engine: Engine, job: Job, now: int) -> Why:
    return Why(
        job.jid,
        job.seq,
        job.queue,
        job.kind,
        PROTOCOLS[job.origin],
        STATE_NAMES[job.state],
        job.attempt,
        _halted(engine) + _reasons(engine, job, now),
    )


def _reasons(engine: Engine, job: Job, now: int) -> list[Reason]:
    if job.state == READY:
        return _unleased(engine, job, now)
    if job.state == BLOCKED:
        return _staged(job) + _blocked(engine, job)
    if job.state == LEASED:
        until = 0 if job.actor in BOUND else job.deadline
        actor = PROTOCOLS[job.actor]
        return [Reason("leased", job.leased_at, until, job.holder, actor)]
    if job.state == SCHEDULED:
        failed_at = 0 if job.failure is None else job.failure.last_at
        return [Reason("not due", failed_at, job.due, about=_failed(job))]
    kept_until = 0 if job.due == FOREVER else job.due
    if job.state == DONE:
        return [Reason("done", job.ended_at, kept_until)]
    return [Reason("dead", job.ended_at, kept_until, about=_failed(job))]


def _unleased(engine: Engine, job: Job, now: int) -> list[Reason]:
    queue = engine.queues[job.queue]
    reasons = [Reason("paused")] if queue.paused else []
    if not queue.waiters and queue.asked < now - LATELY:
        reasons.append(Reason("unasked", since=queue.asked))
    first = queue.ready.first(FIRST)
    ahead = next((n for n, each in enumerate(first) if each is job), FIRST)
    reasons.append(Reason("queued", since=job.ready_at, count=ahead))
    return reasons


def _staged(job: Job) -> list[Reason]:
    load = "" if job.extra is None else job.extra.load
    return [Reason("staged", since=job.created, about=load)] if load else []


def _blocked(engine: Engine, job: Job) -> list[Reason]:
    seqs = [] if job.extra is None else job.extra.blockers
    if not seqs:
        return []
    found = [engine.jobs[seq] for seq in seqs[:NAMED] if seq in engine.jobs]
    blockers = [Blocker(each.jid, each.seq, STATE_NAMES[each.state]) for each in found]
    return [Reason("blocked", count=len(seqs), blockers=blockers)]


def _halted(engine: Engine) -> list[Reason]:
    return [Reason("halted", about=engine.halted)] if engine.halted else []


def _failed(job: Job) -> str:
    failure = job.failure
    if failure is None:
        return ""
    return f"{failure.group}: {failure.message}" if failure.group else failure.message


# Sentences


def sentence(reason: Reason, job: Why, now: int) -> str:
    """One reason as a sentence."""
    since, until, about = reason.since, reason.until, reason.about
    match reason.code:
        case "halted":
            return (
                f"Nothing can be written ({about}), so no job is handed out. The server "
                "resumes as soon as the store works again."
            )
        case "paused":
            return f'The queue "{job.queue}" is paused. Resume it.'
        case "limit":
            return f"{about} is reached: {reason.count} at a time may be with workers."
        case "unasked":
            last = f"The last one did {moment(since, now)}" if since else "None has since its start"
            return (
                f'No worker of any protocol asks the server for jobs of the queue "{job.queue}". '
                f"{last}. Start one."
            )
        case "queued":
            return f"It became ready {moment(since, now)}, and is {_place(reason.count)}."
        case "not due":
            failed = f" Attempt {job.attempt} failed {moment(since, now)} ({about})."
            return f"It is not due before {moment(until, now)}.{failed if since else ''}"
        case "blocked":
            return _waits_for(reason)
        case "staged":
            return (
                f"It came with the load {about} {moment(since, now)}, which is not released yet. "
                "Release the load, or discard it."
            )
        case "leased":
            who = f"{reason.holder or 'A worker'} ({reason.protocol})"
            return f"{who} has it since {moment(since, now)}{_to(until, now)}."
        case "done":
            return f"It was completed {moment(since, now)}.{_kept(until, now)}"
        case "dead":
            failed = f" ({about})" if about else ""
            kept = _kept(until, now)
            return f"It failed for good {moment(since, now)}{failed}.{kept} Retry or remove it."


def moment(at: int, now: int) -> str:
    """`2026-11-16 09:30:00 UTC, in 5 min`"""
    if not at:
        return "at an unknown time"  # recorded by an old version
    try:
        text = datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):
        return "a time beyond the calendar"
    return f"{text}, {span(now - at)} ago" if at <= now else f"{text}, in {span(at - now)}"


def span(microseconds: int) -> str:
    """An approximate duration."""
    seconds = microseconds / SECOND
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _place(ahead: int) -> str:
    if not ahead:
        return "the next of its queue"
    many = f"at least {FIRST}" if ahead >= FIRST else ahead
    return f"behind {many} other{'s' if ahead > 1 else ''}"


def _waits_for(reason: Reason) -> str:
    listed = ", ".join(f"{each.jid} ({each.state})" for each in reason.blockers)
    more = reason.count - len(reason.blockers)
    text = f"It waits for {listed}{f' and {more} more' if more else ''}."
    if any(each.state == "dead" for each in reason.blockers):
        text += " A dead job blocks it until you retry or remove that job."
    return text


def _to(until: int, now: int) -> str:
    if not until:
        return ", for as long as its connection stands"
    if until <= now:  # a Qless lease, which ends with the next pop
        return f"; the lease expired {moment(until, now)}, and the next Qless pop receives the job"
    return f"; the lease ends {moment(until, now)}"


def _kept(until: int, now: int) -> str:
    return f" It is kept until {moment(until, now)}." if until else ""
