"""Data model of a report and of its JSON form. docs/how-to/report.md describes every name.

Times are in UTC, and spans are in seconds. A list with the name of a count has one number per entry
of `timeline.at`, or of the `at` in the same object. Lists of queues, kinds, groups and workers have
the most important entries first and are truncated; `more` is the number of omitted entries.
"""

from datetime import date, datetime
from typing import Final, Literal

import msgspec

from millrace.pipeline.changes import Changes
from millrace.pipeline.cost import Cost
from millrace.pipeline.forecast import Forecast
from millrace.pipeline.slo import Slo
from millrace.pipeline.whatif.model import Prediction

VERSION: Final = 1
Verdict = Literal["good", "bad", "unknown"]


class Range(msgspec.Struct, kw_only=True, frozen=True):
    """The requested range."""

    first: date
    last: date
    #: Only this queue; null: all queues.
    queue: str | None


class Coverage(msgspec.Struct, kw_only=True, frozen=True):
    """The data in the lake."""

    first: date | None
    last: date | None
    days: int
    servers: list[str]
    #: Number of events in the tables, over all days.
    events: int
    #: Time of the last run of the pipeline; null: unknown.
    ran_at: datetime | None
    #: Number of shipped events that are not in the tables yet.
    behind: int


class CheckResult(msgspec.Struct, kw_only=True, frozen=True):
    """The result and the time of a check of the data."""

    name: str
    verdict: Verdict
    detail: str
    at: datetime | None


class DurationPercentiles(msgspec.Struct, kw_only=True, frozen=True):
    """Distribution of durations. All values except `n` are null if `n` is 0."""

    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


class ReportTotals(msgspec.Struct, kw_only=True, frozen=True):
    """Counts and durations of a day, a queue or the range."""

    pushed: int
    started: int
    completed: int
    #: Attempts that failed or expired, and jobs that died as a result.
    failures: int
    died: int
    wait: DurationPercentiles
    run: DurationPercentiles


class Headline(ReportTotals, kw_only=True, frozen=True):
    #: Number of ready, scheduled or blocked jobs at the end of the range.
    backlog: int
    #: Maximum of `completed` in one minute, and that minute.
    peak_completed: int
    peak_at: datetime | None
    workers: int


class Line(msgspec.Struct, kw_only=True, frozen=True):
    """The backlog of a queue."""

    queue: str
    backlog: list[int]


class Timeline(msgspec.Struct, kw_only=True, frozen=True):
    """Counts for the `step` seconds from each time of `at`. Depths are from the end of a step."""

    step: int
    at: list[datetime]
    pushed: list[int]
    started: list[int]
    completed: list[int]
    failures: list[int]
    died: list[int]
    backlog: list[int]
    #: The queues with the largest backlogs, and the sum of the remaining backlogs.
    queues: list[Line]
    others: list[int]


class Day(ReportTotals, kw_only=True, frozen=True):
    day: date


class QueueSummary(ReportTotals, kw_only=True, frozen=True):
    queue: str
    backlog: int


class Queues(msgspec.Struct, kw_only=True, frozen=True):
    rows: list[QueueSummary]
    more: int


class Heat(msgspec.Struct, kw_only=True, frozen=True):
    """Number of spans by length and time: `counts[i][j]` counts the spans at `at[j]` of at least
    `edges[i]` seconds and, if `edges[i + 1]` exists, less than `edges[i + 1]` seconds.
    """

    edges: list[float]
    counts: list[list[int]]


class Moments(msgspec.Struct, kw_only=True, frozen=True):
    """Percentiles for each time of `at`; null where there are no spans."""

    n: list[int]
    p50: list[float | None]
    p90: list[float | None]
    p95: list[float | None]
    p99: list[float | None]
    heat: Heat


class Latency(msgspec.Struct, kw_only=True, frozen=True):
    step: int
    at: list[datetime]
    #: Meaning of `at`: the start of the lease or, if `step` is a day, the day of the event.
    by: Literal["lease", "event"]
    wait: Moments
    run: Moments


class Kind(msgspec.Struct, kw_only=True, frozen=True):
    kind: str
    wait: DurationPercentiles
    run: DurationPercentiles
    #: Sum of all runs.
    run_total: float


class Kinds(msgspec.Struct, kw_only=True, frozen=True):
    """Kinds by the 95th percentile of their runs, slowest first."""

    rows: list[Kind]
    more: int


class Seen(msgspec.Struct, kw_only=True, frozen=True):
    """The failures of a group on one day."""

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
    #: Number of failed jobs, counted separately per day and queue, and of jobs that died.
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
    #: Number of failures in the omitted groups.
    more_n: int


class WorkerSummary(msgspec.Struct, kw_only=True, frozen=True):
    server: str
    #: Empty if the protocol has no worker names.
    worker: str
    protocol: str
    attempts: int
    completed: int
    failures: int
    #: Total time that the worker held jobs, and the average number held during its active hours.
    busy: float
    utilisation: float
    #: Average number of jobs held in each step of `at`.
    held: list[float]


class Workers(msgspec.Struct, kw_only=True, frozen=True):
    step: int
    at: list[datetime]
    #: Average number of jobs held by all workers.
    held: list[float]
    rows: list[WorkerSummary]
    more: int


class Mix(msgspec.Struct, kw_only=True, frozen=True):
    """Jobs pushed through `origin`, by the protocol that acted on them; null: the server."""

    origin: str
    actor: str | None
    events: int
    pushed: int
    started: int
    completed: int
    failures: int
    died: int


class Answers(msgspec.Struct, kw_only=True, frozen=True):
    """The last result of each analysis: `millrace pipeline slo`, `changes` and so on."""

    slo: Slo | None
    changes: Changes | None
    cost: Cost | None
    forecast: Forecast | None
    whatif: Prediction | None

    @property
    def sections(self) -> list[tuple[str, str]]:
        """The identifiers and titles of the answers that exist."""
        titles = {
            "objectives": (self.slo, "Objectives"),
            "changes": (self.changes, "What changed"),
            "cost": (self.cost, "Cost"),
            "forecast": (self.forecast, "Forecast"),
            "whatif": (self.whatif, "What if"),
        }
        return [(name, title) for name, (answer, title) in titles.items() if answer is not None]


class Report(msgspec.Struct, kw_only=True, frozen=True):
    version: int
    millrace: str
    made_at: datetime
    range: Range
    coverage: Coverage
    checks: list[CheckResult]
    headline: Headline
    timeline: Timeline
    days: list[Day]
    queues: Queues
    latency: Latency
    kinds: Kinds
    failures: Failures
    workers: Workers
    protocols: list[Mix]
    answers: Answers

    @property
    def empty(self) -> bool:
        return not self.timeline.at

    @property
    def several_servers(self) -> bool:
        return len({row.server for row in self.workers.rows}) > 1
