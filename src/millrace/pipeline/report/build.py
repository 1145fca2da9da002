"""Build a report for a range of days from its parts."""

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace import __version__
from millrace.pipeline import answers
from millrace.pipeline.changes import Changes
from millrace.pipeline.cost import Cost
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.forecast import Forecast
from millrace.pipeline.progress import Progress, silent
from millrace.pipeline.slo import Slo
from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.tables import QUEUE_DAY
from millrace.pipeline.whatif.model import Prediction

from . import failures, latency, status, throughput, workers
from .model import VERSION, Answers, Day, Headline, Queues, QueueSummary, Range, Report
from .percentiles import NONE, Spans, added, spread

QUEUES: Final = 50
#: Default number of days of a report.
USUAL: Final = 7
_COUNTS: Final = ("pushed", "started", "completed", "failures", "died")
_PARTS: Final = 5


class NothingYet(PipelineError):
    """There are no tables to report on."""


def chosen(
    snapshot: Snapshot,
    count: int | None = None,
    first: date | None = None,
    last: date | None = None,
    *,
    today: date | None = None,
) -> tuple[date, date]:
    """Return the first and last day of a report: `first` to `last`, or the last `count` days of the
    lake (default: a week). Days in the future, caused by wrong client clocks, are not the last day.
    """
    today = today or datetime.now(UTC).date()
    of = status.days(snapshot)
    if last is None:
        last = max((day for day in of if day <= today), default=today)
    if first is None:
        first = last - timedelta(days=min(count or USUAL, last.toordinal()) - 1)
    return first, max(first, last)


def build(
    snapshot: Snapshot,
    first: date,
    last: date,
    queue: str | None = None,
    *,
    now: datetime | None = None,
    progress: Progress = silent,
) -> Report:
    """Build the report for the days from `first` to `last`, for one queue or for all queues."""
    if not status.days(snapshot):
        raise NothingYet(
            f"The lake {snapshot.root} has no tables yet. Create them with `millrace pipeline run`."
        )
    progress("throughput", 0, _PARTS)
    before = throughput.opening(snapshot, first, queue)
    minutes = throughput.minutes(snapshot, first, last, queue)
    timeline = throughput.timeline(minutes, before)
    backlogs = throughput.backlogs(minutes, before)
    progress("latency", 1, _PARTS)
    hist = latency.histogram(snapshot, first, last, queue)
    over_time = latency.over_time(snapshot, first, last, queue, hist)
    progress("queues", 2, _PARTS)
    days = _queue_days(snapshot, first, last, queue)
    progress("failures", 3, _PARTS)
    groups = failures.failures(snapshot, first, last, queue)
    progress("workers", 4, _PARTS)
    return Report(
        version=VERSION,
        millrace=__version__,
        made_at=(now or datetime.now(UTC)).replace(microsecond=0),
        range=Range(first=first, last=last, queue=queue),
        coverage=status.coverage(snapshot),
        checks=status.checks(snapshot),
        headline=_headline(days, hist, minutes, backlogs, workers.count(snapshot, first, last)),
        timeline=timeline,
        days=_by_day(days, hist),
        queues=_by_queue(days, hist, backlogs),
        latency=over_time,
        kinds=latency.kinds(hist),
        failures=groups,
        workers=workers.workers(snapshot, first, last),
        protocols=workers.protocols(snapshot, first, last),
        answers=_answers(snapshot),
    )


def _answers(snapshot: Snapshot) -> Answers:
    """The last answers of the analyses, which have their own periods."""
    root = snapshot.root
    return Answers(
        slo=answers.load(root, "slo", Slo),
        changes=answers.load(root, "changes", Changes),
        cost=answers.load(root, "cost", Cost),
        forecast=answers.load(root, "forecast", Forecast),
        whatif=answers.load(root, "whatif", Prediction),
    )


def _queue_days(snapshot: Snapshot, first: date, last: date, queue: str | None) -> pa.Table:
    return snapshot.read(
        QUEUE_DAY,
        first,
        last,
        columns=["queue", *_COUNTS, "day"],
        where=None if queue is None else pc.field("queue") == queue,
    )


def _headline(
    days: pa.Table, hist: pa.Table, minutes: pa.Table, backlogs: dict[str, int], there: int
) -> Headline:
    of = added(hist, "metric")
    peak_at, peak = throughput.peak(minutes)
    return Headline(
        **_counts({f"{name}_sum": pc.sum(days[name]).as_py() or 0 for name in _COUNTS}),
        backlog=sum(backlogs.values()),
        peak_completed=peak,
        peak_at=peak_at,
        workers=there,
        **_spans(of, ()),
    )


def _by_day(days: pa.Table, hist: pa.Table) -> list[Day]:
    of = added(hist, "day", "metric")
    rows = _added(days, "day")
    return [Day(day=row["day"], **_counts(row), **_spans(of, (row["day"],))) for row in rows]


def _by_queue(days: pa.Table, hist: pa.Table, backlogs: dict[str, int]) -> Queues:
    """Return the busiest queues first, including queues that have only waiting jobs."""
    known = {row["queue"]: row for row in _added(days, "queue")}
    nothing = dict.fromkeys(("started_sum", "pushed_sum"), 0)

    def rank(name: str) -> tuple[Any, ...]:
        row = known.get(name, nothing)
        return -row["started_sum"], -row["pushed_sum"], -backlogs.get(name, 0), name

    names = sorted(known.keys() | {name for name, depth in backlogs.items() if depth}, key=rank)
    shown = names[:QUEUES]
    of_shown = hist.filter(pc.is_in(hist["queue"], pa.array(shown, pa.string())))
    of = added(of_shown, "queue", "metric")
    rows = [
        QueueSummary(
            queue=name,
            **_counts(known.get(name, {})),
            backlog=backlogs.get(name, 0),
            **_spans(of, (name,)),
        )
        for name in shown
    ]
    return Queues(rows=rows, more=len(names) - len(shown))


def _added(days: pa.Table, by: str) -> Iterable[dict[str, Any]]:
    added = days.group_by(by).aggregate([(name, "sum") for name in _COUNTS])
    found: list[dict[str, Any]] = added.sort_by(by).to_pylist()
    return found


def _counts(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row.get(f"{name}_sum", 0) for name in _COUNTS}


def _spans(of: dict[tuple[Any, ...], Spans], key: tuple[Any, ...]) -> dict[str, Any]:
    return {name: spread(of.get((*key, name), NONE)) for name in (latency.WAIT, latency.RUN)}
