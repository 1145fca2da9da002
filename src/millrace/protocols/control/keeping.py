"""`recurring`, `tracked`, `tags` and `throttles`: what is kept beside jobs.

It is Qless that keeps it. Where it is not served there is none of it, but for tags: those are
counted.
"""

from collections import Counter
from collections.abc import Generator, Iterator
from math import isfinite
from typing import Final

from millrace.engine.job import FOREVER
from millrace.protocols.qless.state import Qless, Recurring

from .answering import Answering, Telling
from .errors import Refused
from .hub import ControlHub
from .messages import (
    Asked,
    RecurringRow,
    RecurringRows,
    TagRow,
    TagRows,
    ThrottleRow,
    ThrottleRows,
    TrackedRow,
    TrackedRows,
)
from .paging import MOST, page_of
from .rows import LARGE_LIST, MOST_PAYLOAD, MOST_TAGS, row, text, weight
from .walks import Numbered

#: So many jobs or tags are counted before others have their turn.
SLICE: Final = 1000
#: Of so many jobs that hold a throttle or wait for it the ids are told.
MOST_NAMED: Final = 100
THROTTLES: Final = 10


def recurring(hub: ControlHub, asked: Asked, _: int) -> Iterator[RecurringRows | None]:
    qless = hub.qless
    kept = {} if qless is None else qless.recurring
    names, is_more = yield from page_of(list(kept), asked.after or None, asked.most)
    rows = [_recurring(kept[jid]) for jid in names if jid in kept]
    yield RecurringRows(rows, len(kept), names[-1] if is_more else "")


def _recurring(kept: Recurring) -> RecurringRow:
    return RecurringRow(
        jid=kept.jid,
        kind=text(kept.klass),
        queue=text(kept.queue),
        interval=_finite(kept.interval),
        priority=_finite(kept.priority),
        retries=kept.retries,
        backlog=_finite(kept.backlog),
        tags=[text(str(tag)) for tag in kept.tags[:MOST_TAGS]],
        next=kept.next,
        count=kept.count,
        payload=kept.data[:MOST_PAYLOAD],
        throttles=[text(name) for name in kept.throttles[:MOST_NAMED]],
    )


def _finite(number: float) -> float:
    """JSON has no word for others."""
    return number if isfinite(number) else 0


def tracked(hub: ControlHub, asked: Asked, _: int) -> Iterator[TrackedRows | None]:
    """Also those that are gone: somebody waits to hear of them."""
    qless = hub.qless
    kept = {} if qless is None else qless.tracked
    names, is_more = yield from page_of(list(kept), asked.after or None, asked.most)
    rows, size = [], 0
    for number, jid in enumerate(names, 1):
        job = hub.engine.find(jid)
        told = None if job is None else row(hub, job)
        rows.append(TrackedRow(jid, kept.get(jid, 0), told))
        size += len(jid) + (0 if told is None else weight(told))
        if size >= LARGE_LIST:
            is_more |= number < len(names)
            names = names[:number]
            break
    yield TrackedRows(rows, len(kept), names[-1] if is_more else "")


# Tags


def tags(hub: ControlHub, asked: Asked, _: int) -> Iterator[TagRows | None]:
    """The most used; `after` is of no use."""
    if not 0 < asked.most <= MOST:
        raise Refused(f"`most` is from 1 to {MOST}")
    qless = hub.qless
    if qless is None:
        counts = yield from _counted(hub)
    else:
        counts = yield from _known(qless)
    most: list[tuple[int, str]] = []
    names = list(counts)
    for first in range(0, len(names), SLICE):
        yield None
        some = [(-counts[name], name) for name in names[first : first + SLICE]]
        most = sorted(most + some)[: asked.most]
    yield TagRows([TagRow(name, -count) for count, name in most], len(counts))


def _known(qless: Qless) -> Generator[None, None, dict[str, int]]:
    counts: dict[str, int] = {}
    names = list(qless.tags)
    for first in range(0, len(names), SLICE):
        yield
        for name in names[first : first + SLICE]:
            if used := len(qless.tags.get(name, ())):
                counts[name] = used
    return counts


def _counted(hub: ControlHub) -> Generator[None, None, dict[str, int]]:
    counts: Counter[str] = Counter()
    jobs, passed = hub.engine.jobs, 0
    for stop in Numbered(hub.engine).go(None):
        job = None if stop is None else jobs.get(stop[1])
        if job is not None and job.extra is not None:
            counts.update(job.extra.tags)
        passed += 1
        if stop is None or passed == SLICE:
            passed = 0
            yield
    return counts


# Throttles


def throttles(hub: ControlHub, _: bool, now: int) -> Iterator[ThrottleRows | None]:
    qless = hub.qless
    if qless is None:
        yield ThrottleRows([])
        return
    theirs = now + hub.engine.theirs
    known = list(qless.throttles.limits.keys() | qless.throttles.pending.keys() - {""})
    names, _more = yield from page_of(known, None, MOST)
    rows = []
    for number, name in enumerate(names, 1):
        rows.append(_throttle(qless, name, theirs))
        if number % THROTTLES == 0:
            yield None
    yield ThrottleRows(rows)


def _throttle(qless: Qless, name: str, now: int) -> ThrottleRow:
    kept = qless.throttles
    limit = kept.limit(name, now)
    return ThrottleRow(
        name=name,
        maximum=0 if limit is None or not isfinite(limit.maximum) else int(limit.maximum),
        expires=0 if limit is None else min(limit.expires, FOREVER),
        holders=[text(job.jid) for job in kept.some_holders(name, MOST_NAMED)],
        waiting=[text(job.jid) for job in kept.some_waiting(name, MOST_NAMED)],
    )


ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {
    "recurring": recurring,
    "tracked": tracked,
    "tags": tags,
    "throttles": throttles,
}
