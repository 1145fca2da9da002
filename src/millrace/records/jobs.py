"""Jobs, their events, and the results of requests about jobs."""

from typing import Annotated, Any

from .types import Cursor, Doc, Duration, Excerpt, Record, Result, State, Time


class FailureRecord(Record):
    """The last failure of a job."""

    group: Annotated[str, Doc("Error", "Class or group of the error.", column="error_group")] = ""
    message: Annotated[
        str,
        Doc(
            "Message", "Error message; lists show the first 300 characters.", column="error_message"
        ),
    ] = ""
    at: Annotated[Time, Doc("Failed at", "Time of the last failure.", column="failed_at")] = 0


class EarlierFailureRecord(Record):
    """A failure before the last one."""

    attempt: Annotated[int, Doc("Attempt", "Number of the attempt.")]
    at: Annotated[Time, Doc("Failed at", "Time of the failure.", column="failed_at")]
    group: Annotated[str, Doc("Error", "Class or group of the error.", column="error_group")]
    message: Annotated[
        str, Doc("Message", "First 300 characters of the message.", column="error_message")
    ]
    backtrace: Annotated[list[str], Doc("Backtrace", "Lines of the backtrace.")]


class JobRecord(Record):
    """A job."""

    jid: Annotated[
        str, Doc("ID", "ID that the client gave, or that the server generated.", name="id")
    ]
    seq: Annotated[int, Doc("Number", "Unique within this server; never reused.", name="number")]
    queue: Annotated[str, Doc("Queue", "Queue of the job.")]
    kind: Annotated[str, Doc("Kind", "Code to run: job type, class or name.")]
    state: Annotated[State, Doc("State", "State of the job.")]
    protocol: Annotated[str, Doc("Protocol", "Protocol that pushed the job.", column="origin")]
    priority: Annotated[float, Doc("Priority", "Priority as the pushing protocol counts it.")]
    created: Annotated[Time, Doc("Created", "Time of the push.", name="created_at")]
    due: Annotated[Time, Doc("Due", "Time at which the job becomes ready.", name="due_at")]
    ready_at: Annotated[Time, Doc("Ready since", "Time at which the job last became ready.")]
    leased_at: Annotated[Time, Doc("Leased at", "Start of the current or last attempt.")]
    deadline: Annotated[Time, Doc("Deadline", "Time at which the lease expires.")]
    ended_at: Annotated[Time, Doc("Ended at", "Time at which the job was done or dead.")]
    attempt: Annotated[int, Doc("Attempt", "Number of the current or last attempt.")]
    failures: Annotated[int, Doc("Failures", "Number of failed attempts.")]
    retries: Annotated[int, Doc("Retries", "Number of failures after which the job is retried.")]
    worker: Annotated[str, Doc("Worker", "Current or last worker.", optional=True)]
    worker_protocol: Annotated[
        str, Doc("Worker protocol", "Protocol of the worker.", column="protocol", optional=True)
    ]
    failure: Annotated[FailureRecord | None, Doc("Failure", "Last failure; null without one.")]
    tags: Annotated[list[str], Doc("Tags", "Tags of the job; lists show the first 50.")]
    tracked: Annotated[bool, Doc("Tracked", "True if the job is tracked.", column=None)]
    size: Annotated[int, Doc("Size", "Size of the payload in bytes.", column=None)]
    payload: Annotated[
        Excerpt,
        Doc("Payload", "Payload, if it is JSON and complete; lists omit it above 200 bytes."),
    ]
    wrapped_class: Annotated[
        str, Doc("Wrapped class", "Class that a Rails wrapper runs; else empty.", column=None)
    ] = ""
    truncated: Annotated[
        bool,
        Doc(
            "Truncated", "True if a name, the message or the tags are incomplete here.", column=None
        ),
    ] = False

    @property
    def group(self) -> str:
        return "" if self.failure is None else self.failure.group

    @property
    def message(self) -> str:
        return "" if self.failure is None else self.failure.message

    @property
    def failed_at(self) -> int:
        return 0 if self.failure is None else self.failure.at


