"""Workers and the jobs they hold."""

import msgspec


class HeldJob(msgspec.Struct):
    """A job that a worker has."""

    jid: str
    seq: int
    queue: str
    kind: str
    leased_at: int
    deadline: int
    payload: bytes


class WorkerRecord(msgspec.Struct):
    #: `protocol` and `wid` are how it is named.
    protocol: str
    wid: str
    hostname: str
    pid: int
    labels: list[str]
    rss_kb: int
    state: str
    started_at: int
    beat_at: int
    connections: int
    held: list[HeldJob]
    #: How many it has, and how many of them are past their time.
    count: int
    stalled: int


class WorkerPage(msgspec.Struct):
    workers: list[WorkerRecord]
    count: int
    more: str
