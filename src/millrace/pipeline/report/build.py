"""Build a report for a range of days from its parts."""

from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from millrace import __version__
from millrace.pipeline import answers
from millrace.pipeline.changes import Changes
from millrace.pipeline.cost import Cost
from millrace.pipeline.errors import NoTables
from millrace.pipeline.forecast import Forecast
from millrace.pipeline.progress import Progress, silent
from millrace.pipeline.remote import shown
from millrace.pipeline.slo import Slo
from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.tables import QUEUE_DAY
from millrace.pipeline.whatif.model import Prediction

from . import failures, latency, status, throughput, workers
from .model import VERSION, Answers, Day, Headline, Queues, QueueSummary, Range, Report
from .percentiles import NONE, Spans, added, spread
from .rows import ReportRows, among
from .throughput import COUNTS

QUEUES: Final = 50
#: Default number of days of a report.
DEFAULT_DAYS: Final = 7
_PARTS: Final = 5


def chosen_days(
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
    if last is None:
        last = max((day for day in status.days(snapshot) if day <= today), default=today)
    if first is None:
        first = last - timedelta(days=min(count or DEFAULT_DAYS, last.toordinal()) - 1)
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
        raise NoTables(shown(snapshot.root))
    selection = ReportRows(snapshot, first, last, queue)
    everything = selection._replace(queue=None)
    progress("throughput", 0, _PARTS)
    before = throughput.opening(selection)
    timeline = throughput.timeline(selection, before)
    backlogs = throughput.backlogs(selection, before)
    progress("latency", 1, _PARTS)
    over_time = latency.over_time(selection)
    kinds = latency.kinds(selection)
    progress("queues", 2, _PARTS)
    days, queues = _by_day(selection), _by_queue(selection, backlogs)
    progress("failures", 3, _PARTS)
    groups = failures.failures(selection)
    progress("workers", 4, _PARTS)
    return Report(
        version=VERSION,
        millrace=__version__,
        made_at=(now or datetime.now(UTC)).replace(microsecond=0),
        range=Range(first=first, last=last, queue=queue),
        coverage=status.coverage(snapshot),
        checks=status.checks(snapshot),
        headline=_headline(selection, sum(backlogs.values()), workers.count(everything)),
        timeline=timeline,
        days=days,
        queues=queues,
        latency=over_time,
        kinds=kinds,
        failures=groups,
        workers=workers.workers(everything),
        protocols=workers.protocols(everything),
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


def _headline(selection: ReportRows, backlog: int, workers: int) -> Headline:
    peak_at, peak = throughput.peak(selection)
    counts = selection.sums(QUEUE_DAY, COUNTS) or [dict.fromkeys(COUNTS, 0)]
    return Headline(
        **counts[0],
        backlog=backlog,
        peak_completed=peak,
        peak_at=peak_at,
        workers=workers,
        **_spans(added(selection, "metric"), ()),
    )


def _by_day(selection: ReportRows) -> list[Day]:
    spans = added(selection, "day", "metric")
    rows = selection.sums(QUEUE_DAY, COUNTS, "day")
    return [Day(**row, **_spans(spans, (row["day"],))) for row in rows]


def _by_queue(selection: ReportRows, backlogs: dict[str, int]) -> Queues:
    """Return the busiest queues first, including queues that have only waiting jobs."""
    known = {row["queue"]: row for row in selection.sums(QUEUE_DAY, COUNTS, "queue")}
    waiting = {name for name, depth in backlogs.items() if depth}
    rows = [
        {**(known.get(name) or dict.fromkeys(COUNTS, 0)), "queue": name,
         "backlog": backlogs.get(name, 0)}
        for name in known.keys() | waiting
    ]  # fmt: skip
    rows.sort(key=lambda row: (-row["started"], -row["pushed"], -row["backlog"], row["queue"]))
    shown = rows[:QUEUES]
    where = among("queue", (row["queue"] for row in shown))
    spans = added(selection, "queue", "metric", source=f"(SELECT * FROM selected WHERE {where})")
    return Queues(
        rows=[QueueSummary(**row, **_spans(spans, (row["queue"],))) for row in shown],
        more=len(rows) - len(shown),
    )


def _spans(spans: dict[tuple[Any, ...], Spans], key: tuple[Any, ...]) -> dict[str, Any]:
    return {name: spread(spans.get((*key, name), NONE)) for name in (latency.WAIT, latency.RUN)}
