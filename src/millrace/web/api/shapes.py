"""What the API answers with: the server's answers, made for people.

Times are RFC 3339 in UTC, null where there is none; spans are seconds. A payload that is JSON is
given as it came, every digit of it; one that is not, in base64.
"""

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from millrace import records as messages
from millrace.engine.why import Blocker
from millrace.protocols.times import rfc3339
from millrace.records import State

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
STATES: Final[tuple[State, ...]] = ("scheduled", "blocked", "ready", "leased", "done", "dead")
#: Years 1 to 9999 can be written.
_FIRST: Final = -62_135_596_800 * SECOND
_LAST: Final = 253_402_300_799 * SECOND

Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Date = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
Base64 = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]
Cursor = Annotated[str, Meta(description="Where to go on, as `cursor`; null at the end.")]
Any_ = Annotated[Raw, Meta(description="Any JSON, as it came.")]
T = TypeVar("T")


def moment(at: int) -> str | None:
    return rfc3339(min(max(at, _FIRST), _LAST)) if at else None


def seconds(span: float) -> float:
    return span / SECOND


def date(day: int) -> str:
    return rfc3339(min(max(day * DAY, _FIRST), _LAST))[:10]


def json_of(data: bytes) -> Raw | None:
    """The same, if it is JSON."""
    try:
        data.decode()
        msgspec.json.decode(data, type=Raw)
    except (ValueError, RecursionError):  # DecodeError is a ValueError
        return None
    return Raw(data)


class Problem(msgspec.Struct):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str


class Jobs(msgspec.Struct):
    """How many jobs there are, by state."""

    scheduled: int
    blocked: int
    ready: int
    leased: int
    done: int
    dead: int

    @classmethod
    def of(cls, counts: list[int]) -> "Jobs":
        return cls(*counts[: len(STATES)])


class Spans(msgspec.Struct):
    """How long something took in the last minutes, in seconds."""

    count: int
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, spans: messages.LatencySummary) -> "Spans":
        return cls(spans.count, seconds(spans.p50), seconds(spans.p95), seconds(spans.p99))


# Overview


class Sample(msgspec.Struct):
    """Counters since the start at one moment, and the jobs that waited and ran."""

    at: Moment | None
    pushed: int
    completed: int
    failed: int
    backlog: int
    leased: int


class ProtocolInfo(msgspec.Struct):
    name: str
    port: int
    connections: int
    waiters: int
    commands: int
    errors: int

    @classmethod
    def of(cls, row: messages.PortStatus) -> "ProtocolInfo":
        return cls(row.name, row.port, row.connections, row.waiters, row.commands, row.errors)


class Day(msgspec.Struct):
    date: Date
    processed: int
    failures: int


class OldestJob(msgspec.Struct):
    """The job that waits longest."""

    id: str
    queue: str
    ready_at: Moment | None
    number: int


class Overview(msgspec.Struct):
    now: Moment | None
    started_at: Moment | None
    jobs: Jobs
    retrying: int
    processed: int
    failures: int
    queues: int
    paused_queues: int
    workers: int
    oldest: OldestJob | None
    protocols: list[ProtocolInfo]
    #: How long it takes until a change is durable.
    commit: Spans
    days: list[Day]
    samples: list[Sample]
    #: Why nothing can be changed at the moment; empty if all is well.
    halted: str
    memory_mb: int

    @classmethod
    def of(cls, told: messages.Overview) -> "Overview":
        oldest = OldestJob(told.oldest_jid, told.oldest_queue, moment(told.oldest), told.oldest_seq)
        return cls(
            now=moment(told.now),
            started_at=moment(told.started_at),
            jobs=Jobs.of(told.counts),
            retrying=told.retrying,
            processed=told.processed,
            failures=told.failures,
            queues=told.queues,
            paused_queues=told.paused,
            workers=told.workers,
            oldest=oldest if told.oldest else None,
            protocols=[ProtocolInfo.of(row) for row in told.protocols],
            commit=Spans.of(told.commit),
            days=[Day(date(day.day), day.processed, day.failures) for day in told.days],
            samples=[
                Sample(moment(s.at), s.pushed, s.completed, s.failed, s.backlog, s.leased)
                for s in told.samples
            ],
            halted=told.halted,
            memory_mb=told.memory_mb,
        )


# Queues