class JobPage(Record):
    """Jobs that match a search."""

    jobs: Annotated[list[JobRecord], Doc("Jobs", "Jobs of this page.")]
    examined: Annotated[
        int,
        Doc(
            "Examined",
            "Number of jobs examined since the search began.",
            name="looked",
            also="examined",
        ),
    ]
    total: Annotated[
        int, Doc("Total", "Approximate number of jobs to examine.", name="of", also="total")
    ]
    next: Cursor


class RelatedJob(Record):
    """A job that another job waits for, or that waits for another job."""

    jid: Annotated[str, Doc("ID", "ID of the job.")]
    seq: Annotated[int, Doc("Number", "Number of the job.")]
    state: Annotated[str, Doc("State", "State of the job.")]


class RelatedJobs(Record):
    """Related jobs."""

    jobs: Annotated[list[RelatedJob], Doc("Jobs", "The first 100 jobs.")]
    more: Annotated[int, Doc("More", "Number of further jobs.")]


class ReasonRecord(Record, omit_defaults=True):
    """A reason why a job is not running."""

    code: Annotated[str, Doc("Code", "Machine-readable reason.")]
    text: Annotated[str, Doc("Text", "The reason as a sentence.")]
    since: Annotated[Time, Doc("Since", "Start of the condition.")] = 0
    until: Annotated[Time, Doc("Until", "Time at which the condition ends.")] = 0
    holder: Annotated[str, Doc("Holder", "Worker that holds the job.", internal=True)] = ""
    protocol: Annotated[str, Doc("Protocol", "Protocol of that worker.", internal=True)] = ""
    count: Annotated[int, Doc("Count", "Number of jobs concerned.", internal=True)] = 0
    blockers: Annotated[
        list[RelatedJob], Doc("Dependencies", "Jobs that this one waits for.", internal=True)
    ] = []
    about: Annotated[str, Doc("Subject", "Error, limit or load concerned.", internal=True)] = ""


HistoryEntry = tuple[float, str, dict[str, Any] | None]


class JobDetail(Record):
    """A job with everything the server keeps about it."""

    job: Annotated[JobRecord, Doc("Job", "The job, with up to 1 MiB of its payload.")]
    backtrace: Annotated[list[str], Doc("Backtrace", "Backtrace of the last failure.")]
    first_failed_at: Annotated[Time, Doc("First failure", "Time of the first failure.")]
    waits_for: Annotated[RelatedJobs, Doc("Waits for", "Jobs that must be done first.")]
    waited_for_by: Annotated[RelatedJobs, Doc("Dependents", "Jobs that wait for this one.")]
    lease_for: Annotated[
        Duration, Doc("Lease", "Duration of a lease, in seconds.", name="lease_seconds")
    ]
    expires_at: Annotated[Time, Doc("Expires", "Time at which the job is removed.")]
    max_attempts: Annotated[
        int,
        Doc(
            "Maximum attempts",
            "Maximum number of attempts; 0 for no limit.",
            name="most_attempts",
            also="max_attempts",
        ),
    ]
    dead_queue: Annotated[str, Doc("Dead queue", "Queue that receives the job when it is dead.")]
    protocol_data: Annotated[
        dict[str, Any],
        Doc(
            "Protocol data",
            "Data that the pushing protocol keeps.",
            name="own",
            also="protocol_data",
        ),
    ]
    history: Annotated[
        list[HistoryEntry], Doc("Qless history", "History that Qless keeps.", form="history")
    ]
    reasons: Annotated[list[ReasonRecord], Doc("Reasons", "Reasons why the job is not running.")]
    same_id_count: Annotated[
        int,
        Doc("Same ID", "Number of other jobs with this ID.", name="twins", also="same_id_count"),
    ]
    backtrace_truncated: Annotated[
        bool, Doc("Backtrace truncated", "True if the backtrace is incomplete here.")
    ]
    result_size: Annotated[
        int, Doc("Result size", "Size of the result in bytes; null without a result.", null=-1)
    ]
    result_truncated: Annotated[
        bool, Doc("Result truncated", "True if the result is incomplete here.")
    ]
    result: Annotated[
        Result | None, Doc("Result", "Result, if it is JSON; up to 1 MiB.", form="result")
    ]
    load: Annotated[
        str, Doc("Load", "Load that the job belongs to; else empty.", optional=True)
    ] = ""
    earlier_failures: Annotated[
        list[EarlierFailureRecord],
        Doc(
            "Earlier failures",
            "Up to ten failures with backtraces before the last one, newest first.",
        ),
    ] = []
    payload_error: Annotated[
        str,
        Doc("Payload error", "Why the payload cannot be shown; else empty.", optional=True),
    ] = ""


