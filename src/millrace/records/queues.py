"""Queues."""

import msgspec

from millrace.engine.stats import QueueDay

from .types import LatencySummary


class QueueRecord(msgspec.Struct):
    name: str
    paused: bool
    #: By state, in the order of engine.states.
    counts: list[int]
    #: When the job that waits longest became ready.
    oldest: int
    wait: LatencySummary
    run: LatencySummary
    #: How many of its jobs may be with workers at a time; 0 is without limit.
    limit: int
    #: Who waits for its jobs, and when somebody last asked.
    waiters: int
    asked: int
    #: Depth (ready and scheduled and blocked), every five seconds, the newest last.
    depths: list[int]


class QueuePage(msgspec.Struct):
    queues: list[QueueRecord]
    #: All that match, and what to go on behind; empty at the end.
    count: int
    more: str


class QueueDetail(msgspec.Struct):
    queue: QueueRecord
    day: QueueDay
    #: The days of which there are statistics.
    days: list[int]
    #: What Qless counts apart.
    stalled: int
    recurring: int
    throttled: int
