"""The sizes of the engine's collections, with stale entries counted separately."""

from collections.abc import Generator
from typing import Final

from .engine import Engine

#: Queues that one slice examines.
QUEUE_BATCH_SIZE: Final = 500


def sizes(engine: Engine) -> dict[str, int]:
    """The sizes, all at once."""
    steps = sizes_in_slices(engine)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            found: dict[str, int] = ended.value
            return found


def sizes_in_slices(engine: Engine) -> Generator[None, None, dict[str, int]]:
    """The sizes. The queues are examined in slices."""
    ready = waiters = tombstones = 0
    for number, queue in enumerate(list(engine.queues.values()), 1):
        ready += len(queue.ready)
        waiters += len(queue.waiters)
        tombstones += queue.ready.tombstones
        if number % QUEUE_BATCH_SIZE == 0:
            yield
    return {
        "jobs": len(engine.jobs),
        "ready": ready,
        "scheduled": len(engine.scheduled),
        "blocked": len(engine.blocked),
        "leased": len(engine.leased),
        "done": len(engine.done) + len(engine.done_untrimmed),
        "dead": len(engine.dead) + len(engine.dead_untrimmed),
        "queues": len(engine.queues),
        "waiters": waiters,
        "settings": len(engine.settings),
        "statistics days": len(engine.statistics.days),
        "failure groups": len(engine.failure_groups),
        "timers": len(engine.timers),
        "stale timers": engine.timers.stale,
        "stale ready entries": tombstones,
    }