class JobExplanation(Record):
    """A job and the reasons why it is not running."""

    jid: str
    seq: int
    queue: str
    kind: str
    origin: str
    state: str
    attempt: int
    reasons: list[ReasonRecord]


class ExplainedJobs(Record):
    """The jobs of one ID or number, with reasons."""

    jobs: list[JobExplanation]
    now: Time
    #: True if a job with this number existed.
    known: bool
    #: Number of further jobs with this ID.
    more: int = 0


class EventRecord(Record):
    """A state change of a job, from the journal."""

    event_id: Annotated[int, Doc("Event", "Number of the event.", name="event")]
    time: Annotated[Time, Doc("Time", "Time of the event.", name="at")]
    type: Annotated[str, Doc("Type", "Type of the event.")]
    jid: Annotated[str, Doc("ID", "ID of the job.", name="id")]
    seq: Annotated[int, Doc("Number", "Number of the job.", name="number")]
    queue: Annotated[str, Doc("Queue", "Queue of the job after the event.")]
    state: Annotated[str, Doc("State", "State of the job after the event.")]
    attempt: Annotated[int, Doc("Attempt", "Number of the attempt.")]
    actor: Annotated[str | None, Doc("Protocol", "Acting protocol.", name="protocol", null="")] = (
        None
    )
    worker: Annotated[str | None, Doc("Worker", "Worker concerned.", null="")] = None
    wait_us: Annotated[
        Duration | None, Doc("Wait", "Time from ready to leased.", name="wait_seconds")
    ] = None
    run_us: Annotated[
        Duration | None, Doc("Run", "Time from leased to the end.", name="run_seconds")
    ] = None
    due: Annotated[Time | None, Doc("Due", "Time at which the job is due.", name="due_at")] = None
    error_group: Annotated[str | None, Doc("Error", "Class of the error.", name="group")] = None
    error_message: Annotated[str | None, Doc("Message", "Error message.", name="message")] = None
    kind: Annotated[str, Doc("Kind", "Kind of the job.", internal=True)] = ""
    origin: Annotated[str, Doc("Pushed over", "Pushing protocol.", internal=True)] = ""
    priority: Annotated[float, Doc("Priority", "Priority of the job.", internal=True)] = 0.0
    before: Annotated[str | None, Doc("Before", "State before the event.", internal=True)] = None
    fingerprint: Annotated[str | None, Doc("Fingerprint", "Shape of the error.", internal=True)] = (
        None
    )
    source: Annotated[str | None, Doc("Source", "Queue that the job left.", internal=True)] = None
    payload_bytes: Annotated[int, Doc("Size", "Size of the payload.", internal=True)] = 0
    tags: Annotated[list[str] | None, Doc("Tags", "Tags of the job.", internal=True)] = None


class EventPage(Record):
    """The events of a job, oldest first."""

    events: Annotated[list[EventRecord], Doc("Events", "Events, oldest first.")]
    complete: Annotated[
        bool,
        Doc(
            "Complete", "True if the complete journal was searched.", name="whole", also="complete"
        ),
    ]
    source: Annotated[str, Doc("Source", "`journal`, or `job` for the job's own fields.")]


