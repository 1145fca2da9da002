"""The sizes of the engine's collections, with stale entries counted separately."""

from .engine import Engine


def sizes(engine: Engine) -> dict[str, int]:
    queues = engine.queues.values()
    ready = [queue.ready for queue in queues]
    return {
        "jobs": len(engine.jobs),
        "ready": sum(map(len, ready)),
        "scheduled": len(engine.scheduled),
        "blocked": len(engine.blocked),
        "leased": len(engine.leased),
        "done": len(engine.done) + len(engine.done_kept),
        "dead": len(engine.dead) + len(engine.dead_kept),
        "queues": len(engine.queues),
        "waiters": sum(len(queue.waiters) for queue in queues),
        "settings": len(engine.settings),
        "statistics days": len(engine.statistics.days),
        "failure groups": len(engine.failure_groups),
        "timers": len(engine.timers),
        "stale timers": engine.timers.stale,
        "stale ready entries": sum(each.tombstones for each in ready),
    }
