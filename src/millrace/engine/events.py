"""The events of the journal. The engine creates them; all other packages only read them."""

from functools import lru_cache
from hashlib import blake2s
from re import compile as regex
from typing import Any, Final, NamedTuple

from .job import NO_PROTOCOL, Job
from .states import DONE, FAILURE_CAUSES, GONE, LEASED

#: Incremented when fields are added; the journal stores it with each range of events.
#: 2: `before`, `created` and `source`, so that no reader needs a job's other events.
#: 3: an event that ends a lease or a job carries its totals, so that no reader needs a join.
EVENT_VERSION = 3


class Event(NamedTuple):
    """One event of one job. Times and durations are in microseconds.

    The engine appends plain tuples in this order: a NamedTuple costs three times as much, and each
    job has at least three events.
    """

    time: int
    type: str
    seq: int
    jid: str
    queue: str
    kind: str
    origin: int
    actor: int
    worker: str
    attempt: int
    state: int
    rank: int
    ready_at: int
    leased_at: int
    wait: int
    run: int
    due: int
    size: int
    before: int
    created: int
    group: str = ""
    message: str = ""
    fingerprint: str = ""
    tags: tuple[str, ...] = ()
    source: str = ""
    # For an event that ends a lease, which also carries its `wait`: the protocol that leased the
    # job, and the number of renewals.
    holder: int = 0
    renewals: int = 0
    #: 1 if the job's previous failure has the same fingerprint as this one.
    repeat: int = 0
    # For a transition to `done`, `dead` or `gone`: totals over the life of the job, -1 if unknown,
    # the time of its first lease, its first queue if that differs, and the cause and time of its
    # end.
    leases: int = 0
    failures: int = 0
    wait_total: int = 0
    run_total: int = 0
    first_leased_at: int = 0
    first_queue: str = ""
    outcome: str = ""
    ended_at: int = 0


#: An event as a plain tuple, or as the list that the store returns.
EventTuple = tuple[Any, ...]


def make_event(
    job: Job,
    cause: str,
    before: int,
    now: int,
    actor: int,
    wait: int = 0,
    run: int = 0,
    source: str = "",
    repeat: int = 0,
) -> EventTuple:
    """The event of a job's transition from `before` to its current state, in the order of `Event`.

    The result omits empty fields at the end: most events have only the first twenty.
    """
    state, history, terms = job.state, job.history, job.terms
    event = (
        now,
        cause,
        job.seq,
        job.jid,
        job.queue,
        terms.kind,
        terms.origin,
        actor,
        history.holder,
        history.attempt,
        state,
        job.rank,
        job.ready_at,
        history.leased_at,
        wait,
        run,
        job.due_at,
        job.stored_size or len(job.inline_payload),
        before,
        job.created,
    )
    if history.failure is None and job.extra is None and not source:
        if before != LEASED:
            if state < DONE:
                return event
        elif state >= DONE and history.totals is None:  # its only lease
            rest = (
                "",
                "",
                "",
                (),
                "",
                history.holder_protocol,
                0,
                0,
                1,
                0,
                wait,
                run,
                history.leased_at,
                "",
                cause,
                now,
            )
            return event + rest
    failure, extra, totals = history.failure, job.extra, history.totals
    ended = state >= DONE
    group = message = digest = ""
    if failure is not None and (ended or cause in FAILURE_CAUSES):
        group, message = failure.group, failure.message
        digest = fingerprint(group, message)
    tags = () if extra is None else tuple(extra.tags)
    holder, renewals = NO_PROTOCOL, 0
    if before == LEASED and state != LEASED:
        holder = history.holder_protocol
        renewals = 0 if totals is None else totals.renewals
    details: EventTuple = (group, message, digest, tags, source, holder, renewals, repeat)
    if not ended:
        return event + details
    # If the job is removed when it ends, its history has no outcome; use that of this event.
    end = (cause, now) if state == GONE and before < DONE else (history.outcome, history.ended_at)
    return event + details + _totals(job, before, wait, run) + end


def _totals(job: Job, before: int, wait: int, run: int) -> EventTuple:
    """The totals of an ended job; an unknown number is -1."""
    found = job.history.totals
    if found is None and before == LEASED:
        return 1, 0, wait, run, job.history.leased_at, ""
    if found is None:
        unknown = -1 if job.history.attempt or job.history.failures else 0
        return unknown, unknown, unknown, unknown, 0, ""
    if not found.complete:
        return -1, -1, -1, -1, 0, found.first_queue
    return (
        found.leases,
        found.failures,
        found.wait,
        found.run,
        found.first_leased_at,
        found.first_queue,
    )


_VARYING = regex(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|[0-9a-fA-F]{8,}|\d+"
    r"|(?<!\w)'[^']*'(?!\w)|\"[^\"]*\""
)


#: The hashes of longer groups are not cached: the cache would keep the groups.
MAX_CACHED_GROUP: Final = 1000


def fingerprint(group: str, message: str) -> str:
    """A hash that is equal for errors that differ only in numbers, ids and quoted text."""
    message = message[:1000]
    return _cached_hash(group, message) if len(group) <= MAX_CACHED_GROUP else _hash(group, message)


# Jobs often fail with the same message in large numbers at the same time.
@lru_cache(maxsize=256)
def _cached_hash(group: str, message: str) -> str:
    return _hash(group, message)


def _hash(group: str, message: str) -> str:
    normalized = group + "\0" + _VARYING.sub("#", message)
    return blake2s(normalized.encode("utf-8", "replace"), digest_size=8).hexdigest()
