r"""What is asked over the control socket, and how it is answered: the contract with the web room.

A request is an object with one member, the name of what is asked, and what it is asked with:

    C: {"queues": {"most": 50}}
    S: {"queues": [...], "more": ""}
    C: {"act": {"action": "retry", "jobs": ["a1"], "by": "admin"}}
    S: {"done": 1, "refused": []}
    C: {"queue": {"name": "nowhere"}}
    S: {"error": "there is no queue \"nowhere\"", "code": "not found"}

Times are microseconds since 1970, 0 where there is none; spans are microseconds. Bytes are base64.
What changes something says in `by` who wants it, is answered when it is durable, and is in the
audit log. Whatever may be long is bounded by `most`, and goes on from the `after` or `cursor` that
the answer before gave.
"""

from typing import Any, Final, Literal

import msgspec

from millrace.engine.stats import QueueDay
from millrace.engine.why import Blocker, Reason, Why

State = Literal["scheduled", "blocked", "ready", "leased", "done", "dead"]
Code = Literal[
    "bad request", "not found", "conflict", "refused", "unavailable", "too large", "stopped"
]

#: A note of this may come from anybody, as often as they like.
LOGIN_REFUSED: Final = "login refused"


class Error(msgspec.Struct):
    """What was asked cannot be had, and why."""

    error: str
    code: Code = "bad request"


# Looking


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """Some of what there is, by name: those behind `after`, at most so many."""

    after: str = ""
    most: int = 100


class AskedQueues(msgspec.Struct, forbid_unknown_fields=True):
    """Queues by name. `text` is part of their names; `paused`: only those that are."""

    text: str = ""
    after: str = ""
    most: int = 100
    paused: bool = False


class Spans(msgspec.Struct):
    """How long something took lately: the last five to ten minutes."""

    count: int
    p50: int
    p95: int
    p99: int


class QueueRow(msgspec.Struct):
    name: str
    paused: bool
    #: By state, in the order of engine.states.
    counts: list[int]
    #: When the job that waits longest became ready.
    oldest: int
    wait: Spans
    run: Spans
    #: How many of its jobs may be with workers at a time; 0 is without limit.
    limit: int
    #: Who waits for its jobs, and when somebody last asked.
    waiters: int
    asked: int
    #: Depth (ready and scheduled and blocked), every five seconds, the newest last.
    depths: list[int]


class Queues(msgspec.Struct):
    queues: list[QueueRow]
    #: All that match, and what to go on behind; empty at the end.
    count: int
    more: str


class AskedQueue(msgspec.Struct, forbid_unknown_fields=True):
    """A queue and its statistics of a day (days since 1970; -1 is today)."""

    name: str
    day: int = -1


class QueueDetail(msgspec.Struct):
    queue: QueueRow
    day: QueueDay
    #: The days of which there are statistics.
    days: list[int]
    #: What Qless counts apart.
    stalled: int
    recurring: int
    throttled: int


class Day(msgspec.Struct):
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


class ProtocolRow(msgspec.Struct):
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
    protocols: list[ProtocolRow]
    commit: Spans
    #: The newest last.
    days: list[Day]
    halted: str
    memory_mb: int
    started_at: int
    #: The number of the job that waits longest.
    oldest_seq: int = 0


