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
        "done": len(engine.done) + len(engine.kept),
        "dead": len(engine.dead) + len(engine.dying),
        "queues": len(engine.queues),
        "waiters": sum(len(queue.waiters) for queue in queues),
        "notes": len(engine.notes),
        "days of statistics": len(engine.statistics.days),
        "groups of failures": len(engine.failing),
        "timers": len(engine.timers),
        "timers that are over": engine.timers.stale,
        "ready jobs that are over": sum(each.tombstones for each in ready),
    }
