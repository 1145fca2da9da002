"""Requests over the admin socket, and the query parameters and bodies of the HTTP API."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from .actions import JOB_ACTIONS, QUEUE_ACTIONS, RECURRING_ACTIONS, WORKER_ACTIONS
from .imports import ImportJobs
from .types import (
    MAX_BACKTRACE_LINE,
    MAX_BACKTRACE_LINES,
    MAX_ERROR_GROUP,
    MAX_ERROR_MESSAGE,
    MAX_LARGE_PAGE_SIZE,
    MAX_LEASE,
    MAX_LEASED,
    MAX_LEASED_QUEUES,
    MAX_LIMIT,
    MAX_NAME,
    MAX_NAMED_JOBS,
    MAX_OPTION_NAME,
    MAX_OPTION_VALUE,
    MAX_PAGE_SIZE,
    MAX_PAYLOAD,
    MAX_PRIORITY,
    MAX_PUSHED,
    MAX_QUEUE_NAME,
    MAX_RETENTION,
    MAX_RETRIES,
    MAX_TAG,
    MAX_TAGS,
    MAX_TERM,
    MAX_TERMS,
    MIN_LEASE,
    SECOND,
    AdminRequest,
    Doc,
    Order,
    State,
)

if TYPE_CHECKING:
    JobActionName = str
    QueueActionName = str
    WorkerActionName = str
    RecurringActionName = str
else:
    JobActionName = Literal[tuple(JOB_ACTIONS)]
    QueueActionName = Literal[tuple(QUEUE_ACTIONS)]
    WorkerActionName = Literal[tuple(WORKER_ACTIONS)]
    RecurringActionName = Literal[tuple(RECURRING_ACTIONS)]


# Fields

Name = Annotated[str, Meta(min_length=1, max_length=MAX_TERM)]
QueueName = Annotated[str, Meta(min_length=1, max_length=MAX_QUEUE_NAME)]
Short = Annotated[str, Meta(max_length=MAX_NAME)]
TagName = Annotated[str, Meta(min_length=1, max_length=MAX_TAG)]
Text = Annotated[str, Meta(max_length=MAX_TERM)]
Date = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
Priority = Annotated[float, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
#: A JSON number such as 3.0 is also an integer.
WholeNumber = Annotated[float, Meta(multiple_of=1)]
Tags = Annotated[list[TagName], Meta(max_length=MAX_TAGS)]
Number = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Ids = Annotated[list[Name], Meta(max_length=MAX_NAMED_JOBS)]
LeaseSeconds = Annotated[float, Meta(ge=MIN_LEASE // SECOND, le=MAX_LEASE // SECOND)]
RetentionSeconds = Annotated[float, Meta(ge=0, le=MAX_RETENTION // SECOND)]
When = Annotated[datetime, Meta(tz=True)]
#: Microseconds, at most 365 days.
LeaseDuration = Annotated[int, Meta(ge=0, le=MAX_LEASE)]
#: Microseconds since 1970, 0 for none.
TimeArgument = Annotated[int, Meta(ge=0, lt=(1 << 63) - 1)]
_LIMIT: Final = Doc("Limit", "Maximum number of items to return.")
_CURSOR: Final = Doc("Cursor", "`next` of the previous page.")
_TERMS: Final = Doc("Text", "Terms that occur in the payload, the ID, the kind or the error.")


#: Version of the admin socket's protocol. Version 1 had no hello; version 3 renamed members.
PROTOCOL_VERSION: Final = 3


class Hello(AdminRequest):
    """The first line of a connection."""

    version: int
    #: Name and version of the client, for errors.
    client: str = ""
    #: Limits the connection to queues that match one of these patterns; empty: all queues.
    queues: list[str] = []


class HelloReply(msgspec.Struct):
    """The versions of the protocol and of the server."""

    version: int
    server: str


# Queries. Lists have the same parameters over HTTP.


class PageRequest(AdminRequest):
    """A page of a list."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE), _LIMIT] = 100
    cursor: Annotated[str, _CURSOR] = ""


