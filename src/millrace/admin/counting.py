"""`counters`: all that is counted, a piece at a time."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from millrace.engine.engine import Engine
from millrace.records import Counters

from .errors import AdminError
from .queues import queue_statistics

if TYPE_CHECKING:
    from .service import AdminService

#: So many queues, or days of statistics, are told of at once: everybody waits meanwhile.
COUNTERS_SLICE_SIZE: Final = 64


def counters(hub: "AdminService") -> Iterator[Counters]:
    """What was there when it was asked for is told, with the numbers that it has when its turn
    comes.
    """
    engine = hub.engine
    statistics = engine.count()
    names, keys = list(engine.queues), list(statistics.days)
    since = statistics.since(engine.clock)
    world = (engine.wipes, engine.reverts)
    others = len(names)
    for first in range(0, max(1, others + len(keys)), COUNTERS_SLICE_SIZE):
        if (engine.wipes, engine.reverts) != world:
            raise AdminError("what is counted began anew meanwhile: ask again", "conflict")
        last = first + COUNTERS_SLICE_SIZE
        days = engine.count().days
        yield Counters(
            hub.event,
            [(name, _counts(engine, name)) for name in names[first:last]],
            [
                queue_statistics(days[key])
                for key in keys[max(0, first - others) : max(0, last - others)]
                if key in days
            ],
            since,
            last < others + len(keys),
        )


def _counts(engine: Engine, name: str) -> list[int]:
    queue = engine.queues.get(name)
    return [0] * 6 if queue is None else list(queue.counts)
