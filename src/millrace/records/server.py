"""The server: overview, status, settings, audit log and metrics."""

from typing import Annotated, Any

from .queues import QueueStatistics
from .types import Day, Doc, LatencySummary, Record, StateCounts, Time


class Sample(Record, array_like=True):
    """Counters since the start, and the number of waiting and running jobs."""

    at: Annotated[Time, Doc("Time", "Time of the sample.")]
    pushed: Annotated[int, Doc("Pushed", "Jobs pushed.")]
    completed: Annotated[int, Doc("Completed", "Attempts completed.")]
    failed: Annotated[int, Doc("Failed", "Attempts failed.")]
    backlog: Annotated[int, Doc("Backlog", "Jobs that are ready, scheduled or blocked.")]
    leased: Annotated[int, Doc("Leased", "Jobs that are leased.")]


class PortStatus(Record):
    """The port of one protocol."""

    name: Annotated[str, Doc("Protocol", "Name of the protocol.")]
    port: Annotated[int, Doc("Port", "TCP port; 0 without one.")]
    connections: Annotated[int, Doc("Connections", "Number of open connections.")]
    waiters: Annotated[int, Doc("Waiting", "Connections that wait for a job or a result.")]
    commands: Annotated[int, Doc("Commands", "Commands since the start.")]
    errors: Annotated[int, Doc("Errors", "Error replies since the start.")]


class DayTotals(Record):
    """All queues on one day (UTC)."""

    day: Annotated[Day, Doc("Date", "The day.", name="date")]
    processed: Annotated[int, Doc("Processed", "Attempts that ended.")]
    failures: Annotated[int, Doc("Failures", "Attempts that failed.")]


class OldestJob(Record):
    """The ready job that has waited longest."""

    jid: Annotated[str, Doc("ID", "ID of the job.", name="id")]
    queue: Annotated[str, Doc("Queue", "Queue of the job.")]
    ready_at: Annotated[Time, Doc("Ready since", "Time at which the job became ready.")]
    seq: Annotated[int, Doc("Number", "Number of the job.", name="number")]


class Overview(Record):
    """The server in numbers."""

    now: Annotated[Time, Doc("Now", "Time of the server.")]
    started_at: Annotated[Time, Doc("Started", "Start of the server.")]
    counts: Annotated[StateCounts, Doc("Jobs", "Number of jobs by state.", name="jobs")]
    retrying: Annotated[int, Doc("Retrying", "Scheduled jobs that have failed before.")]
    processed: Annotated[int, Doc("Processed", "Attempts that ended, all time.")]
    failures: Annotated[int, Doc("Failures", "Attempts that failed, all time.")]
    queues: Annotated[int, Doc("Queues", "Number of queues.")]
    paused_queues: Annotated[int, Doc("Paused", "Number of paused queues.")]
    workers: Annotated[int, Doc("Workers", "Number of known Faktory and Qless workers.")]
    oldest_job: Annotated[
        OldestJob | None,
        Doc("Oldest ready", "Ready job that has waited longest; null without one.", name="oldest"),
    ]
    protocols: Annotated[list[PortStatus], Doc("Protocols", "Ports of the server.")]
    commit: Annotated[LatencySummary, Doc("Commit", "Time until a change is durable.")]
    days: Annotated[list[DayTotals], Doc("Days", "Totals of the last days, newest last.")]
    samples: Annotated[
        list[Sample], Doc("Samples", "Samples of the last ten minutes, newest last.")
    ]
    halted: Annotated[str, Doc("Halted", "Reason why the server accepts no changes; else empty.")]
    memory_mb: Annotated[int, Doc("Memory", "Memory of the server process in MiB.")]


class Health(Record):
    """A cheap liveness check."""

    now: Time
    #: Reason why the server accepts no changes; else empty.
    halted: str
    #: Connections and commands of the Faktory port, for Faktory's tools.
    connections: int
    commands: int
    faktory_version: str


class Setting(Record):
    """A key of the configuration."""

    key: Annotated[str, Doc("Key", "Section and key.")]
    value: Annotated[str, Doc("Value", "Value as TOML; secrets are hidden.")]
    source: Annotated[str, Doc("Source", "Source of the value.")]
    description: Annotated[
        str,
        Doc("Description", "Description of the key.", name="about", also="description"),
    ]
    reloadable: Annotated[bool, Doc("Reloadable", "True if SIGHUP reloads the key.")]


class PipelineRun(Record):
    """The pipeline and its last run."""

    available: Annotated[
        bool,
        Doc("Available", "True if the pipeline can run here.", name="able", also="available"),
    ]
    running: Annotated[bool, Doc("Running", "True while a run is in progress.")]
    started_at: Annotated[
        Time, Doc("Started at", "Start of the last run.", name="began_at", also="started_at")
    ]
    ended_at: Annotated[Time, Doc("Ended at", "End of the last run.")]
    code: Annotated[
        int, Doc("Exit status", "Exit status of the last run; null before the first.", null=-1)
    ]
    lines: Annotated[list[str], Doc("Last output", "Last lines of its output.")]
    every_seconds: Annotated[float, Doc("Interval", "Seconds between scheduled runs; 0 for none.")]