class ListQueues(AdminRequest):
    """Queues by name."""

    text: Annotated[Text, Doc("Text", "Part of the name.")] = ""
    paused: Annotated[bool, Doc("Paused", "Only paused queues.")] = False
    limit: Annotated[int, Meta(ge=1, le=MAX_LARGE_PAGE_SIZE), _LIMIT] = 100
    cursor: Annotated[str, _CURSOR] = ""


class ListFailures(AdminRequest):
    """The largest failure groups."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LARGE_PAGE_SIZE), _LIMIT] = 100


class ListTags(AdminRequest):
    """The most used tags."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE), _LIMIT] = 100


class ListAudit(AdminRequest):
    """Audit entries, newest first; cursor 0 starts at the newest."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LARGE_PAGE_SIZE), _LIMIT] = 100
    cursor: Annotated[int, Meta(ge=0, le=(1 << 63) - 1), _CURSOR] = 0


class GetMetrics(AdminRequest):
    """The numbers of /metrics, separately for up to `limit` queues."""

    limit: Annotated[int, Meta(ge=0, le=MAX_LARGE_PAGE_SIZE)] = 100


class GetQueue(AdminRequest):
    """A queue and its statistics of a day, in days since 1970; -1 is today."""

    name: str
    day: int = -1


class JobFilter(AdminRequest):
    """Jobs that match every given condition.

    Each condition is also a key of the query language, under its name and its aliases (`keys`);
    true or false is written `is:retrying` or `not:retrying`.
    """

    id: Annotated[
        Text | None,
        Doc("ID", "ID of the job. A search also accepts its number.", keys=("jid", "seq")),
    ] = None
    queue: Annotated[Text | None, Doc("Queue", "Queue of the job.")] = None
    kind: Annotated[
        Text | None, Doc("Kind", "Kind of the job.", keys=("class", "klass", "type", "jobtype"))
    ] = None
    state: Annotated[State | None, Doc("State", "State of the job.")] = None
    retrying: Annotated[
        bool | None, Doc("Retrying", "Whether a scheduled job has failed before.")
    ] = None
    failing: Annotated[
        bool | None, Doc("Failing", "Whether the job is dead or waits for a retry.")
    ] = None
    protocol: Annotated[Text | None, Doc("Protocol", "Protocol that pushed the job.")] = None
    tag: Annotated[Text | None, Doc("Tag", "One of the tags.")] = None
    worker: Annotated[Text | None, Doc("Worker", "Current or last worker.")] = None
    group: Annotated[Text | None, Doc("Error", "Error group, complete.")] = None
    fingerprint: Annotated[Text | None, Doc("Fingerprint", "Fingerprint of the failure group.")] = (
        None
    )
    error: Annotated[Text | None, Doc("Error text", "Text in the error group or message.")] = None
    tracked: Annotated[bool | None, Doc("Tracked", "Whether the job is tracked.")] = None
    terms: Annotated[list[Name], Meta(max_length=MAX_TERMS), _TERMS] = msgspec.field(
        default_factory=list, name="text"
    )


class FilterBody(JobFilter):
    """Jobs that match every given condition."""


class SearchJobs(AdminRequest):
    """Jobs that match a filter.

    Order "newest" is by number, "due" by due time, "queue" as the jobs will be leased, "ended" by
    end, newest first. If a filter does not support an order, the order is "newest".
    """

    query: JobFilter
    order: Order = "newest"
    cursor: str = ""
    limit: int = 50
    #: Maximum number of jobs to examine before the reply.
    max_examined: int = 20_000


class GetJob(AdminRequest):
    """A job by ID or number. If several jobs have the ID, the oldest, unless `seq` selects one."""

    id: str
    seq: int = 0
    #: Start of the payload's excerpt.
    offset: int = 0


class ListWorkers(PageRequest):
    """A page of workers, or the one with this protocol and ID."""

    protocol: str = ""
    wid: str = ""


# Changes. `by` is the user, for the audit log.


class ActionRequest(AdminRequest):
    """An action on named jobs or on all jobs that match a filter; see admin.actions."""

    action: JobActionName
    #: IDs; if several jobs have an ID, the action applies to the oldest.
    jobs: list[str] = []
    #: Job numbers.
    seqs: list[int] = []
    query: JobFilter | None = None
    queue: str = ""
    priority: Priority = 0
    tags: Tags = []
    waits_for: list[str] = []
    by: str = ""
    #: Named jobs that do not match this filter are skipped.
    only: JobFilter | None = None


class QueueAction(AdminRequest):
    """`clear` removes the ready jobs, `remove` also the queue; both report progress. `retain` sets
    how long completed jobs are kept; -1 removes the setting. `limit` sets the maximum number of
    leased jobs; 0 removes the limit.
    """

    name: str
    action: QueueActionName
    by: str = ""
    retention: int = -1
    limit: Annotated[int, Meta(ge=0, le=MAX_LIMIT)] = 0


class WorkerAction(AdminRequest):
    """A signal to a Faktory worker; `wid` "all" means every worker."""

    wid: str
    action: WorkerActionName
    by: str = ""


class RecurringAction(AdminRequest):
    """An action on a recurring job."""

    jid: str
    action: RecurringActionName
    queue: str = ""
    priority: Priority = 0
    tags: Tags = []
    by: str = ""


class SetQlessOption(msgspec.Struct, forbid_unknown_fields=True):
    """A setting of Qless; null removes it."""

    option: str
    value: str | None
    by: str = ""


class RunPipeline(AdminRequest):
    """Start a run of the pipeline."""

    by: str = ""


class FlushRequest(AdminRequest):
    """Delete all jobs, queues and statistics."""

    by: str = ""


class AuditNote(AdminRequest):
    """An entry for the audit log about a change outside the server process."""

    action: str
    target: str = ""
    by: str = ""


# Work


class PushJob(AdminRequest):
    """A job to push."""

    queue: QueueName
    payload: bytes
    kind: Short = ""
    #: Generated by the server if empty. A conflict if an unfinished job has this ID.
    jid: Short = ""
    priority: Priority = 0
    #: Due time; 0 is now.
    at: TimeArgument = 0
    retries: Annotated[int, Meta(ge=0, le=MAX_RETRIES)] = 25
    #: Duration of a lease if the worker gives none.
    lease_for: Annotated[int, Meta(ge=MIN_LEASE, le=MAX_LEASE)] = 1800 * SECOND
    tags: Tags = []
    #: IDs of jobs that must be done first.
    waits_for: Annotated[list[str], Meta(max_length=MAX_NAMED_JOBS)] = []
    #: Retention time of the completed job; -1: the setting of its queue.
    retention: Annotated[int, Meta(ge=-1, le=MAX_RETENTION)] = -1


class PushJobs(AdminRequest):
    """Push all of these jobs, or none."""

    jobs: list[PushJob]
    by: str = ""
    #: A request with the key of an earlier request gets the reply to the earlier one, for a day.
    key: str = ""
    #: Digest of the request; requests with the same key must have the same digest.
    digest: str = ""


class LeaseJobs(AdminRequest):
    """Lease up to `limit` jobs of these queues in their order; wait up to `wait` for the first."""

    queues: Annotated[list[QueueName], Meta(min_length=1, max_length=MAX_LEASED_QUEUES)]
    worker: TagName
    limit: Annotated[int, Meta(ge=1, le=MAX_LEASED)] = 1
    wait: int = 0
    #: 0: the duration of the job.
    lease_for: LeaseDuration = 0


class EndLease(AdminRequest):
    """End or renew a lease. A token of an earlier attempt is a conflict."""

    token: str
    action: Literal["complete", "fail", "release", "renew"]
    result: bytes | None = None
    group: str = ""
    message: str = ""
    backtrace: list[str] = []
    #: Time of the next attempt; 0: according to the policy.
    retry_at: TimeArgument = 0
    lease_for: LeaseDuration = 0
    by: str = ""


class SocketRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A line of the admin socket: exactly one operation."""

    why: str | None = None
    sizes: bool = False
    journal: bool = False
    ship: bool = False
    counters: bool = False
    overview: bool = False
    health: bool = False
    queues: ListQueues | None = None
    queue: GetQueue | None = None
    search: SearchJobs | None = None
    job: GetJob | None = None
    failures: ListFailures | None = None
    workers: ListWorkers | None = None
    recurring: PageRequest | None = None
    tracked: PageRequest | None = None
    tags: ListTags | None = None
    limits: bool = False
    server: bool = False
    audit: ListAudit | None = None
    metrics: GetMetrics | None = None
    faktory: bool = False
    pipeline: bool = False
    act: ActionRequest | None = None
    act_on_queue: QueueAction | None = None
    act_on_worker: WorkerAction | None = None
    act_on_recurring: RecurringAction | None = None
    set_qless: SetQlessOption | None = None
    run_pipeline: RunPipeline | None = None
    flush: FlushRequest | None = None
    note: AuditNote | None = None
    push: PushJobs | None = None
    lease: LeaseJobs | None = None
    end: EndLease | None = None
    import_jobs: ImportJobs | None = None