class JournalEvent(Record):
    """An event of the journal that is not shipped yet."""

    event: Annotated[int, Doc("Event", "Number of the event.")]
    time: Annotated[Time, Doc("Time", "Time of the event.")]
    type: Annotated[str, Doc("Type", "Type of the event.")]
    seq: Annotated[int, Doc("Number", "Number of the job.", name="number")]
    jid: Annotated[str, Doc("ID", "ID of the job.", name="id")]
    queue: Annotated[str, Doc("Queue", "Queue of the job after the event.")]
    kind: Annotated[str, Doc("Kind", "Kind of the job.")]
    origin: Annotated[str, Doc("Protocol", "Pushing protocol.", name="protocol")]
    actor: Annotated[str, Doc("Actor", "Acting protocol; empty for the server.")]
    worker: Annotated[str, Doc("Worker", "Worker concerned.")]
    attempt: Annotated[int, Doc("Attempt", "Number of the attempt.")]
    state: Annotated[str, Doc("State", "State of the job after the event.")]
    group: Annotated[str, Doc("Error", "Class of the error.", name="error")]
    message: Annotated[str, Doc("Message", "Error message.")]


class JournalPage(Record):
    """Events of all jobs that are not shipped yet, oldest first."""

    events: Annotated[list[JournalEvent], Doc("Events", "Events, oldest first.")]
    next_event: Annotated[
        int, Doc("Next", "Number of the event that follows, for `first`.", name="next")
    ]


class PushedJobs(Record):
    """Jobs that were pushed."""

    jobs: Annotated[list[JobRecord], Doc("Jobs", "The jobs, in the order of the request.")]


class LeasedJob(Record):
    """A lease: the right to one attempt."""

    token: Annotated[str, Doc("Token", "Token that ends or renews the lease.")]
    deadline: Annotated[Time, Doc("Deadline", "Time at which the lease expires.")]
    job: Annotated[JobRecord, Doc("Job", "The job with its complete payload.")]


class LeasedJobs(Record):
    """Leases that were granted; empty if no job was ready."""

    jobs: Annotated[list[LeasedJob], Doc("Leases", "Granted leases.", name="leases")]


class EndedLease(Record):
    """The job after its lease ended or was renewed."""

    job: Annotated[JobRecord | None, Doc("Job", "The job; null if the server does not retain it.")]


class SkippedJob(Record):
    """A job that an action did not change."""

    job: Annotated[str, Doc("ID", "ID of the job.", name="id")]
    reason: Annotated[str, Doc("Reason", "Reason why it was not changed.")]


class BulkProgress(Record):
    """Progress of an action on jobs."""

    done: Annotated[int, Doc("Changed", "Number of jobs changed.")]
    skipped: Annotated[list[SkippedJob], Doc("Skipped", "The first 100 jobs not changed.")]
    skipped_count: Annotated[int, Doc("Skipped", "Number of jobs not changed.")] = 0
    examined: Annotated[int, Doc("Examined", "Number of jobs examined.")] = 0
    total: Annotated[int, Doc("Total", "Number of jobs to examine.")] = 0
    #: False in the reports before the last one.
    finished: bool = True


class ChangedJobs(Record):
    """Result of an action on one job."""

    done: Annotated[int, Doc("Changed", "Number of jobs changed.")]


class ActionStatus(Record):
    """An action on several jobs, and its progress."""

    number: Annotated[int, Doc("Number", "Number of the action.")]
    title: Annotated[str, Doc("Title", "Description of the action.")]
    by: Annotated[str, Doc("User", "User that started it.", also="user")]
    state: Annotated[str, Doc("State", "`running`, `done`, `stopped` or `failed`.")]
    started_at: Annotated[
        Time, Doc("Started at", "Start of the action.", name="began_at", also="started_at")
    ]
    ended_at: Annotated[Time, Doc("Ended at", "End of the action.")]
    done: Annotated[int, Doc("Changed", "Number of jobs changed.")]
    skipped: Annotated[
        int, Doc("Skipped", "Number of jobs not changed.", name="refused", also="skipped")
    ]
    skipped_jobs: Annotated[
        list[SkippedJob],
        Doc("Skipped jobs", "The first 100 jobs not changed.", name="refusals"),
    ]
    examined: Annotated[
        int, Doc("Examined", "Number of jobs examined.", name="looked", also="examined")
    ]
    total: Annotated[int, Doc("Total", "Number of jobs to examine.", name="of", also="total")]
    error: Annotated[str, Doc("Error", "Reason of a failure; else empty.")]


class ActionPage(Record):
    """Running and recent bulk actions."""

    actions: Annotated[list[ActionStatus], Doc("Actions", "Bulk actions, newest first.")]
