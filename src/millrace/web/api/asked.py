"""What the API is asked with: query parameters and bodies, and the limits of both."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from millrace.records import MAX_OPTION_NAME, MAX_OPTION_VALUE, MAX_PRIORITY, Action, State
from millrace.web.analytics import MOST_DAYS

SECOND: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: A lease lasts no longer than this, and nobody waits longer than that for a job.
LONGEST_LEASE: Final = 31_536_000.0
LONGEST_WAIT: Final = 60.0
#: So many jobs at once are pushed, leased, or acted on by their ids.
MOST_PUSHED: Final = 200
MOST_LEASED: Final = 100
MOST_NAMED: Final = 1000
#: The server tells of no more queues, failures, or entries of the audit log at once.
MOST_QUEUES: Final = 500
MOST_FAILURES: Final = 500
MOST_AUDITED: Final = 500
#: A body that pushes jobs, or ends one with a result, may be as long as this.
MOST_PUSH: Final = 16 << 20

Name = Annotated[str, Meta(min_length=1, max_length=1000)]
#: At most 255 bytes.
QueueName = Annotated[str, Meta(min_length=1, max_length=255)]
Short = Annotated[str, Meta(max_length=255)]
Tag = Annotated[str, Meta(min_length=1, max_length=255)]
Text = Annotated[str, Meta(max_length=1000)]
Limit = Annotated[int, Meta(ge=1, le=1000, description="How many at most.")]
Day = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
Page = Annotated[str, Meta(description="`next` of the answer before.")]
Priority = Annotated[float, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
#: JSON's 3.0 is a whole number, too.
Retries = Annotated[float, Meta(ge=0, le=1_000_000, multiple_of=1)]
Tags = Annotated[list[Tag], Meta(max_length=100)]
SomeTags = Annotated[list[Tag], Meta(min_length=1, max_length=100)]
#: A job's, which no other has.
Number = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Ids = Annotated[list[Name], Meta(max_length=MOST_NAMED)]
LeaseFor = Annotated[
    float, Meta(ge=1, le=LONGEST_LEASE, description="Seconds until the lease ends.")
]
When = Annotated[datetime, Meta(tz=True)]
Base64 = Annotated[
    bytes,
    Meta(
        max_length=MOST_PUSH,
        extra_json_schema={
            "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
        },
    ),
]


def microseconds(seconds: float) -> int:
    return int(seconds * SECOND)


def instant(when: datetime | None) -> int:
    return 0 if when is None else (when - _EPOCH) // timedelta(microseconds=1)


class Given(msgspec.Struct, forbid_unknown_fields=True):
    """What is not known is not ignored."""


# Query parameters


class Paged(Given):
    limit: Limit = 100
    cursor: Page = ""


class FailuresAsked(Given):
    """There is no cursor: the largest are told of."""

    limit: Annotated[int, Meta(ge=1, le=MOST_FAILURES)] = 100


class TagsAsked(Given):
    """There is no cursor: the most used are told of."""

    limit: Limit = 100


class QueuesAsked(Given):
    #: Part of the name.
    text: Text = ""
    paused: Annotated[bool, Meta(description="Only those that are.")] = False
    limit: Annotated[int, Meta(ge=1, le=MOST_QUEUES)] = 100
    cursor: Page = ""


class QueueAsked(Given):
    #: The day of the statistics; today, if none is given.
    date: Day | UnsetType = UNSET


class JobsAsked(Given):
    """Jobs for which all of it holds."""

    q: Annotated[
        str, Meta(max_length=4000, description="As on the page Jobs: `queue:mail timeout`.")
    ] = ""
    id: Text | UnsetType = UNSET
    queue: Text | UnsetType = UNSET
    kind: Text | UnsetType = UNSET
    state: State | UnsetType = UNSET
    retrying: bool | UnsetType = UNSET
    failing: (
        Annotated[
            bool, Meta(description="Dead of a failure, or waiting for another try; or neither.")
        ]
        | UnsetType
    ) = UNSET
    protocol: Text | UnsetType = UNSET
    tag: Text | UnsetType = UNSET
    worker: Text | UnsetType = UNSET
    group: Text | UnsetType = UNSET
    fingerprint: Text | UnsetType = UNSET
    error: Text | UnsetType = UNSET
    tracked: bool | UnsetType = UNSET
    text: Annotated[
        list[Name],
        Meta(max_length=20, description="Each is in the payload, the id, the kind or the error."),
    ] = []
    order: Literal["newest", "due", "queue", "ended"] = "newest"
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: Page = ""


class JobAsked(Given):
    """Of several jobs of one id the oldest is meant, unless it is said which."""

    number: Number | UnsetType = UNSET


class EventsAsked(Given):
    number: Number | UnsetType = UNSET
    thorough: Annotated[
        bool, Meta(description="Look at all of the journal, however long that takes.")
    ] = False


class GroupAsked(Given):
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: Page = ""


class AuditAsked(Given):
    limit: Annotated[int, Meta(ge=1, le=MOST_AUDITED)] = 100
    cursor: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0


class AnalyticsAsked(Given):
    """The days from `first` to `last`, or the last `days` of them."""

    days: Annotated[int, Meta(ge=1, le=MOST_DAYS)] = 7
    first: Day | UnsetType = UNSET
    last: Day | UnsetType = UNSET
    queue: Text | UnsetType = UNSET


# Bodies


class NewJob(Given):
    """A job. Its payload is JSON, kept as it is written here, or bytes in base64."""

    queue: QueueName
    payload: Annotated[Raw, Meta(description="Any JSON.")] | UnsetType = UNSET
    payload_base64: Base64 | UnsetType = UNSET
    kind: Short = ""
    #: Made, if none is given. A job of that id that is not over is a conflict.
    id: Short = ""
    priority: Priority = 0
    #: When it is due; now, if neither is given.
    at: When | None = None
    delay: Annotated[float, Meta(ge=0, le=3_153_600_000, description="Seconds.")] = 0
    #: So often it is tried again after it failed.
    retries: Retries = 25
    lease_for: LeaseFor = 1800
    tags: Tags = []
    #: Ids of jobs that it waits for.
    waits_for: Ids = []


#: One job, or several: all of them are pushed, or none is.
NewJobs = NewJob | Annotated[list[NewJob], Meta(min_length=1, max_length=MOST_PUSHED)]


class ToQueue(Given):
    queue: QueueName


class ToPriority(Given):
    priority: Priority


class WithTags(Given):
    tags: SomeTags


class Undepend(Given):
    """It waits no longer for these; for nobody, if none is named."""

    waits_for: Ids = []


class Query(Given):
    """Jobs for which all of it holds."""

    id: Text | None = None
    queue: Text | None = None
    kind: Text | None = None
    state: State | None = None
    retrying: bool | None = None
    failing: bool | None = None
    protocol: Text | None = None
    tag: Text | None = None
    worker: Text | None = None
    group: Text | None = None
    fingerprint: Text | None = None
    error: Text | None = None
    tracked: bool | None = None
    text: Annotated[list[Name], Meta(max_length=20)] = []


class NewAction(Given):
    """What to do, and to which jobs: `jobs` by their ids, others by their `numbers`, those of a
    `query`, or those that `q` finds on the page Jobs. One of the four must be given.
    """

    action: Action
    jobs: Ids = []
    numbers: Annotated[list[Number], Meta(max_length=MOST_NAMED)] = []
    query: Query | None = None
    q: Annotated[str, Meta(max_length=4000)] = ""
    all: Annotated[
        bool, Meta(description="Every job is meant. Without it, an empty search is refused.")
    ] = False
    #: For move, priority, tag and untag, and undepend.
    queue: Short = ""
    priority: Priority = 0
    tags: Tags = []
    waits_for: Ids = []


class NewLease(Given):
    """Up to `limit` jobs of these queues, in their order; if there is none, wait for one."""

    queues: Annotated[list[QueueName], Meta(min_length=1, max_length=100)]
    #: Who will work on them.
    worker: Tag
    limit: Annotated[float, Meta(ge=1, le=MOST_LEASED, multiple_of=1)] = 1
    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT, description="Seconds.")] = 0
    #: What the job says, if it is not given.
    lease_for: LeaseFor | None = None


class Completed(Given):
    """The result is JSON, kept as it is written here, or bytes in base64."""

    result: Annotated[Raw, Meta(description="Any JSON.")] | UnsetType = UNSET
    result_base64: Base64 | UnsetType = UNSET


class Failed(Given):
    #: What kind of error: jobs that fail of the same one are shown together.
    group: Annotated[str, Meta(max_length=200)] = ""
    message: Annotated[str, Meta(max_length=10_000)] = ""
    backtrace: Annotated[list[Annotated[str, Meta(max_length=1000)]], Meta(max_length=50)] = []
    #: When to try again; when it is said by the policy, if it is not given.
    retry_at: When | None = None


class Renewed(Given):
    lease_for: LeaseFor | None = None


class QlessSetting(Given):
    """Null unsets it."""

    option: Annotated[str, Meta(min_length=1, max_length=MAX_OPTION_NAME)]
    value: Annotated[str, Meta(max_length=MAX_OPTION_VALUE)] | None


class FlushConfirmed(Given):
    """Everything is forgotten: all jobs, all queues."""

    confirm: Literal["flush"]
