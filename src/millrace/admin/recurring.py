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
from millrace.records import (
    LimitPage,
    LimitRecord,
    PageRequest,
    RecurringPage,
    RecurringRecord,
    TagCount,
    TagPage,
    TrackedJob,
    TrackedPage,
)

from .answering import Answering, Telling
from .errors import AdminError
from .jobs import MAX_LISTED_TAGS, MAX_PAGE_TEXT, row, text, weight
from .paging import MAX_PAGE_SIZE, page_of
from .scans import SequenceScan
from .service import AdminService

#: So many jobs or tags are counted before others have their turn.
TAG_SLICE_SIZE: Final = 1000
#: Of so many jobs that hold a throttle or wait for it the ids are told.
MAX_LISTED_JOBS: Final = 100
LIMIT_SLICE_SIZE: Final = 10
#: A recurring job has no page of its own, so a list has this much of its payload.
MAX_RECURRING_PAYLOAD: Final = 65_536


def recurring(hub: AdminService, asked: PageRequest, _: int) -> Iterator[RecurringPage | None]:
    qless = hub.qless
    kept = {} if qless is None else qless.recurring
    names, is_more = yield from page_of(list(kept), asked.after or None, asked.most)
    rows, size = [], 0
    for number, jid in enumerate(names, 1):
        if jid in kept:
            rows.append(_recurring(kept[jid]))
            size += len(jid) + len(rows[-1].payload)
        if size >= MAX_PAGE_TEXT:
            is_more |= number < len(names)
            names = names[:number]
            break
    yield RecurringPage(rows, len(kept), names[-1] if is_more else "")


def _recurring(kept: Recurring) -> RecurringRecord:
    return RecurringRecord(
        jid=kept.jid,
        kind=text(kept.klass),
        queue=text(kept.queue),
        interval=_finite(kept.interval),
        priority=_finite(kept.priority),
        retries=kept.retries,
        backlog=_finite(kept.backlog),
        tags=[text(str(tag)) for tag in kept.tags[:MAX_LISTED_TAGS]],
        next=kept.next,
        count=kept.count,
        payload=kept.data[:MAX_RECURRING_PAYLOAD],
        size=len(kept.data),
        throttles=[text(name) for name in kept.throttles[:MAX_LISTED_JOBS]],
    )


def _finite(number: float) -> float:
    """JSON has no word for others."""
    return number if isfinite(number) else 0


def tracked(hub: AdminService, asked: PageRequest, _: int) -> Iterator[TrackedPage | None]:
    """Also those that are gone: somebody waits to hear of them."""
    qless = hub.qless
    kept = {} if qless is None else qless.tracked
    names, is_more = yield from page_of(list(kept), asked.after or None, asked.most)
    rows, size = [], 0
    for number, jid in enumerate(names, 1):
        job = hub.engine.find(jid)
        told = None if job is None else row(hub, job)
        rows.append(TrackedJob(jid, kept.get(jid, 0), told))
        size += len(jid) + (0 if told is None else weight(told))
        if size >= MAX_PAGE_TEXT:
            is_more |= number < len(names)
            names = names[:number]
            break
    yield TrackedPage(rows, len(kept), names[-1] if is_more else "")


# Tags


def tags(hub: AdminService, asked: PageRequest, _: int) -> Iterator[TagPage | None]:
    """The most used; `after` is of no use."""
    if not 0 < asked.most <= MAX_PAGE_SIZE:
        raise AdminError(f"`most` is from 1 to {MAX_PAGE_SIZE}")
    qless = hub.qless
    if qless is None:
        counts = yield from _counted(hub)
    else:
        counts = yield from _known(qless)
    most: list[tuple[int, str]] = []
    names = list(counts)
    for first in range(0, len(names), TAG_SLICE_SIZE):
        yield None
        some = [(-counts[name], name) for name in names[first : first + TAG_SLICE_SIZE]]
        most = sorted(most + some)[: asked.most]
    yield TagPage([TagCount(name, -count) for count, name in most], len(counts))


def _known(qless: Qless) -> Generator[None, None, dict[str, int]]:
    counts: dict[str, int] = {}
    names = list(qless.tags)
    for first in range(0, len(names), TAG_SLICE_SIZE):
        yield
        for name in names[first : first + TAG_SLICE_SIZE]:
            if used := len(qless.tags.get(name, ())):
                counts[name] = used
    return counts


def _counted(hub: AdminService) -> Generator[None, None, dict[str, int]]:
    counts: Counter[str] = Counter()
    jobs, passed = hub.engine.jobs, 0
    for stop in SequenceScan(hub.engine).go(None):
        job = None if stop is None else jobs.get(stop[1])
        if job is not None and job.extra is not None:
            counts.update(job.extra.tags)
        passed += 1
        if stop is None or passed == TAG_SLICE_SIZE:
            passed = 0
            yield
    return counts


# Throttles


def throttles(hub: AdminService, _: bool, now: int) -> Iterator[LimitPage | None]:
    qless = hub.qless
    if qless is None:
        yield LimitPage([])
        return
    theirs = now + hub.engine.theirs
    known = list(qless.throttles.limits.keys() | qless.throttles.pending.keys() - {""})
    names, _more = yield from page_of(known, None, MAX_PAGE_SIZE)
    rows = []
    for number, name in enumerate(names, 1):
        rows.append(_throttle(qless, name, theirs))
        if number % LIMIT_SLICE_SIZE == 0:
            yield None
    yield LimitPage(rows)


def _throttle(qless: Qless, name: str, now: int) -> LimitRecord:
    kept = qless.throttles
    limit = kept.limit(name, now)
    return LimitRecord(
        name=name,
        maximum=0 if limit is None or not isfinite(limit.maximum) else int(limit.maximum),
        expires=0 if limit is None else min(limit.expires, FOREVER),
        holders=[text(job.jid) for job in kept.some_holders(name, MAX_LISTED_JOBS)],
        waiting=[text(job.jid) for job in kept.some_waiting(name, MAX_LISTED_JOBS)],
    )


ANSWERS: Final[dict[str, Answering]] = {}
LONG: Final[dict[str, Telling]] = {
    "recurring": recurring,
    "tracked": tracked,
    "tags": tags,
    "throttles": throttles,
}