class ShippingStatus(Record):
    """Progress of journal shipping."""

    server: Annotated[str, Doc("Server", "ID of this server in the lake; empty before it ships.")]
    lake: Annotated[
        str, Doc("Lake", "Location of the lake; empty over HTTP for roles other than `admin`.")
    ]
    next_event: Annotated[int, Doc("Next event", "Number of the next event.")]
    next_shipped: Annotated[int, Doc("Next to ship", "Number of the first event not shipped.")]
    events: Annotated[int, Doc("Pending events", "Events not yet shipped.", name="waiting_events")]
    bytes: Annotated[int, Doc("Outbox size", "Size of the outbox.", name="waiting_bytes")]
    seconds: Annotated[
        float, Doc("Lag", "Age of the oldest pending event.", name="behind_seconds")
    ] = 0.0
    dropped: Annotated[int, Doc("Dropped", "Events dropped before shipping, since the start.")] = 0
    files: Annotated[int, Doc("Files", "Files shipped since the start.")] = 0
    failing: Annotated[str, Doc("Error", "Reason why shipping fails; else empty.")] = ""


class ServerStatus(Record, kw_only=True):
    """The server process."""

    version: Annotated[str, Doc("Version", "Version of Millrace.")]
    pid: Annotated[int, Doc("PID", "Process ID.")]
    host: Annotated[str, Doc("Host", "Address that the ports listen on.")]
    started_at: Annotated[Time, Doc("Started", "Start of the server.")]
    now: Annotated[Time, Doc("Now", "Time of the server.")]
    memory_mb: Annotated[int, Doc("Memory", "Memory of the server process in MiB.")]
    durability: Annotated[str, Doc("Durability", "`fsync`, `os` or `memory`.")]
    halted: Annotated[str, Doc("Halted", "Reason why the server accepts no changes; else empty.")]
    tls: Annotated[bool, Doc("TLS", "True if the ports use TLS.")]
    sizes: Annotated[dict[str, int], Doc("Sizes", "Sizes of internal tables.")]
    store_bytes: Annotated[int, Doc("Store", "Size of the store's files in bytes.")]
    disk_free: Annotated[int, Doc("Disk free", "Free bytes on the disk of the store.")]
    disk_size: Annotated[int, Doc("Disk", "Size of the disk of the store in bytes.")]
    protocols: Annotated[list[PortStatus], Doc("Protocols", "Ports of the server.")]
    #: The admin socket leaves it empty: only the shipper knows it.
    shipping: Annotated[
        ShippingStatus | None, Doc("Shipping", "Journal shipping; null without a store.")
    ] = None
    pipeline: Annotated[PipelineRun, Doc("Pipeline", "The pipeline and its last run.")]
    data: Annotated[str, Doc("Data folder", "Path of the data folder.", internal=True)] = ""
    lake: Annotated[str, Doc("Lake", "Location of the lake.", internal=True)] = ""
    settings: Annotated[list[Setting], Doc("Settings", "Configuration.", internal=True)] = []
    qless: Annotated[dict[str, Any], Doc("Qless", "Qless settings.", internal=True)] = {}


class Configuration(Record):
    """The effective configuration, for admins."""

    data: Annotated[str, Doc("Data folder", "Path of the data folder.")]
    lake: Annotated[str, Doc("Lake", "Location of the lake.")]
    settings: Annotated[list[Setting], Doc("Settings", "All keys.")]
    qless: Annotated[dict[str, Any], Doc("Qless", "Settings of Qless clients.")]


class AuditEntry(Record):
    """One change by a user."""

    number: Annotated[int, Doc("Number", "Number of the entry.")]
    at: Annotated[Time, Doc("Time", "Time of the change.")]
    by: Annotated[str, Doc("User", "User and address.", also="user")]
    action: Annotated[str, Doc("Action", "Name of the action.")]
    target: Annotated[str, Doc("Target", "Target of the action.")]
    count: Annotated[int, Doc("Jobs", "Number of jobs, for actions on jobs.")]


class AuditPage(Record):
    """Audit entries, newest first."""

    audit: Annotated[list[AuditEntry], Doc("Entries", "Entries of this page.")]
    next: Annotated[
        int, Doc("Next", "Cursor of the next page; null on the last one.", form="cursor")
    ]


class Histogram(Record):
    """Cumulative counts by upper bound in seconds; `count` is the last one."""

    bounds: list[float]
    counts: list[int]
    count: int
    sum: float


class Metrics(Record):
    """The numbers of /metrics; counters since the start."""

    now: Time
    started_at: Time
    pushed: int
    completed: int
    failed: int
    #: Counts by state of the deepest queues; "" is the sum of all other queues.
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
    #: Whether new jobs are refused, for example because the disk or the memory is full.
    pushes_refused: bool = False
    #: Time at which the oldest ready job of a queue became ready, by queue as above.
    oldest: dict[str, int] = {}
    disk_free: int = 0
    disk_size: int = 0
    #: Counters that a protocol's original exports: series -> label -> value.
    original: dict[str, dict[str, int]] = {}


class Counters(Record):
    """A part of the counters, as of an event of the journal."""

    event: int
    #: Queues with their numbers of jobs by state.
    queues: list[tuple[str, list[int]]]
    days: list[QueueStatistics]
    #: Days before this one are being removed.
    since: int
    more: bool
