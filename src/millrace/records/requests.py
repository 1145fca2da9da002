"""Requests over the admin socket."""

from typing import Literal

import msgspec

from .types import Action, State


class PageRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Some of what there is, by name: those behind `after`, at most so many."""

    after: str = ""
    most: int = 100


class ListQueues(msgspec.Struct, forbid_unknown_fields=True):
    """Queues by name. `text` is part of their names; `paused`: only those that are."""

    text: str = ""
    after: str = ""
    most: int = 100
    paused: bool = False


class GetQueue(msgspec.Struct, forbid_unknown_fields=True):
    """A queue and its statistics of a day (days since 1970; -1 is today)."""

    name: str
    day: int = -1


class JobFilter(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
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


class SearchJobs(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Jobs that are meant by `query`. `order`: "newest" by number, "due" the next first, "queue" as
    they will be leased, "ended" the last first; what cannot be had of a query is "newest".
    """

    query: JobFilter
    order: Literal["newest", "due", "queue", "ended"] = "newest"
    cursor: str = ""
    most: int = 50
    #: Look at no more jobs than this before answering.
    look: int = 20_000


class GetJob(msgspec.Struct, forbid_unknown_fields=True):
    """A job by its jid or number; of several of one jid the oldest, unless a `seq` is given."""

    id: str
    seq: int = 0
    #: From which byte of its payload on.
    start: int = 0


class ListWorkers(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Workers, those behind `after`; with a `protocol` only the one that has that `wid` there."""

    after: str = ""
    most: int = 100
    protocol: str = ""
    wid: str = ""


class ListAudit(msgspec.Struct, forbid_unknown_fields=True):
    """Those before a number, the newest first; 0 is from the newest on."""

    before: int = 0
    most: int = 100


class ActionRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
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
    query: JobFilter | None = None
    queue: str = ""
    priority: float = 0
    tags: list[str] = []
    blockers: list[str] = []
    by: str = ""
    #: Of the jobs that are named, those alone for which this holds; the others are refused.
    only: JobFilter | None = None


class QueueAction(msgspec.Struct, forbid_unknown_fields=True):
    """clear removes the ready jobs, remove also the queue; both tell how far they are, as `act`
    does with a query.
    """

    name: str
    action: Literal["pause", "resume", "clear", "remove"]
    by: str = ""


class WorkerAction(msgspec.Struct, forbid_unknown_fields=True):
    """Of Faktory; `wid` "all" is every one."""

    wid: str
    action: Literal["quiet", "terminate"]
    by: str = ""


class RecurringAction(msgspec.Struct, forbid_unknown_fields=True):
    jid: str
    action: Literal["cancel", "move", "priority", "tag", "untag"]
    queue: str = ""
    priority: float = 0
    tags: list[str] = []
    by: str = ""


class SetQlessOption(msgspec.Struct, forbid_unknown_fields=True):
    """One of Qless's settings; None unsets it."""

    option: str
    value: str | None
    by: str = ""


class RunPipeline(msgspec.Struct, forbid_unknown_fields=True):
    by: str = ""


class Flush(msgspec.Struct, forbid_unknown_fields=True):
    """Forget everything."""

    by: str = ""


class AuditNote(msgspec.Struct, forbid_unknown_fields=True):
    """Something that was done elsewhere and belongs into the audit log: a login, a refusal."""

    action: str
    target: str = ""
    by: str = ""


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


class LeaseJobs(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Up to `most` jobs of these queues, in their order; if there is none, wait so long for one."""

    queues: list[str]
    worker: str
    most: int = 1
    wait: int = 0
    #: 0: what the job says.
    lease_for: int = 0


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


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """One of these."""

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
    failures: PageRequest | None = None
    workers: ListWorkers | None = None
    recurring: PageRequest | None = None
    tracked: PageRequest | None = None
    tags: PageRequest | None = None
    throttles: bool = False
    server: bool = False
    audit: ListAudit | None = None
    metrics: PageRequest | None = None
    faktory: bool = False
    pipeline: bool = False
    act: ActionRequest | None = None
    act_on_queue: QueueAction | None = None
    act_on_worker: WorkerAction | None = None
    act_on_recurring: RecurringAction | None = None
    set_qless: SetQlessOption | None = None
    run_pipeline: RunPipeline | None = None
    flush: Flush | None = None
    note: AuditNote | None = None
    push: PushJobs | None = None
    lease: LeaseJobs | None = None
    end: EndLease | None = None