class Queue(msgspec.Struct):
    name: str
    paused: bool
    jobs: Jobs
    #: When the job that waits longest became ready.
    oldest_ready_at: Moment | None
    #: From ready to leased, and from leased to the attempt's end.
    wait: Spans
    run: Spans
    #: How many of its jobs may be with workers at a time; null is without limit.
    limit: int | None
    #: Who waits for its jobs, and when somebody last asked.
    waiters: int
    asked_at: Moment | None
    #: How many jobs waited, every five seconds, the newest last.
    depths: list[int]

    @classmethod
    def of(cls, row: messages.QueueRecord) -> "Queue":
        return cls(
            name=row.name,
            paused=row.paused,
            jobs=Jobs.of(row.counts),
            oldest_ready_at=moment(row.oldest),
            wait=Spans.of(row.wait),
            run=Spans.of(row.run),
            limit=row.limit or None,
            waiters=row.waiters,
            asked_at=moment(row.asked),
            depths=row.depths,
        )


class QueueList(msgspec.Struct):
    queues: list[Queue]
    count: int
    next: Cursor | None


class Spread(msgspec.Struct):
    """How long something took on one day, in seconds, and how often it took how long: 60 numbers
    by the second, 60 by the minute, 24 by the hour and the rest by the day, as Qless counts.
    """

    count: int
    mean: float
    std: float
    histogram: list[int]


class QueueDay(msgspec.Struct):
    """A day's statistics, as Qless keeps them."""

    date: Date
    wait: Spread
    run: Spread
    failures: int
    failed: int
    retries: int


class QueueInfo(msgspec.Struct):
    queue: Queue
    statistics: QueueDay
    #: The days of which there are statistics.
    dates: list[Date]
    stalled: int
    recurring: int
    throttled: int


# Jobs


class Failure(msgspec.Struct):
    group: str
    message: str
    at: Moment | None


class Job(msgspec.Struct, omit_defaults=True):
    #: The id that the client gave it, or that was made for it, and its number, which no other has.
    id: str
    number: int
    queue: str
    kind: str
    state: State
    #: The one it was pushed with.
    protocol: str
    priority: float | None
    created_at: Moment | None
    due_at: Moment | None
    ready_at: Moment | None
    leased_at: Moment | None
    deadline: Moment | None
    ended_at: Moment | None
    attempt: int
    failures: int
    retries: int
    worker: str
    worker_protocol: str
    failure: Failure | None
    tags: list[str]
    tracked: bool
    #: Of its payload, in bytes. In lists, payloads of more than 200 bytes are left out.
    size: int
    #: A name, the message or the list of tags is incomplete here.
    truncated: bool
    payload: Any_ | UnsetType = UNSET
    payload_base64: Base64 | UnsetType = UNSET

    @classmethod
    def of(cls, row: messages.JobRecord, payload: bytes | None = None) -> "Job":
        failed = row.group or row.message or row.failed_at
        job = cls(
            id=row.jid,
            number=row.seq,
            queue=row.queue,
            kind=row.kind,
            state=row.state,
            protocol=row.protocol,
            priority=row.priority,
            created_at=moment(row.created),
            due_at=moment(row.due),
            ready_at=moment(row.ready_at),
            leased_at=moment(row.leased_at),
            deadline=moment(row.deadline),
            ended_at=moment(row.ended_at),
            attempt=row.attempt,
            failures=row.failures,
            retries=row.retries,
            worker=row.worker,
            worker_protocol=row.worker_protocol,
            failure=Failure(row.group, row.message, moment(row.failed_at)) if failed else None,
            tags=row.tags,
            tracked=row.tracked,
            size=row.size,
            truncated=row.truncated,
        )
        data = row.payload if payload is None else payload
        if len(data) == row.size:
            job.payload, job.payload_base64 = either(data)
        return job


def either(data: bytes) -> tuple[Raw | UnsetType, str | UnsetType]:
    """As JSON, or in base64."""
    found = json_of(data)
    return (UNSET, base64(data)) if found is None else (found, UNSET)


def base64(data: bytes) -> str:
    text: str = msgspec.to_builtins(data)
    return text


class JobList(msgspec.Struct):
    jobs: list[Job]
    #: So many were looked at since the search began, with the pages before this one, of so many
    #: that there are to be looked at.
    looked: int
    of: int
    next: Cursor | None


class Reason(msgspec.Struct):
    """Why a job is not running: in a word, and in words."""

    code: str
    text: str
    since: Moment | None
    until: Moment | None


class Relatives(msgspec.Struct):
    """Other jobs: the first of them, and how many there are besides."""

    jobs: list[Blocker]
    more: int