# The HTTP API: query parameters and bodies

#: Maximum time that the server waits for a job.
MAX_WAIT_SECONDS: Final = 60.0
MAX_DELAY_SECONDS: Final = 3_153_600_000
#: Characters of a search.
MAX_SEARCH: Final = 4000
Base64 = Annotated[
    bytes,
    Meta(
        max_length=MAX_PAYLOAD,
        extra_json_schema={
            "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
        },
    ),
]
_NUMBER: Final = Doc("Number", "Job number, to select one of several jobs with this ID.")
_SEARCH: Final = Doc("Search", "A search as on the page Jobs: `queue:mail timeout`.")


class Parameters(msgspec.Struct, forbid_unknown_fields=True):
    """Query parameters or a body; an unknown member is an error."""


class QueueParameters(Parameters):
    """A queue and its statistics."""

    date: Annotated[Date | None, Doc("Date", "Day of the statistics; default: today.")] = None


class JobListParameters(FilterBody):
    """Jobs that match every given condition."""

    q: Annotated[str, Meta(max_length=MAX_SEARCH), _SEARCH] = ""
    order: Annotated[Order, Doc("Order", "By number, due time, place in the queue, or end.")] = (
        "newest"
    )
    limit: Annotated[int, Meta(ge=1, le=MAX_LARGE_PAGE_SIZE), _LIMIT] = 50
    cursor: Annotated[str, _CURSOR] = ""


