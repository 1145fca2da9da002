"""Failure groups, recurring jobs, tracked jobs, tags and limits."""

from typing import Annotated

from .jobs import JobRecord
from .types import Cursor, Doc, Excerpt, Record, Time


class FailureGroup(Record):
    """Jobs that failed with the same error."""

    fingerprint: Annotated[str, Doc("Fingerprint", "Identifies the group.")]
    group: Annotated[str, Doc("Error", "Class or group of the error.")]
    message: Annotated[str, Doc("Message", "First 300 characters of the newest message.")]
    dead: Annotated[int, Doc("Dead", "Number of dead jobs.")]
    retrying: Annotated[int, Doc("Retrying", "Number of jobs that wait for a retry.")]
    newest_at: Annotated[Time, Doc("Newest", "Time of the newest failure.")]
    newest_jid: Annotated[str, Doc("Newest job", "ID of the newest job.", name="newest_id")]
    queues: Annotated[list[str], Doc("Queues", "Up to five queues of these jobs.")]
    newest_seq: Annotated[
        int, Doc("Newest number", "Number of the newest job.", name="newest_number")
    ]


class FailurePage(Record):
    """Failure groups, largest first."""

    groups: Annotated[list[FailureGroup], Doc("Failures", "Failure groups.", name="failures")]
    count: Annotated[int, Doc("Count", "Number of failure groups.")]
    jobs: Annotated[int, Doc("Jobs", "Number of failing jobs.")]


class RecurringRecord(Record):
    """A recurring job."""

    jid: Annotated[str, Doc("ID", "ID of the recurring job.", name="id")]
    kind: Annotated[str, Doc("Kind", "Kind of its jobs.")]
    queue: Annotated[str, Doc("Queue", "Queue of its jobs.")]
    interval: Annotated[float, Doc("Interval", "Seconds between two jobs.")]
    priority: Annotated[float, Doc("Priority", "Priority of its jobs.")]
    retries: Annotated[int, Doc("Retries", "Retries of its jobs.")]
    backlog: Annotated[float, Doc("Backlog", "Maximum number of missed jobs to create.")]
    tags: Annotated[list[str], Doc("Tags", "The first 50 tags of its jobs.")]
    next_at: Annotated[Time, Doc("Next", "Time of the next job.")]
    count: Annotated[int, Doc("Count", "Number of jobs created so far.")]
    limits: Annotated[
        list[str],
        Doc("Limits", "The first 100 limits of its jobs.", name="throttles", also="limits"),
    ]
    size: Annotated[int, Doc("Size", "Size of the payload in bytes.")]
    payload: Annotated[Excerpt, Doc("Payload", "Payload of its jobs; omitted above 65,536 bytes.")]


class RecurringPage(Record):
    """Recurring jobs by ID."""

    recurring: Annotated[list[RecurringRecord], Doc("Recurring", "Recurring jobs of this page.")]
    count: Annotated[int, Doc("Count", "Number of recurring jobs.")]
    next: Cursor


class TrackedJob(Record):
    """A tracked ID."""

    jid: Annotated[str, Doc("ID", "Tracked ID.", name="id")]
    since: Annotated[Time, Doc("Tracked since", "Start of the tracking.")]
    job: Annotated[JobRecord | None, Doc("Job", "The job; null if it no longer exists.")]


class TrackedPage(Record):
    """Tracked jobs by ID."""

    tracked: Annotated[list[TrackedJob], Doc("Tracked", "Tracked jobs of this page.")]
    count: Annotated[int, Doc("Count", "Number of tracked IDs.")]
    next: Cursor


class TagCount(Record):
    """A tag."""

    tag: Annotated[str, Doc("Tag", "The tag.")]
    count: Annotated[int, Doc("Jobs", "Number of jobs with this tag.")]


class TagPage(Record):
    """Tags, most used first."""

    tags: Annotated[list[TagCount], Doc("Tags", "The most used tags.")]
    count: Annotated[int, Doc("Count", "Number of tags.")]


class LimitRecord(Record):
    """A limit on concurrently leased jobs, which Qless calls a throttle."""

    name: Annotated[str, Doc("Name", "Name of the limit.")]
    maximum: Annotated[int, Doc("Maximum", "Maximum number of leased jobs; 0 for no limit.")]
    expires_at: Annotated[Time, Doc("Expires", "End of the limit.")]
    holders: Annotated[list[str], Doc("Holders", "IDs of the first 100 leased jobs.")]
    waiting: Annotated[list[str], Doc("Waiting", "IDs of the first 100 waiting jobs.")]


class LimitPage(Record):
    """The first 1,000 limits by name."""

    limits: Annotated[list[LimitRecord], Doc("Limits", "Limits.", name="throttles", also="limits")]