class JobInfo(msgspec.Struct, omit_defaults=True):
    job: Job
    backtrace: list[str]
    first_failed_at: Moment | None
    waits_for: Relatives
    waited_for_by: Relatives
    lease_seconds: float
    expires_at: Moment | None
    most_attempts: int
    dead_queue: str
    #: What its protocol keeps with it.
    own: dict[str, Any]
    #: Qless's own history.
    history: list[dict[str, Any]]
    reasons: list[Reason]
    #: So many other jobs have the same id.
    twins: int
    backtrace_truncated: bool
    #: Bytes of the result; null without one. A result of more than 1 MiB is not complete here.
    result_size: int | None
    result_truncated: bool
    result: Any_ | UnsetType = UNSET
    result_base64: Base64 | UnsetType = UNSET

    @classmethod
    def of(cls, told: messages.JobDetail) -> "JobInfo":
        info = cls(
            job=Job.of(told.job, told.payload),
            backtrace=told.backtrace,
            first_failed_at=moment(told.first_failed_at),
            waits_for=Relatives(told.blockers, told.blockers_more),
            waited_for_by=Relatives(told.dependents, told.dependents_more),
            lease_seconds=seconds(told.lease_for),
            expires_at=moment(told.expires),
            most_attempts=told.most_attempts,
            dead_queue=told.dead_queue,
            own=told.own,
            history=[{"at": at, "what": what, **(more or {})} for at, what, more in told.history],
            reasons=[
                Reason(reason.code, text, moment(reason.since), moment(reason.until))
                for reason, text in zip(told.reasons, told.why, strict=False)
            ],
            twins=told.twins,
            backtrace_truncated=told.backtrace_truncated,
            result_size=None if told.result is None else told.result_size,
            result_truncated=told.result is not None and len(told.result) < told.result_size,
        )
        if told.result is not None:
            info.result, info.result_base64 = either(told.result)
        return info


class Event(msgspec.Struct):
    """What happened, and how the job was afterwards; null where there is nothing to say."""

    event: int
    at: Moment | None
    type: str
    id: str
    number: int
    queue: str
    state: str
    attempt: int
    protocol: str | None
    worker: str | None
    wait_seconds: float | None
    run_seconds: float | None
    due_at: Moment | None
    group: str | None
    message: str | None


class EventList(msgspec.Struct):
    """The oldest first."""

    events: list[Event]
    #: Was everything looked at?
    whole: bool
    #: The journal, or what the job itself remembers.
    source: str


class PushedJobs(msgspec.Struct):
    jobs: list[Job]


class Done(msgspec.Struct):
    """So many jobs were changed, and those were not."""

    done: int


# Long actions


class NotDone(msgspec.Struct):
    id: str
    reason: str


class Action(msgspec.Struct):
    """Something that is being done to many jobs, and how far it is."""

    number: int
    title: str
    by: str
    state: Literal["running", "done", "stopped", "failed"]
    began_at: Moment | None
    ended_at: Moment | None
    done: int
    #: How many could not be changed, and the first of them.
    refused: int
    refusals: list[NotDone]
    looked: int
    of: int
    #: Why it failed.
    error: str


class ActionList(msgspec.Struct):
    """The newest first."""

    actions: list[Action]


# Failures


class FailureGroup(msgspec.Struct):
    """Jobs that failed of the same error."""

    fingerprint: str
    group: str
    message: str
    dead: int
    retrying: int
    newest_at: Moment | None
    newest_id: str
    queues: list[str]
    newest_number: int

    @classmethod
    def of(cls, group: messages.FailureGroup) -> "FailureGroup":
        return cls(
            group.fingerprint,
            group.group,
            group.message,
            group.dead,
            group.retrying,
            moment(group.newest_at),
            group.newest_jid,
            group.queues,
            group.newest_seq,
        )


class FailureList(msgspec.Struct):
    """The largest first, and how many there are in all."""

    failures: list[FailureGroup]
    count: int
    jobs: int


# Workers


class HeldJob(msgspec.Struct):
    id: str
    number: int
    queue: str
    kind: str
    leased_at: Moment | None
    deadline: Moment | None


class Worker(msgspec.Struct):
    protocol: str
    id: str
    hostname: str
    pid: int
    labels: list[str]
    rss_kb: int
    state: str
    started_at: Moment | None
    beat_at: Moment | None
    connections: int
    #: How many jobs it has, how many of them are past their time, and the first of them.
    count: int
    stalled: int
    jobs: list[HeldJob]

    @classmethod
    def of(cls, row: messages.WorkerRecord) -> "Worker":
        return cls(
            protocol=row.protocol,
            id=row.wid,
            hostname=row.hostname,
            pid=row.pid,
            labels=row.labels,
            rss_kb=row.rss_kb,
            state=row.state,
            started_at=moment(row.started_at),
            beat_at=moment(row.beat_at),
            connections=row.connections,
            count=row.count,
            stalled=row.stalled,
            jobs=[
                HeldJob(h.jid, h.seq, h.queue, h.kind, moment(h.leased_at), moment(h.deadline))
                for h in row.held
            ],
        )