class Query(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which jobs are meant: those for which all of it holds. None is any."""

    #: The jid; where it is only looked, and no job has that one, the number.
    id: str | None = None
    queue: str | None = None
    kind: str | None = None
    state: State | None = None
    #: Of the scheduled: those that have failed before, or those that have not.
    retrying: bool | None = None
    #: Dead, or scheduled for another try, as those of `failures` are; or neither.
    failing: bool | None = None
    #: The protocol that pushed it.
    protocol: str | None = None
    tag: str | None = None
    #: Whoever has it, or had it last.
    worker: str | None = None
    #: The failure's group as it is.
    group: str | None = None
    #: Dead of an error of that shape, or waiting for another try; see engine.events.fingerprint.
    fingerprint: str | None = None
    #: Text in the failure's group or message.
    error: str | None = None
    tracked: bool | None = None
    #: Each of these is in the payload, the id, the kind or the error; case does not matter.
    words: list[str] = []


class Search(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Jobs that are meant by `query`. `order`: "newest" by number, "due" the next first, "queue" as
    they will be leased, "ended" the last first; what cannot be had of a query is "newest".
    """

    query: Query
    order: Literal["newest", "due", "queue", "ended"] = "newest"
    cursor: str = ""
    most: int = 50
    #: Look at no more jobs than this before answering.
    look: int = 20_000


class JobRow(msgspec.Struct):
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


class Found(msgspec.Struct):
    jobs: list[JobRow]
    #: So many were looked at, of so many that there are to be looked at.
    looked: int
    of: int
    #: To go on with; empty if that was all.
    cursor: str


class AskedJob(msgspec.Struct, forbid_unknown_fields=True):
    """A job by its jid or number; of several of one jid the oldest, unless a `seq` is given."""

    id: str
    seq: int = 0
    #: From which byte of its payload on.
    start: int = 0


class JobDetail(msgspec.Struct):
    job: JobRow
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
    #: What it failed with last, up to 64 KiB of it.
    message: str = ""


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


class Failures(msgspec.Struct):
    """The largest first."""

    groups: list[FailureGroup]
    count: int
    jobs: int


class AskedWorkers(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Workers, those behind `after`; with a `protocol` only the one that has that `wid` there."""

    after: str = ""
    most: int = 100
    protocol: str = ""
    wid: str = ""


class Held(msgspec.Struct):
    """A job that a worker has."""

    jid: str
    seq: int
    queue: str
    kind: str
    leased_at: int
    deadline: int
    payload: bytes


class WorkerRow(msgspec.Struct):
    #: `protocol` and `wid` are how it is named.
    protocol: str
    wid: str
    hostname: str
    pid: int
    labels: list[str]
    rss_kb: int
    state: str
    started_at: int
    beat_at: int
    connections: int
    held: list[Held]
    #: How many it has, and how many of them are past their time.
    count: int
    stalled: int


class Workers(msgspec.Struct):
    workers: list[WorkerRow]
    count: int
    more: str


class RecurringRow(msgspec.Struct):
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


class RecurringRows(msgspec.Struct):
    recurring: list[RecurringRow]
    count: int
    more: str


class TrackedRow(msgspec.Struct):
    jid: str
    since: int
    #: None if it is gone.
    job: JobRow | None


class TrackedRows(msgspec.Struct):
    tracked: list[TrackedRow]
    count: int
    more: str


class TagRow(msgspec.Struct):
    tag: str
    count: int


class TagRows(msgspec.Struct):
    """The most used first."""

    tags: list[TagRow]
    count: int


class ThrottleRow(msgspec.Struct):
    name: str
    maximum: int
    expires: int
    holders: list[str]
    waiting: list[str]


class ThrottleRows(msgspec.Struct):
    throttles: list[ThrottleRow]


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


class PipelineStatus(msgspec.Struct):
    #: Can it be run here: is there a store, a lake?
    able: bool
    running: bool
    began_at: int
    ended_at: int
    #: Of the last run: its exit code, -1 if there was none, and its last words.
    code: int
    lines: list[str]
    every: float


class ServerDetail(msgspec.Struct):
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
    protocols: list[ProtocolRow]
    pipeline: PipelineStatus


class Audited(msgspec.Struct):
    """One changing action."""

    number: int
    at: int
    by: str
    action: str
    #: What it was done to, in words.
    target: str
    #: How many jobs, where it is about jobs.
    count: int


class AskedAudit(msgspec.Struct, forbid_unknown_fields=True):
    """Those before a number, the newest first; 0 is from the newest on."""

    before: int = 0
    most: int = 100


class Audit(msgspec.Struct):
    audit: list[Audited]
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
    protocols: list[ProtocolRow]
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


# Changing

Action = Literal[
    "retry",
    "kill",
    "cancel",
    "delete",
    "move",
    "priority",
    "tag",
    "untag",
    "track",
    "untrack",
    "undepend",
    "timeout",
]


class Act(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Do something to jobs: to those named, or to all that a query means.

    retry: dead or scheduled ones are ready now. kill: into the dead set. cancel: removed, unless a
    worker has it. delete: removed, whatever it is doing. move: to `queue`. priority: to `priority`.
    tag, untag: `tags`. track, untrack. undepend: it waits no longer for `blockers`, or for nobody.
    timeout: its worker loses it.
    """

    action: Action
    #: jids; of several jobs of one jid the oldest is meant.
    jobs: list[str] = []
    #: Numbers only: they mean one job each, whatever jids there are.
    seqs: list[int] = []
    query: Query | None = None
    queue: str = ""
    priority: float = 0
    tags: list[str] = []
    blockers: list[str] = []
    by: str = ""
    #: Of the jobs that are named, those alone for which this holds; the others are refused.
    only: Query | None = None


class Refusal(msgspec.Struct):
    job: str
    reason: str


class Acted(msgspec.Struct):
    """How far it is. With a query such a line comes now and then, the last one with `over`."""

    done: int
    #: The first hundred.
    refused: list[Refusal]
    refused_count: int = 0
    looked: int = 0
    of: int = 0
    over: bool = True


class ActOnQueue(msgspec.Struct, forbid_unknown_fields=True):
    """clear removes the ready jobs, remove also the queue; both tell how far they are, as `act`
    does with a query.
    """

    name: str
    action: Literal["pause", "resume", "clear", "remove"]
    by: str = ""


class ActOnWorker(msgspec.Struct, forbid_unknown_fields=True):
    """Of Faktory; `wid` "all" is every one."""

    wid: str
    action: Literal["quiet", "terminate"]
    by: str = ""


class ActOnRecurring(msgspec.Struct, forbid_unknown_fields=True):
    jid: str
    action: Literal["cancel", "move", "priority", "tag", "untag"]
    queue: str = ""
    priority: float = 0
    tags: list[str] = []
    by: str = ""


class SetQless(msgspec.Struct, forbid_unknown_fields=True):
    """One of Qless's settings; None unsets it."""

    option: str
    value: str | None
    by: str = ""


class RunPipeline(msgspec.Struct, forbid_unknown_fields=True):
    by: str = ""


class Flush(msgspec.Struct, forbid_unknown_fields=True):
    """Forget everything."""

    by: str = ""


class Note(msgspec.Struct, forbid_unknown_fields=True):
    """Something that was done elsewhere and belongs into the audit log: a login, a refusal."""

    action: str
    target: str = ""
    by: str = ""


class Ok(msgspec.Struct):
    ok: bool = True


# Working, for scripts


class NewJob(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    queue: str
    payload: bytes
    kind: str = ""
    #: Made if it is empty. A job of that jid that is not over is a conflict.
    jid: str = ""
    priority: float = 0
    #: When it is due; 0 is now.
    at: int = 0
    retries: int = 25
    #: How long a lease lasts if whoever leases does not say.
    lease_for: int = 1_800_000_000
    tags: list[str] = []
    #: jids of jobs that it waits for.
    blockers: list[str] = []


class PushJobs(msgspec.Struct, forbid_unknown_fields=True):
    """All of them, or none."""

    jobs: list[NewJob]
    by: str = ""


class Pushed(msgspec.Struct):
    jobs: list[JobRow]


class LeaseJobs(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Up to `most` jobs of these queues, in their order; if there is none, wait so long for one."""

    queues: list[str]
    worker: str
    most: int = 1
    wait: int = 0
    #: 0: what the job says.
    lease_for: int = 0


class Leased(msgspec.Struct):
    job: JobRow
    #: The right to this attempt.
    token: str
    deadline: int
    payload: bytes


class LeasedJobs(msgspec.Struct):
    jobs: list[Leased]


class EndLease(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """End an attempt, or prolong it. A token that is not of the current attempt is a conflict."""

    token: str
    action: Literal["complete", "fail", "release", "renew"]
    result: bytes | None = None
    group: str = ""
    message: str = ""
    backtrace: list[str] = []
    #: When to try again; 0 as the policy says.
    again_at: int = 0
    lease_for: int = 0
    by: str = ""


class Ended(msgspec.Struct):
    #: None if nothing is kept of it.
    job: JobRow | None


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """One of these."""

    why: str | None = None
    sizes: bool = False
    journal: bool = False
    ship: bool = False
    counters: bool = False
    overview: bool = False
    health: bool = False
    queues: AskedQueues | None = None
    queue: AskedQueue | None = None
    search: Search | None = None
    job: AskedJob | None = None
    failures: Asked | None = None
    workers: AskedWorkers | None = None
    recurring: Asked | None = None
    tracked: Asked | None = None
    tags: Asked | None = None
    throttles: bool = False
    server: bool = False
    audit: AskedAudit | None = None
    metrics: Asked | None = None
    faktory: bool = False
    pipeline: bool = False
    act: Act | None = None
    act_on_queue: ActOnQueue | None = None
    act_on_worker: ActOnWorker | None = None
    act_on_recurring: ActOnRecurring | None = None
    set_qless: SetQless | None = None
    run_pipeline: RunPipeline | None = None
    flush: Flush | None = None
    note: Note | None = None
    push: PushJobs | None = None
    lease: LeaseJobs | None = None
    end: EndLease | None = None


class Answer(msgspec.Struct):
    """To `why`."""

    jobs: list[Why]
    now: int
    #: Did a job of that number ever exist?
    known: bool
    #: So many others have that id.
    more: int = 0


class Journal(msgspec.Struct):
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
