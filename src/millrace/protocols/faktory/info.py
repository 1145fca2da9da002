"""INFO and QUEUE LATENCY, in the format of the original Faktory server."""

from collections.abc import Generator
from heapq import merge
from typing import Any, Final

import msgspec

from millrace import __version__
from millrace.engine.engine import Engine
from millrace.engine.states import READY
from millrace.protocols.times import format_rfc3339

from .hub import FaktoryHub

#: The version of the original server whose behaviour this matches. Clients check it.
FAKTORY_VERSION: Final = "1.10.0"

#: Queues that one slice sorts or counts.
QUEUE_BATCH_SIZE: Final = 500

_encode = msgspec.json.Encoder().encode


def collect_info(hub: FaktoryHub, now: int, depths: dict[str, int] | None = None) -> dict[str, Any]:
    """INFO's content. Every counter is an integer: some clients parse only integers. `depths` are
    the queues' sizes in the order of their names, if they are known already.
    """
    engine = hub.engine
    moment = format_rfc3339(now)
    queues = ready_counts(engine) if depths is None else depths
    scheduled = len(engine.tables.scheduled) - engine.retrying
    leased, dead = len(engine.tables.leased), len(engine.tables.dead)
    return {
        "now": moment,
        "server_utc_time": f"{moment[11:19]} UTC",
        "faktory": {
            "queues": queues,
            "sets": {
                "dead": dead,
                "retries": engine.retrying,
                "scheduled": scheduled,
                "working": leased,
            },
            "tasks": {
                "Busy": {"reaped": engine.timer_counts.expired, "size": leased},
                "Dead": _task(engine.timer_counts.purged, dead),
                "Retries": _task(engine.timer_counts.retried, engine.retrying),
                "Scheduled": _task(engine.timer_counts.started, scheduled),
                "Workers": {"reaped": 0, "size": len(hub.connections_by_worker)},
            },
            "total_failures": engine.totals.failures,
            "total_processed": engine.totals.processed,
            "total_enqueued": sum(queues.values()),
            "total_queues": len(queues),
        },
        "server": {
            "description": "Faktory",
            "faktory_version": FAKTORY_VERSION,
            "millrace_version": __version__,
            "uptime": max(0, now - hub.started_at) // 1_000_000,
            "connections": len(hub.connections),
            "command_count": hub.commands,
            "used_memory_mb": hub.memory_mb(),
        },
    }


def ready_counts(engine: Engine) -> dict[str, int]:
    found = {q.name: q.counts[READY] for q in engine.tables.queues.values() if q.registered}
    return dict(sorted(found.items()))


def ready_counts_in_slices(engine: Engine) -> Generator[None, None, dict[str, int]]:
    """The counts of many queues."""
    names, runs, counts = list(engine.tables.queues), list[list[str]](), dict[str, int]()
    for first in range(0, len(names), QUEUE_BATCH_SIZE):
        runs.append(sorted(names[first : first + QUEUE_BATCH_SIZE]))
        yield
    for number, name in enumerate(merge(*runs), 1):
        queue = engine.queue(name)
        if queue is not None and queue.registered:
            counts[name] = queue.counts[READY]
        if number % QUEUE_BATCH_SIZE == 0:
            yield
    return counts


def encode_info(hub: FaktoryHub, now: int) -> bytes:
    return _encode(collect_info(hub, now))


def encode_info_in_slices(hub: FaktoryHub, now: int) -> Generator[None, None, bytes]:
    """The reply with many queues, which are counted in slices."""
    counts = yield from ready_counts_in_slices(hub.engine)
    return _encode(collect_info(hub, now, counts))


def latency(engine: Engine, names: list[str], now: int) -> bytes:
    """For each queue, the age of its oldest waiting job in seconds."""
    ages: dict[str, float] = {}
    for name in sorted(set(names)):
        queue = engine.queue(name)
        oldest = None if queue is None else queue.ready.oldest()
        age = 0 if oldest is None else max(0, now - oldest.ready_at)
        ages[name] = age / 1_000_000 if age else 0
    return _encode(ages)


def _task(moved: int, size: int) -> dict[str, int]:
    # Millrace has no task loops with cycles to count: each job moves when it is due.
    return {"cycles": moved, "enqueued": moved, "size": size, "wall_time_sec": 0}