class WorkerList(msgspec.Struct):
    workers: list[Worker]
    count: int
    next: Cursor | None


# What Qless keeps


class Recurring(msgspec.Struct, omit_defaults=True):
    id: str
    kind: str
    queue: str
    #: Seconds.
    interval: float
    priority: float | None
    retries: int
    backlog: float
    tags: list[str]
    next_at: Moment | None
    count: int
    throttles: list[str]
    #: Of its payload, in bytes. A payload of more than 65,536 bytes is left out.
    size: int
    payload: Any_ | UnsetType = UNSET
    payload_base64: Base64 | UnsetType = UNSET

    @classmethod
    def of(cls, row: messages.RecurringRecord) -> "Recurring":
        found = cls(
            id=row.jid,
            kind=row.kind,
            queue=row.queue,
            interval=row.interval,
            priority=row.priority,
            retries=row.retries,
            backlog=row.backlog,
            tags=row.tags,
            next_at=moment(row.next),
            count=row.count,
            throttles=row.throttles,
            size=row.size,
        )
        if len(row.payload) == row.size:
            found.payload, found.payload_base64 = either(row.payload)
        return found


class RecurringList(msgspec.Struct):
    recurring: list[Recurring]
    count: int
    next: Cursor | None


class Tracked(msgspec.Struct):
    id: str
    since: Moment | None
    #: Null if it is gone.
    job: Job | None


class TrackedList(msgspec.Struct):
    tracked: list[Tracked]
    count: int
    next: Cursor | None


class Tag(msgspec.Struct):
    tag: str
    count: int


class TagList(msgspec.Struct):
    """The most used first, and how many there are in all."""

    tags: list[Tag]
    count: int


class Throttle(msgspec.Struct):
    name: str
    maximum: int
    expires_at: Moment | None
    holders: list[str]
    waiting: list[str]


class ThrottleList(msgspec.Struct):
    """By name, the first 1,000; of those who hold one or wait for it, the first 100."""

    throttles: list[Throttle]


# The server


class Pipeline(msgspec.Struct):
    #: Can it be run here: is there a store, a lake?
    able: bool
    running: bool
    began_at: Moment | None
    ended_at: Moment | None
    #: Of the last run: its exit code, null if there was none, and its last words.
    code: int | None
    lines: list[str]
    every_seconds: float

    @classmethod
    def of(cls, status: messages.PipelineRun) -> "Pipeline":
        return cls(
            status.able,
            status.running,
            moment(status.began_at),
            moment(status.ended_at),
            None if status.code < 0 else status.code,
            status.lines,
            status.every,
        )


class Shipping(msgspec.Struct):
    """How far the journal is in the lake, and how far behind."""

    server: str
    lake: str
    next_event: int
    next_shipped: int
    waiting_events: int
    waiting_bytes: int
    behind_seconds: float
    dropped: int
    files: int
    #: Why shipping fails at the moment, or does not take place.
    failing: str

    @classmethod
    def of(cls, told: messages.ShippingStatus) -> "Shipping":
        return cls(
            told.server,
            told.lake,
            told.next_event,
            told.next_shipped,
            told.events,
            told.bytes,
            told.seconds,
            told.dropped,
            told.files,
            told.failing,
        )


class Server(msgspec.Struct):
    version: str
    pid: int
    host: str
    started_at: Moment | None
    now: Moment | None
    memory_mb: int
    durability: str
    halted: str
    tls: bool
    sizes: dict[str, int]
    store_bytes: int
    disk_free: int
    disk_size: int
    protocols: list[ProtocolInfo]
    #: Null where nothing is kept.
    shipping: Shipping | None
    pipeline: Pipeline


class Setting(msgspec.Struct):
    key: str
    #: As TOML; secrets are hidden.
    value: str
    source: str
    about: str
    reloadable: bool


class Configuration(msgspec.Struct):
    data: str
    lake: str
    settings: list[Setting]
    #: Qless's own.
    qless: dict[str, Any]


class Audited(msgspec.Struct):
    number: int
    at: Moment | None
    by: str
    action: str
    target: str
    count: int


class AuditList(msgspec.Struct):
    """The newest first."""

    audit: list[Audited]
    next: Cursor | None


class Ok(msgspec.Struct):
    ok: bool = True


# Leases


class Lease(msgspec.Struct):
    #: The right to this attempt.
    token: str
    deadline: Moment | None
    job: Job


class LeaseList(msgspec.Struct):
    leases: list[Lease]


class LeaseEnd(msgspec.Struct):
    #: Null if nothing is kept of it.
    job: Job | None
