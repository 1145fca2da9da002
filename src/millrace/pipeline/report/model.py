"""What a report says. This is also its JSON: docs/how-to/report.md tells of every name.

Times are UTC, spans are seconds. A list named like a count has one number for each of `timeline.at`
(or of the `at` beside it); lists of queues, kinds, groups and workers begin with what matters most
and are cut, with the number of those left out in `more`.
"""

from datetime import date, datetime
from typing import Final, Literal

import msgspec

VERSION: Final = 1
Verdict = Literal["good", "bad", "unknown"]


class Range(msgspec.Struct, kw_only=True, frozen=True):
    """What was asked for."""

    first: date
    last: date
    #: Only this queue; null: all.
    queue: str | None


class Coverage(msgspec.Struct, kw_only=True, frozen=True):
    """What the lake has."""

    first: date | None
    last: date | None
    days: int
    servers: list[str]
    #: Events taken in, over all days.
    events: int
    #: When the pipeline last ran; null: not known.
    ran_at: datetime | None
    #: Events that were shipped, and are not in the tables yet.
    behind: int


class Check(msgspec.Struct, kw_only=True, frozen=True):
    """What a check of the data found, and when."""

    name: str
    verdict: Verdict
    detail: str
    at: datetime | None


class Spread(msgspec.Struct, kw_only=True, frozen=True):
    """How long things took. All are null if there were none."""

    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


class Headline(msgspec.Struct, kw_only=True, frozen=True):
    pushed: int
    started: int
    completed: int
    #: Attempts that failed or expired, and jobs that died of it.
    failures: int
    died: int
    #: Jobs that are ready, scheduled or blocked, at the end of the range.
    backlog: int
    #: The most of `completed` in a minute, and which minute that was.
    peak_completed: int
    peak_at: datetime | None
    workers: int
    wait: Spread
    run: Spread


class Line(msgspec.Struct, kw_only=True, frozen=True):
    """A queue's backlog."""

    queue: str
    backlog: list[int]


class Timeline(msgspec.Struct, kw_only=True, frozen=True):
    """What happened in each `step` seconds from each time of `at`; depths are those at its end."""

    step: int
    at: list[datetime]
    pushed: list[int]
    started: list[int]
    completed: list[int]
    failures: list[int]
    died: list[int]
    backlog: list[int]
    #: The queues with the largest backlogs, and the rest of it.
    queues: list[Line]
    others: list[int]


class Day(msgspec.Struct, kw_only=True, frozen=True):
    day: date
    pushed: int
    started: int
    completed: int
    failures: int
    died: int
    wait: Spread
    run: Spread


class Queue(msgspec.Struct, kw_only=True, frozen=True):
    queue: str
    pushed: int
    started: int
    completed: int
    failures: int
    died: int
    backlog: int
    wait: Spread
    run: Spread


class Queues(msgspec.Struct, kw_only=True, frozen=True):
    rows: list[Queue]
    more: int


class Heat(msgspec.Struct, kw_only=True, frozen=True):
    """How many took how long, and when: `counts[i][j]` are of `at[j]` and took `edges[i]` seconds
    or longer, but not `edges[i + 1]` if there is one.
    """

    edges: list[float]
    counts: list[list[int]]


class Moments(msgspec.Struct, kw_only=True, frozen=True):
    """Percentiles for each of `at`; null where nothing happened."""

    n: list[int]
    p50: list[float | None]
    p90: list[float | None]
    p95: list[float | None]
    p99: list[float | None]
    heat: Heat


class Latency(msgspec.Struct, kw_only=True, frozen=True):
    step: int
    at: list[datetime]
    #: What a time of `at` is of: when the lease began, or (where `step` is a day) the event's day.
    by: Literal["lease", "event"]
    wait: Moments
    run: Moments


class Kind(msgspec.Struct, kw_only=True, frozen=True):
    kind: str
    wait: Spread
    run: Spread
    #: All its runs together.
    run_total: float


class Kinds(msgspec.Struct, kw_only=True, frozen=True):
    """By the 95th percentile of their runs, the slowest first."""

    rows: list[Kind]
    more: int


class Seen(msgspec.Struct, kw_only=True, frozen=True):
    """A group on a day."""

    day: date
    n: int
    first: datetime
    last: datetime


class Group(msgspec.Struct, kw_only=True, frozen=True):
    fingerprint: str
    error_group: str | None
    queues: list[str]
    kinds: list[str]
    n: int
    #: Jobs that failed so, counted anew each day and in each queue, and those that died of it.
    jobs: int
    died: int
    first: datetime
    last: datetime
    sample_jid: str
    sample_message: str
    days: list[Seen]


class Failures(msgspec.Struct, kw_only=True, frozen=True):
    rows: list[Group]
    more: int
    #: Failures in the groups that are left out.
    more_n: int


class Worker(msgspec.Struct, kw_only=True, frozen=True):
    server: str
    #: Empty: the protocol names no workers.
    worker: str
    protocol: str
    attempts: int
    completed: int
    failures: int
    #: How long it held jobs, and how many at once on average, over the hours in which it did.
    busy: float
    utilisation: float
    #: The same for each of `at`, over the whole step.
    held: list[float]


class Workers(msgspec.Struct, kw_only=True, frozen=True):
    step: int
    at: list[datetime]
    #: Jobs held at once by all together.
    held: list[float]
    rows: list[Worker]
    more: int


class Mix(msgspec.Struct, kw_only=True, frozen=True):
    """Jobs that `origin` pushed, by the protocol that acted on them; null: the server."""

    origin: str
    actor: str | None
    events: int
    pushed: int
    started: int
    completed: int
    failures: int
    died: int


class Report(msgspec.Struct, kw_only=True, frozen=True):
    version: int
    millrace: str
    made_at: datetime
    range: Range
    coverage: Coverage
    checks: list[Check]
    headline: Headline
    timeline: Timeline
    days: list[Day]
    queues: Queues
    latency: Latency
    kinds: Kinds
    failures: Failures
    workers: Workers
    protocols: list[Mix]

    @property
    def empty(self) -> bool:
        return not self.timeline.at

    @property
    def several_servers(self) -> bool:
        return len({row.server for row in self.workers.rows}) > 1
