"""Why is this job not running? What the engine knows of it, as reasons and in words.

A job may have several reasons: its queue is paused, and nobody asks for it either. They come with
what stands most firmly in the way first. A protocol may know more, see `Hub.holds_back`.
"""

from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from .engine import Engine
from .job import FOREVER, PROTOCOLS, Job
from .policy import BOUND, SECOND
from .states import BLOCKED, DONE, LEASED, READY, SCHEDULED, STATE_NAMES

#: Workers that wait in short steps, or look now and then, ask at least this often.
LATELY: Final = 60 * SECOND
#: A job behind so many others is not told its exact place.
FIRST: Final = 1000
#: Of so many of those that a job waits for the names are told.
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
    """A job that another one waits for."""

    jid: str
    seq: int
    state: str


class Reason(msgspec.Struct, omit_defaults=True):
    """Times are microseconds since 1970; what a code has no use for stays empty."""

    code: Code
    #: When it began, or happened.
    since: int = 0
    #: When it ends by itself.
    until: int = 0
    #: Who has the job, and what that one speaks.
    holder: str = ""
    protocol: str = ""
    #: How many: jobs that it waits for, that are ahead of it, or that a limit admits.
    count: int = 0
    blockers: list[Blocker] = []
    #: What failed, which limit it is, why nothing can be written.
    about: str = ""


class Why(msgspec.Struct):
    """A job, and what keeps it from running."""

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


# In words


def sentence(reason: Reason, job: Why, now: int) -> str:
    """One reason, for a person."""
    since, until, about = reason.since, reason.until, reason.about
    match reason.code:
        case "halted":
            return (
                f"Nothing can be written ({about}), so no job is handed out. Mend that, and the "
                "server goes on by itself."
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
            who = f"{reason.holder or 'Somebody'} ({reason.protocol})"
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
        return "at a time that was not kept"  # by a Millrace before this one
    try:
        text = datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):
        return "a moment beyond all calendars"
    return f"{text}, {span(now - at)} ago" if at <= now else f"{text}, in {span(at - now)}"


def span(microseconds: int) -> str:
    """About how long that is."""
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
        text += " A dead one blocks until somebody retries or removes it."
    return text


def _to(until: int, now: int) -> str:
    if not until:
        return ", for as long as its connection stands"
    if until <= now:  # only Qless has such: its leases end when somebody looks
        return f"; the lease ran out {moment(until, now)}, and whoever next pops over Qless gets it"
    return f"; the lease ends {moment(until, now)}"


def _kept(until: int, now: int) -> str:
    return f" It is kept until {moment(until, now)}." if until else ""
