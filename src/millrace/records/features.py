"""Failure groups, recurring jobs, tracked jobs, tags and limits."""

import msgspec

from .jobs import JobRecord


class FailureGroup(msgspec.Struct):
    fingerprint: str
    group: str
    #: Of the newest of them.
    message: str
    #: Jobs that are dead of it, and that wait for another try.
    dead: int
    retrying: int
    newest_at: int
    newest_jid: str
    newest_seq: int
    queues: list[str]


class FailurePage(msgspec.Struct):
    """The largest first."""

    groups: list[FailureGroup]
    count: int
    jobs: int


class RecurringRecord(msgspec.Struct):
    jid: str
    kind: str
    queue: str
    #: Seconds.
    interval: float
    priority: float
    retries: int
    backlog: float
    tags: list[str]
    next: int
    count: int
    payload: bytes
    throttles: list[str]
    #: Bytes of the complete payload.
    size: int = 0


class RecurringPage(msgspec.Struct):
    recurring: list[RecurringRecord]
    count: int
    more: str


class TrackedJob(msgspec.Struct):
    jid: str
    since: int
    #: None if it is gone.
    job: JobRecord | None


class TrackedPage(msgspec.Struct):
    tracked: list[TrackedJob]
    count: int
    more: str


class TagCount(msgspec.Struct):
    tag: str
    count: int


class TagPage(msgspec.Struct):
    """The most used first."""

    tags: list[TagCount]
    count: int


class LimitRecord(msgspec.Struct):
    name: str
    maximum: int
    expires: int
    holders: list[str]
    waiting: list[str]


class LimitPage(msgspec.Struct):
    throttles: list[LimitRecord]
