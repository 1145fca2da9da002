"""Jobs, and the results of requests about jobs."""

from typing import Any

import msgspec

from millrace.engine.why import Blocker, Reason, Why

from .types import State


class JobRecord(msgspec.Struct):
    """In lists names end after 1,000 characters, and tags after 50; `seq` says which job it is."""

    seq: int
    jid: str
    queue: str
    kind: str
    state: State
    protocol: str
    priority: float
    created: int
    due: int
    ready_at: int
    leased_at: int
    deadline: int
    ended_at: int
    attempt: int
    failures: int
    retries: int
    worker: str
    worker_protocol: str
    group: str
    message: str
    failed_at: int
    tags: list[str]
    tracked: bool
    #: The first 200 bytes.
    payload: bytes
    size: int
    #: What a wrapper of Rails really runs; else empty.
    called: str = ""
    #: A name, the message or the list of tags is incomplete here.
    truncated: bool = False


class JobPage(msgspec.Struct):
    jobs: list[JobRecord]
    #: So many were looked at, of so many that there are to be looked at.
    looked: int
    of: int
    #: To go on with; empty if that was all.
    cursor: str


class JobDetail(msgspec.Struct):
    job: JobRecord
    #: Up to a mebibyte of it.
    payload: bytes
    result: bytes | None
    backtrace: list[str]
    first_failed_at: int
    blockers: list[Blocker]
    blockers_more: int
    dependents: list[Blocker]
    dependents_more: int
    lease_for: int
    expires: int
    most_attempts: int
    dead_queue: str
    load: str
    #: What its protocol keeps with it, as JSON: Faktory's `custom`, Qless's throttles.
    own: dict[str, Any]
    #: Qless's own history: (seconds, what, more).
    history: list[tuple[float, str, dict[str, Any] | None]]
    reasons: list[Reason]
    #: The reasons in words.
    why: list[str]
    #: So many others have the jid.
    twins: int
    #: Bytes of the complete result.
    result_size: int = 0
    backtrace_truncated: bool = False


class SkippedJob(msgspec.Struct):
    job: str
    reason: str


class BulkProgress(msgspec.Struct):
    """How far it is. With a query such a line comes now and then, the last one with `over`."""

    done: int
    #: The first hundred.
    refused: list[SkippedJob]
    refused_count: int = 0
    looked: int = 0
    of: int = 0
    over: bool = True


class PushedJobs(msgspec.Struct):
    jobs: list[JobRecord]


class LeasedJob(msgspec.Struct):
    job: JobRecord
    #: The right to this attempt.
    token: str
    deadline: int
    payload: bytes


class LeasedJobs(msgspec.Struct):
    jobs: list[LeasedJob]


class EndedLease(msgspec.Struct):
    #: None if nothing is kept of it.
    job: JobRecord | None


class Explanation(msgspec.Struct):
    """To `why`."""

    jobs: list[Why]
    now: int
    #: Did a job of that number ever exist?
    known: bool
    #: So many others have that id.
    more: int = 0
