"""`recurring`, `tracked`, `tags` and `limits`: recurring jobs, tracked ids, tags and limits."""

from collections.abc import Generator, Iterator
from math import isfinite
from typing import Final

from millrace.engine.job import FOREVER
from millrace.engine.limits import Limits
from millrace.engine.recurring import RecurringJob
from millrace.records import (
    MAX_OPTION_NAME,
    MAX_OPTION_VALUE,
    MAX_PAGE_SIZE,
    RECURRING_ACTIONS,
    LimitPage,
    LimitRecord,
    ListTags,
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

from .bulk import check_argument
from .errors import AdminError, TargetNotFound, require_writable
from .jobs import MAX_LISTED_TAGS, MAX_PAGE_TEXT, list_record, shorten, text_size
from .query_language import quoted
from .scans import page_of
from .service import AdminService

#: Jobs or tags counted per slice.
TAG_SLICE_SIZE: Final = 1000
#: Maximum listed holders of a throttle, and maximum listed jobs that wait for it.
MAX_LISTED_JOBS: Final = 100
LIMIT_SLICE_SIZE: Final = 10
#: Maximum payload bytes of a recurring job in a list. A recurring job has no page of its own.
MAX_RECURRING_PAYLOAD: Final = 65_536


def list_recurring(
    hub: AdminService, request: PageRequest, _: int
) -> Iterator[RecurringPage | None]:
    kept = hub.engine.recurring.by_id
    names, is_more = yield from page_of(list(kept), request.cursor or None, request.limit)
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


def _recurring(kept: RecurringJob) -> RecurringRecord:
    return RecurringRecord(
        jid=kept.jid,
        kind=shorten(kept.kind),
        queue=shorten(kept.queue),
        interval=_finite(kept.interval),
        priority=_finite(kept.priority),
        retries=kept.retries,
        backlog=_finite(kept.backlog),
        tags=[shorten(str(tag)) for tag in kept.tags[:MAX_LISTED_TAGS]],
        next_at=kept.next,
        count=kept.count,
        payload=kept.payload[:MAX_RECURRING_PAYLOAD],
        size=len(kept.payload),
        limits=[shorten(name) for name in kept.limits[:MAX_LISTED_JOBS]],
    )


def _finite(number: float) -> float:
    """Replace infinity and NaN by 0, because JSON cannot represent them."""
    return number if isfinite(number) else 0


def list_tracked(hub: AdminService, request: PageRequest, _: int) -> Iterator[TrackedPage | None]:
    """List the tracked ids, including ids of deleted jobs that clients still track."""
    kept = hub.engine.annotations.tracked
    names, is_more = yield from page_of(list(kept), request.cursor or None, request.limit)
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


def list_tags(hub: AdminService, request: ListTags, _: int) -> Iterator[TagPage | None]:
    counts = yield from _count_tags(hub.engine.annotations.tags)
    most: list[tuple[int, str]] = []
    names = list(counts)
    for first in range(0, len(names), TAG_SLICE_SIZE):
        yield None
        some = [(-counts[name], name) for name in names[first : first + TAG_SLICE_SIZE]]
        most = sorted(most + some)[: request.limit]
    yield TagPage([TagCount(name, -count) for count, name in most], len(counts))


def _count_tags(tags: dict[str, dict[int, int]]) -> Generator[None, None, dict[str, int]]:
    counts: dict[str, int] = {}
    names = list(tags)
    for first in range(0, len(names), TAG_SLICE_SIZE):
        yield
        for name in names[first : first + TAG_SLICE_SIZE]:
            if used := len(tags.get(name, ())):
                counts[name] = used
    return counts


# Limits


def list_limits(hub: AdminService, _: bool, now: int) -> Iterator[LimitPage | None]:
    limits = hub.engine.limits
    known = list(limits.by_key.keys() | limits.parked.by_key.keys() - {""})
    names, _more = yield from page_of(known, None, MAX_PAGE_SIZE)
    rows = []
    for number, name in enumerate(names, 1):
        rows.append(_limit(limits, name, now))
        if number % LIMIT_SLICE_SIZE == 0:
            yield None
    yield LimitPage(rows)


def _limit(limits: Limits, name: str, now: int) -> LimitRecord:
    limit = limits.limit(name, now)
    return LimitRecord(
        name=name,
        maximum=0 if limit is None or not isfinite(limit.maximum) else int(limit.maximum),
        expires_at=0 if limit is None else min(limit.expires_at, FOREVER),
        holders=[shorten(job.jid) for job in limits.first_leased_jobs(name, MAX_LISTED_JOBS)],
        waiting=[shorten(job.jid) for job in limits.parked.some_for_key(name, MAX_LISTED_JOBS)],
    )


# Changes


def act_on_recurring(hub: AdminService, request: RecurringAction, now: int) -> Ok:
    engine, qless = hub.engine, hub.qless
    require_writable(engine)
    known = engine.recurring.by_id.get(request.jid)
    if known is None:
        raise TargetNotFound(f"Recurring job {quoted(request.jid)} not found.")
    check_argument(RECURRING_ACTIONS[request.action], request)
    changed = RecurringJob(*known.fields())
    match request.action:
        case "move":
            changed.queue = request.queue
            engine.open_queue(request.queue)
            if qless is not None:
                qless.register_queue(request.queue, now)
        case "priority":
            changed.priority = request.priority
        case "tag":
            changed.tags = list(dict.fromkeys([*known.tags, *request.tags]))
        case "untag":
            changed.tags = [tag for tag in known.tags if tag not in request.tags]
    if request.action == "cancel":
        engine.delete_recurring(known.jid)
    else:
        engine.put_recurring(changed)
    hub.audit.add(now, request.by, f"{request.action} recurring", request.jid)
    return Ok()


def set_qless(hub: AdminService, request: SetQlessOption, now: int) -> Ok:
    require_writable(hub.engine)
    qless, option, value = hub.qless, request.option, request.value
    if qless is None:
        raise TargetNotFound("This requires Qless, and the Qless port is off.")
    if not 0 < len(option) <= MAX_OPTION_NAME or len(value or "") > MAX_OPTION_VALUE:
        raise AdminError(
            f"A setting needs a name of 1 to {MAX_OPTION_NAME} characters and a value of up to "
            f"{MAX_OPTION_VALUE} characters."
        )
    if qless.options.allows(option):
        if value is None:
            qless.publisher.log({"event": "config_unset", "option": option})
        else:
            qless.publisher.log({"option": option, "event": "config_set", "value": value})
    qless.options.set(option, value)
    shown = option if value is None else f"{option} = {value}"
    hub.audit.add(now, request.by, "unset Qless" if value is None else "set Qless", shown)
    return Ok()
