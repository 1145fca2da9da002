"""`recurring`, `tracked`, `tags` and `throttles`: data of Qless in addition to jobs.

If the Qless port is off, the lists are empty, except for tags: the server counts the tags of all
jobs.
"""

from collections import Counter
from collections.abc import Generator, Iterator
from math import isfinite
from typing import Final

from millrace.engine.job import FOREVER
from millrace.protocols.qless import recurring as qless_recurring
from millrace.protocols.qless.state import Qless, Recurring
from millrace.records import (
    MAX_OPTION_NAME,
    MAX_OPTION_VALUE,
    LimitPage,
    LimitRecord,
    Ok,
    PageRequest,
    RecurringAction,
    RecurringPage,
    RecurringRecord,
    SetQlessOption,
    TagCount,
    TagPage,
    TrackedJob,
    TrackedPage,
)

from .bulk import (
    check_priority,
    check_queue,
    check_tags,
    quoted,
)
from .errors import AdminError, NotFound, require_writable
from .jobs import MAX_LISTED_TAGS, MAX_PAGE_TEXT, list_record, shorten, text_size
from .scans import MAX_PAGE_SIZE, SequenceScan, page_of
from .service import AdminService

#: Jobs or tags counted per slice.
TAG_SLICE_SIZE: Final = 1000
#: Maximum listed holders of a throttle, and maximum listed jobs that wait for it.
MAX_LISTED_JOBS: Final = 100
LIMIT_SLICE_SIZE: Final = 10
#: Maximum payload bytes of a recurring job in a list. A recurring job has no page of its own.
MAX_RECURRING_PAYLOAD: Final = 65_536


def list_recurring(hub: AdminService, asked: PageRequest, _: int) -> Iterator[RecurringPage | None]:
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
        kind=shorten(kept.klass),
        queue=shorten(kept.queue),
        interval=_finite(kept.interval),
        priority=_finite(kept.priority),
        retries=kept.retries,
        backlog=_finite(kept.backlog),
        tags=[shorten(str(tag)) for tag in kept.tags[:MAX_LISTED_TAGS]],
        next=kept.next,
        count=kept.count,
        payload=kept.data[:MAX_RECURRING_PAYLOAD],
        size=len(kept.data),
        throttles=[shorten(name) for name in kept.throttles[:MAX_LISTED_JOBS]],
    )


def _finite(number: float) -> float:
    """Replace infinity and NaN by 0, because JSON cannot represent them."""
    return number if isfinite(number) else 0


def list_tracked(hub: AdminService, asked: PageRequest, _: int) -> Iterator[TrackedPage | None]:
    """List the tracked ids, including ids of deleted jobs that clients still track."""
    qless = hub.qless
    kept = {} if qless is None else qless.tracked
    names, is_more = yield from page_of(list(kept), asked.after or None, asked.most)
    rows, size = [], 0
    for number, jid in enumerate(names, 1):
        job = hub.engine.find(jid)
        told = None if job is None else list_record(hub, job)
        rows.append(TrackedJob(jid, kept.get(jid, 0), told))
        size += len(jid) + (0 if told is None else text_size(told))
        if size >= MAX_PAGE_TEXT:
            is_more |= number < len(names)
            names = names[:number]
            break
    yield TrackedPage(rows, len(kept), names[-1] if is_more else "")


# Tags


def list_tags(hub: AdminService, asked: PageRequest, _: int) -> Iterator[TagPage | None]:
    """List the most used tags. The argument `after` has no effect."""
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


def list_limits(hub: AdminService, _: bool, now: int) -> Iterator[LimitPage | None]:
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
        holders=[shorten(job.jid) for job in kept.some_holders(name, MAX_LISTED_JOBS)],
        waiting=[shorten(job.jid) for job in kept.some_waiting(name, MAX_LISTED_JOBS)],
    )


# Changes to Qless


def act_on_recurring(hub: AdminService, asked: RecurringAction, now: int) -> Ok:
    require_writable(hub.engine)
    qless = _need_qless(hub)
    known = qless.recurring.get(asked.jid)
    if known is None:
        raise NotFound(f"there is no recurring job {quoted(asked.jid)}")
    _change(qless, known, asked, now + hub.engine.theirs)
    hub.audit.add(now, asked.by, f"{asked.action} recurring", asked.jid)
    return Ok()


def _change(qless: Qless, known: Recurring, asked: RecurringAction, now: int) -> None:
    jid, tags = known.jid.encode(), [tag.encode() for tag in asked.tags]
    match asked.action:
        case "cancel":
            qless.unkeep(known.jid)
        case "move":
            check_queue(asked.queue)
            qless_recurring.update(qless, now, [jid, b"queue", asked.queue.encode()])
        case "priority":
            check_priority(asked.priority)
            known.priority = asked.priority
            qless.keep(known)
        case "tag":
            check_tags(asked.tags)
            qless_recurring.tag(qless, now, [jid, *tags])
        case "untag":
            qless_recurring.untag(qless, now, [jid, *tags])


def set_qless(hub: AdminService, asked: SetQlessOption, now: int) -> Ok:
    require_writable(hub.engine)
    qless, option, value = _need_qless(hub), asked.option, asked.value
    if not 0 < len(option) <= MAX_OPTION_NAME or len(value or "") > MAX_OPTION_VALUE:
        raise AdminError(
            f"A setting needs a name of 1 to {MAX_OPTION_NAME} characters and a value of up to "
            f"{MAX_OPTION_VALUE} characters."
        )
    if value is None:
        qless.log({"event": "config_unset", "option": option})
    else:
        qless.log({"option": option, "event": "config_set", "value": value})
    qless.set_config(option, value)
    shown = option if value is None else f"{option} = {value}"
    hub.audit.add(now, asked.by, "unset Qless" if value is None else "set Qless", shown)
    return Ok()


def _need_qless(hub: AdminService) -> Qless:
    qless = hub.qless
    if qless is None:
        raise NotFound("that is of Qless, and its port is off")
    return qless
