"""Requests and replies of an import of jobs from another server."""

from typing import Any, Final, Literal

from .types import SECOND, AdminRequest, Record

#: Jobs per request. A request also ends after this number of payload bytes.
MAX_IMPORT_BATCH: Final = 1000
MAX_IMPORT_BATCH_BYTES: Final = 4 << 20


class ImportedFailure(AdminRequest):
    """The failures of an imported job."""

    first_at: int
    last_at: int
    group: str
    message: str
    backtrace: list[str] = []


class ImportedDetails(AdminRequest):
    """Details of a job of Qless. Times of the log are in seconds."""

    priority: int | float = 0
    #: Triples of a time, an event and its fields or null.
    log: list[tuple[int, str, dict[str, Any] | None]] = []
    #: Pairs of a tag and the time at which the job got it.
    tags: list[tuple[Any, int]] = []
    #: The worker of the last failure, and its time in seconds.
    failed_worker: str = ""
    failed_at: int | float = 0
    spawned_from: str = ""
    limits: list[str] = []
    waiting_since: int = 0


class ImportedJob(AdminRequest):
    """A job of another server."""

    jid: str
    #: Name of the protocol that pushed it.
    protocol: str
    queue: str
    kind: str
    payload: bytes
    #: A dead job is not retried. All other jobs become ready, scheduled or blocked.
    dead: bool = False
    #: Fields that the protocol returns unchanged.
    spec: bytes = b""
    retries: int = 25
    lease_for: int = 1800 * SECOND
    rank: int | float = 0
    #: Time at which the job becomes ready; 0 is now.
    due: int = 0
    #: A fixed position in the queue; 0 is the position of the arrival.
    place: int = 0
    #: End of its time to live; 0 is none.
    expires: int = 0
    max_attempts: int = 0
    created: int = 0
    attempts: int = 0
    failures: int = 0
    failure: ImportedFailure | None = None
    result: bytes | None = None
    tags: list[str] = []
    #: IDs of jobs that must complete first; they must precede this job.
    waits_for: list[str] = []
    dead_queue: str = ""
    details: ImportedDetails | None = None


class ImportedLimit(AdminRequest):
    """A limit on concurrently leased jobs."""

    key: str
    maximum: float
    expires: int = 0


class ImportedRecurringJob(AdminRequest):
    """A recurring job of Qless; the interval is in seconds."""

    jid: str
    kind: str
    payload: bytes
    queue: str
    interval: int | float
    #: Time of the next job.
    next_at: int
    priority: int | float = 0
    retries: int = 0
    backlog: int | float = 0
    tags: list[Any] = []
    #: Number of jobs created so far.
    count: int = 0
    limits: list[str] = []
    #: The part of its names that its clients do not see.
    prefix: str = ""


class ImportedDurations(AdminRequest):
    """Durations in seconds: their number, mean, sum of squared deviations, and histogram."""

    count: int = 0
    mean: float = 0.0
    vk: float = 0.0
    histogram: dict[int, int] = {}


class ImportedQueueDay(AdminRequest):
    """Statistics of a queue and a day, in days since 1970."""

    queue: str
    day: int
    wait: ImportedDurations
    run: ImportedDurations
    failures: int = 0
    failed: int = 0
    retries: int = 0


class ImportedSettings(AdminRequest):
    """The data of a server that does not belong to one job. Times are in microseconds."""

    #: Queues and the time of their first job; 0 if it is unknown.
    queues: dict[str, int] = {}
    paused: list[str] = []
    limits: list[ImportedLimit] = []
    #: Tracked IDs and the start of the tracking.
    tracked: dict[str, int] = {}
    recurring: list[ImportedRecurringJob] = []
    qless_options: dict[str, str] = {}
    processed: int = 0
    failures: int = 0
    #: Day (since 1970), processed and failed attempts.
    days: list[tuple[int, int, int]] = []
    queue_days: list[ImportedQueueDay] = []


class ImportJobs(AdminRequest):
    """One step of an import.

    `check` counts the jobs that are new. `begin` starts a run and discards an incomplete one;
    `stage` adds jobs to it; `finish` adds the settings and makes everything visible; `discard`
    removes the run.
    """

    source: str
    step: Literal["check", "begin", "stage", "finish", "discard"]
    run: int = 0
    jobs: list[ImportedJob] = []
    settings: ImportedSettings | None = None
    by: str = ""


class ImportProgress(Record):
    """The result of a step of an import, or its progress."""

    #: Number of the run.
    run: int
    #: Jobs that were staged, released or discarded, or that are new.
    done: int
    total: int = 0
    #: IDs of jobs that an earlier run has imported.
    known: list[str] = []
    #: Jobs that were skipped because a job with this ID exists.
    existing: list[str] = []
    #: Whether this is the first run of its source. Only this run imports settings.
    first: bool = False
    #: False in the reports before the last one.
    finished: bool = True
