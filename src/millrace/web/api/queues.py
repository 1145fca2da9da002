"""Overview and queues."""

from datetime import UTC, datetime
from typing import Literal

from msgspec import UNSET

from millrace import records as messages
from millrace.engine import stats
from millrace.web.doors import Refusal, Visit

from . import shapes
from .actions import begun
from .asked import QueueAsked, QueuesAsked
from .endpoints import Reply

_Action = Literal["pause", "resume", "clear", "remove"]


async def overview(visit: Visit) -> shapes.Overview:
    return shapes.Overview.of(await visit.ask(messages.Overview, overview=True))


async def queues(visit: Visit, asked: QueuesAsked) -> shapes.QueueList:
    request = messages.ListQueues(asked.text, asked.cursor, asked.limit, asked.paused)
    found = await visit.ask(messages.QueuePage, queues=request)
    rows = [shapes.Queue.of(row) for row in found.queues]
    return shapes.QueueList(rows, found.count, found.more or None)


async def queue(visit: Visit, asked: QueueAsked) -> shapes.QueueInfo:
    day = -1 if asked.date is UNSET else _day(asked.date)
    request = messages.GetQueue(visit.path("name"), day)
    found = await visit.ask(messages.QueueDetail, queue=request)
    return shapes.QueueInfo(
        shapes.Queue.of(found.queue),
        _statistics(found.day),
        [shapes.date(day) for day in found.days],
        found.stalled,
        found.recurring,
        found.throttled,
    )


async def pause_queue(visit: Visit) -> shapes.Queue:
    return await _changed(visit, "pause")


async def resume_queue(visit: Visit) -> shapes.Queue:
    return await _changed(visit, "resume")


async def clear_queue(visit: Visit) -> Reply[shapes.Action]:
    return await _emptied(visit, "clear")


async def remove_queue(visit: Visit) -> Reply[shapes.Action]:
    return await _emptied(visit, "remove")


async def _changed(visit: Visit, action: _Action) -> shapes.Queue:
    name = visit.path("name")
    await visit.ask(dict, act_on_queue=messages.QueueAction(name, action, visit.by))
    found = await visit.ask(messages.QueueDetail, queue=messages.GetQueue(name))
    return shapes.Queue.of(found.queue)


async def _emptied(visit: Visit, action: _Action) -> Reply[shapes.Action]:
    name = visit.path("name")
    await visit.ask(messages.QueueDetail, queue=messages.GetQueue(name))  # is there one?
    request = messages.QueueAction(name, action, visit.by)
    return await begun(visit, f"{action} the queue {name}", act_on_queue=request)


def _day(date: str) -> int:
    try:
        found = int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()) // 86_400
    except ValueError:
        raise Refusal(400, f"`date` is no day: {date}") from None
    if found < 0:
        raise Refusal(400, "no day before 1970 has statistics")
    return found


def _statistics(day: stats.QueueDay) -> shapes.QueueDay:
    return shapes.QueueDay(
        shapes.date(day.day),
        _spread(day.wait),
        _spread(day.run),
        day.failures,
        day.failed,
        day.retries,
    )


def _spread(spread: stats.Spread) -> shapes.Spread:
    histogram = [spread.histogram.get(slot, 0) for slot in range(stats.SLOTS)]
    return shapes.Spread(spread.count, spread.mean, spread.variance**0.5, histogram)
