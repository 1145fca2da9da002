"""The server: overview, status, settings, audit log and metrics."""

from typing import Any

import msgspec

from millrace.engine.stats import QueueDay

from .types import LatencySummary


class DayTotals(msgspec.Struct):
    """All queues on one day."""

    day: int
    processed: int
    failures: int


class Sample(msgspec.Struct, array_like=True):
    """Counters since the start at one moment, and the backlog."""

    at: int
    pushed: int
    completed: int
    failed: int
    backlog: int
    leased: int


class PortStatus(msgspec.Struct):
    name: str
    port: int
    connections: int
    waiters: int
    commands: int
    errors: int


class Overview(msgspec.Struct):
    now: int
    #: The newest last; every five seconds, and one of this moment.
    samples: list[Sample]
    #: All jobs by state.
    counts: list[int]
    retrying: int
    processed: int
    failures: int
    queues: int
    paused: int
    #: The job that waits longest.
    oldest: int
    oldest_queue: str
    oldest_jid: str
    workers: int
    protocols: list[PortStatus]
    commit: LatencySummary
    #: The newest last.
    days: list[DayTotals]
    halted: str
    memory_mb: int
    started_at: int
    #: The number of the job that waits longest.
    oldest_seq: int = 0


class Health(msgspec.Struct):
    """The server answers, and does it keep what it is given? It takes no time to say so."""

    now: int
    #: Why nothing can be changed, or empty.
    halted: str
    #: Of Faktory's port: what its tools look at.
    connections: int
    commands: int
    faktory_version: str


class Setting(msgspec.Struct):
    """A key of the configuration: its value as TOML (secrets hidden), where it came from."""

    key: str
    value: str
    source: str
    about: str
    reloadable: bool


class PipelineRun(msgspec.Struct):
    #: Can it be run here: is there a store, a lake?
    able: bool
    running: bool
    began_at: int
    ended_at: int
    #: Of the last run: its exit code, -1 if there was none, and its last words.
    code: int
    lines: list[str]
    every: float


class ServerStatus(msgspec.Struct):
    version: str
    pid: int
    host: str
    started_at: int
    now: int
    memory_mb: int
    data: str
    lake: str
    durability: str
    halted: str
    sizes: dict[str, int]
    #: Bytes: of the store's files, of the outbox, free and all on its disk.
    store_bytes: int
    disk_free: int
    disk_size: int
    tls: bool
    settings: list[Setting]
    #: Qless's own, as a client would read it.
    qless: dict[str, Any]
    protocols: list[PortStatus]
    pipeline: PipelineRun


class AuditEntry(msgspec.Struct):
    """One changing action."""

    number: int
    at: int
    by: str
    action: str
    #: What it was done to, in words.
    target: str
    #: How many jobs, where it is about jobs.
    count: int


class AuditPage(msgspec.Struct):
    audit: list[AuditEntry]
    more: int


class Histogram(msgspec.Struct):
    """Cumulative counts by upper bound in seconds, without +Inf, which is `count`."""

    bounds: list[float]
    counts: list[int]
    count: int
    sum: float


class Metrics(msgspec.Struct):
    """All numbers of /metrics; every counter is since the start."""

    now: int
    started_at: int
    pushed: int
    completed: int
    failed: int
    #: Queue -> counts by state; the largest `most` by depth, the rest summed under "".
    queues: dict[str, list[int]]
    queues_count: int
    paused: int
    retrying: int
    protocols: list[PortStatus]
    waits: Histogram
    runs: Histogram
    commits: Histogram
    lag: Histogram
    waiters: int
    workers: int
    store_bytes: int
    outbox_bytes: int
    outbox_events: int
    shipping_lag: float
    shipped_files: int
    dropped_events: int
    memory_bytes: int
    halted: bool
    #: When the job became ready that waits longest, by queue as above; none for one without.
    oldest: dict[str, int] = {}
    #: Bytes, of the disk that the store is on.
    disk_free: int = 0
    disk_size: int = 0


class ShippingStatus(msgspec.Struct):
    """To `journal` and `ship`: how far the shipping of events is, and how far behind."""

    #: The id that the lake knows the server by; empty before anything was shipped.
    server: str
    lake: str
    #: The event that comes next, and the first that is not known to be in the lake.
    next_event: int
    next_shipped: int
    #: What waits: so many events, the bytes that the outbox holds, the age of the oldest.
    events: int
    bytes: int
    seconds: float = 0.0
    #: Events that had to go before they were shipped, and files that have landed, since the start.
    dropped: int = 0
    files: int = 0
    #: Why shipping fails at the moment, or does not take place.
    failing: str = ""


class Counters(msgspec.Struct):
    """Some of what is counted, as it is after an event of the journal. It is told when all of that
    is durable; what follows is of a later event.
    """

    event: int
    #: Queues, each with its jobs by state.
    queues: list[tuple[str, list[int]]]
    days: list[QueueDay]
    #: Days before this one are being forgotten.
    since: int
    more: bool