class JobParameters(Parameters):
    """Selects one of several jobs with the same ID; default: the oldest."""

    number: Annotated[Number | None, _NUMBER] = None


class EventParameters(Parameters):
    """The events of a job."""

    number: Annotated[Number | None, _NUMBER] = None
    thorough: Annotated[
        bool, Doc("Thorough", "Search the complete journal; this may take seconds.")
    ] = False


class JournalParameters(Parameters):
    """Events of all jobs."""

    first: Annotated[
        int,
        Meta(ge=0, le=(1 << 63) - 1),
        Doc("First", "Number of the first event; 0 for the newest `limit` events."),
    ] = 0
    limit: Annotated[int, Meta(ge=0, le=MAX_PAGE_SIZE), _LIMIT] = 100


class FailureJobParameters(Parameters):
    """The jobs of a failure group."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LARGE_PAGE_SIZE), _LIMIT] = 50
    cursor: Annotated[str, _CURSOR] = ""


class ReportParameters(Parameters):
    """The days from `first` to `last`, or the last `days`."""

    days: Annotated[int, Meta(ge=1, le=366), Doc("Days", "Number of most recent days.")] = 7
    first: Annotated[Date | None, Doc("First", "First day.")] = None
    last: Annotated[Date | None, Doc("Last", "Last day.")] = None
    queue: Annotated[Text | None, Doc("Queue", "Only this queue.")] = None


class JobBody(Parameters):
    """A job to push. The payload is JSON, stored as written, or bytes in base64."""

    queue: Annotated[QueueName, Doc("Queue", "Queue of the job; up to 255 bytes.")]
    payload: Annotated[Raw | UnsetType, Doc("Payload", "Any JSON.")] = UNSET
    payload_base64: Annotated[
        Base64 | UnsetType, Doc("Payload", "Bytes, instead of `payload`.")
    ] = UNSET
    kind: Annotated[Short, Doc("Kind", "Code to run.")] = ""
    id: Annotated[
        Short, Doc("ID", "Default: generated by the server. 409 if an unfinished job has this ID.")
    ] = ""
    priority: Annotated[Priority, Doc("Priority", "Higher priorities are leased first.")] = 0
    at: Annotated[When | None, Doc("Due", "Time at which the job is due; default: now.")] = None
    delay: Annotated[
        float,
        Meta(ge=0, le=MAX_DELAY_SECONDS),
        Doc("Delay", "Seconds until the job is due, instead of `at`."),
    ] = 0
    retries: Annotated[
        WholeNumber,
        Meta(ge=0, le=MAX_RETRIES),
        Doc("Retries", "Number of failures after which the job is retried."),
    ] = 25
    lease_for: Annotated[
        LeaseSeconds, Doc("Lease", "Seconds until a lease expires, if the worker gives none.")
    ] = 1800
    tags: Annotated[Tags, Doc("Tags", "Tags of the job.")] = []
    waits_for: Annotated[Ids, Doc("Waits for", "IDs of jobs that must be done first.")] = []
    keep_result: Annotated[
        RetentionSeconds | None,
        Doc("Keep result", "Retention time in seconds; default: the setting of the queue."),
    ] = None


#: One job, or several: the server pushes all of them or none.
JobBodies = JobBody | Annotated[list[JobBody], Meta(min_length=1, max_length=MAX_PUSHED)]


class QueueBody(Parameters):
    """The target queue."""

    queue: Annotated[QueueName, Doc("Queue", "Target queue; up to 255 bytes.")]


class RetentionBody(Parameters):
    """Retention time of completed jobs; null removes the setting."""

    keep_results: Annotated[
        RetentionSeconds | None, Doc("Keep results", "Retention time in seconds.")
    ]


class LimitBody(Parameters):
    """The maximum number of leased jobs; null removes the limit."""

    limit: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_LIMIT)] | None,
        Doc("Limit", "Maximum number of leased jobs."),
    ]


class PriorityBody(Parameters):
    """The new priority."""

    priority: Annotated[Priority, Doc("Priority", "New priority.")]


class TagsBody(Parameters):
    """Tags to add or to remove."""

    tags: Annotated[Tags, Meta(min_length=1), Doc("Tags", "Tags to add or to remove.")]


class DependencyBody(Parameters):
    """Dependencies to remove; without any, all of them."""

    waits_for: Annotated[Ids, Doc("Waits for", "IDs of jobs not to wait for.")] = []


class NoMembers(Parameters):
    """No members."""


#: Body of an action, by its argument.
ACTION_BODIES: Final[dict[str | None, type[Parameters]]] = {
    None: NoMembers,
    "queue": QueueBody,
    "priority": PriorityBody,
    "tags": TagsBody,
    "waits_for": DependencyBody,
    "keep_results": RetentionBody,
    "limit": LimitBody,
}


class ActionBody(Parameters):
    """An action and its jobs: exactly one of `jobs`, `numbers`, `query` and `q`."""

    action: Annotated[JobActionName, Doc("Action", "Name of the action.")]
    jobs: Annotated[Ids, Doc("Jobs", "IDs of jobs.")] = []
    numbers: Annotated[
        list[Number], Meta(max_length=MAX_NAMED_JOBS), Doc("Numbers", "Job numbers.")
    ] = []
    query: Annotated[FilterBody | None, Doc("Filter", "Jobs that match this filter.")] = None
    q: Annotated[str, Meta(max_length=MAX_SEARCH), _SEARCH] = ""
    all: Annotated[bool, Doc("All", "Confirms an action on every job, with `query` as {}.")] = False
    queue: Annotated[Short, Doc("Queue", "Target queue of `move`.")] = ""
    priority: Annotated[Priority, Doc("Priority", "New priority, for `priority`.")] = 0
    tags: Annotated[Tags, Doc("Tags", "Tags of `tag` and `untag`.")] = []
    waits_for: Annotated[Ids, Doc("Waits for", "Dependencies that `undepend` removes.")] = []


class LeaseBody(Parameters):
    """Up to `limit` jobs of these queues in their order; waits for one if none is ready."""

    queues: Annotated[
        list[QueueName],
        Meta(min_length=1, max_length=MAX_LEASED_QUEUES),
        Doc("Queues", "Queues, in the order in which they are tried."),
    ]
    worker: Annotated[TagName, Doc("Worker", "Name of the worker.")]
    limit: Annotated[
        WholeNumber, Meta(ge=1, le=MAX_LEASED), Doc("Limit", "Maximum number of jobs.")
    ] = 1
    wait: Annotated[
        float, Meta(ge=0, le=MAX_WAIT_SECONDS), Doc("Wait", "Seconds to wait for a job.")
    ] = 0
    lease_for: Annotated[
        LeaseSeconds | None,
        Doc("Lease", "Seconds until the lease expires; default: the setting of the job."),
    ] = None


class CompletionBody(Parameters):
    """The result is JSON, stored as written, or bytes in base64."""

    result: Annotated[Raw | UnsetType, Doc("Result", "Any JSON.")] = UNSET
    result_base64: Annotated[Base64 | UnsetType, Doc("Result", "Bytes, instead of `result`.")] = (
        UNSET
    )


class FailureBody(Parameters):
    """The error of a failed attempt."""

    group: Annotated[
        str, Meta(max_length=MAX_ERROR_GROUP), Doc("Error", "Class or group of the error.")
    ] = ""
    message: Annotated[
        str, Meta(max_length=MAX_ERROR_MESSAGE), Doc("Message", "Error message.")
    ] = ""
    backtrace: Annotated[
        list[Annotated[str, Meta(max_length=MAX_BACKTRACE_LINE)]],
        Meta(max_length=MAX_BACKTRACE_LINES),
        Doc("Backtrace", "Lines of the backtrace."),
    ] = []
    retry_at: Annotated[
        When | None, Doc("Retry at", "Time of the next attempt; default: according to the policy.")
    ] = None


class RenewalBody(Parameters):
    """The new duration of the lease."""

    lease_for: Annotated[
        LeaseSeconds | None,
        Doc("Lease", "Seconds until the lease expires; default: the setting of the job."),
    ] = None


class QlessOptionBody(Parameters):
    """A setting of Qless; null removes it."""

    option: Annotated[
        str, Meta(min_length=1, max_length=MAX_OPTION_NAME), Doc("Option", "Name of the setting.")
    ]
    value: Annotated[
        Annotated[str, Meta(max_length=MAX_OPTION_VALUE)] | None, Doc("Value", "New value.")
    ]


class FlushBody(Parameters):
    """Confirms that all jobs, queues and statistics are deleted."""

    confirm: Annotated[Literal["flush"], Doc("Confirmation", "The word `flush`.")]
