"""`millrace pipeline changes`, `slo`, `cost` and `forecast`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from millrace.cli.options import lake_root
from millrace.cli.pipeline.answers import console, percent, print_json, table
from millrace.cli.pipeline.days import Days
from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.pipeline.session import tables_session
from millrace.cli.pipeline.state import parse_time
from millrace.cli.tables import printable
from millrace.config import Config
from millrace.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.pipeline.snapshot import Snapshot


@contextmanager
def last_tables(
    config: Config, *, json: bool
) -> Iterator[tuple["SparkSession", "Snapshot", StepProgress]]:
    """A session, the tables of the last run, and the progress to report."""
    from millrace.pipeline import answers  # noqa: PLC0415 - loads Arrow

    snapshot = answers.opened(lake_root(config))
    with StepProgress(quiet=json) as steps:
        steps("start Spark", 0, 0)
        with tables_session(config) as spark:
            yield spark, snapshot, steps


def finish(
    snapshot: "Snapshot", name: str, answer: Any, show: Callable[[Any], None], *, json: bool
) -> int:
    from millrace.pipeline import answers  # noqa: PLC0415 - loads Arrow

    answers.save(snapshot.root, name, answer)
    if json:
        print_json(answer)
    else:
        show(answer)
    return 0


# Changes


def changes(
    config: Config,
    first: str | None,
    last: str | None,
    against: str | None,
    queue: str | None,
    *,
    json: bool,
) -> int:
    from millrace.pipeline.changes import changes as compare  # noqa: PLC0415 - loads Arrow
    from millrace.pipeline.changes import whole_hours  # noqa: PLC0415

    now = datetime.now(UTC)
    with last_tables(config, json=json) as (spark, snapshot, _):
        assert snapshot.run is not None
        end = whole_hours(parse_time(last, now) if last else min(now, snapshot.run.time))
        start = whole_hours(parse_time(first, now)) if first else end - timedelta(days=1)
        length = end - start
        before = whole_hours(parse_time(against, now)) if against else start - length
        answer = compare(spark, snapshot, (before, before + length), (start, end), queue=queue)
    return finish(snapshot, "changes", answer, show_changes, json=json)


def show_changes(answer: Any) -> None:
    form, out = "%Y-%m-%d %H:%M", console()
    out.print(
        f"{answer.first:{form}} to {answer.last:{form}}, compared with "
        f"{answer.before_first:{form}} to {answer.before_last:{form}} (UTC, per hour)"
    )
    rows = [
        [row.measure, f"{row.before:,.1f}", f"{row.after:,.1f}", percent(row.change)]
        for row in answer.measures
    ]
    out.print(table("measure, before, after, change", rows, 1))
    if not answer.explanations:
        out.print("No queue, kind, tag, worker or error explains a change.")
        return
    out.print()
    rows = [
        [each.measure, each.dimension, each.member, f"{each.before:,.1f}", f"{each.after:,.1f}",
         percent(each.share), "new" if each.is_new else "gone" if each.is_gone else ""]
        for each in answer.explanations
    ]  # fmt: skip
    out.print(table("measure, by, member, before, after, share, ", rows, 3))


# Objectives


def slo(config: Config, days: int, at: str | None, *, json: bool) -> int:
    from millrace.pipeline.slo import parse_objectives  # noqa: PLC0415 - loads Arrow
    from millrace.pipeline.slo import slo as measure  # noqa: PLC0415

    objectives = parse_objectives(config.slo.objectives)
    if not objectives:
        raise PipelineError(
            'No objectives. Set [slo] objectives = "mail: 95% within 30s" in the configuration.'
        )
    now = datetime.now(UTC)
    with last_tables(config, json=json) as (spark, snapshot, _):
        assert snapshot.run is not None
        end = parse_time(at, now) if at else min(now, snapshot.run.time)
        answer = measure(spark, snapshot, objectives, at=end, days=days)
    return finish(snapshot, "slo", answer, show_slo, json=json)


def show_slo(answer: Any) -> None:
    rows = [
        [each.queue, each.objective, f"{each.started:,}", f"{each.within:,}",
         percent(each.attainment), percent(each.budget_used), _burn(each.burn_1h),
         _burn(each.burn_6h), f"{each.overdue:,}"]
        for each in answer.objectives
    ]  # fmt: skip
    out = console()
    out.print(f"{answer.first} to {answer.last}, last hours before {answer.at:%Y-%m-%d %H:%M} UTC")
    names = "queue, objective, started, within, attained, budget used, burn 1 h, burn 6 h, overdue"
    out.print(table(names, rows, 2))


def _burn(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# Cost


def cost(config: Config, days: Days, queue: str | None, price: float | None, *, json: bool) -> int:
    from millrace.pipeline.cost import cost as add  # noqa: PLC0415 - loads Arrow
    from millrace.pipeline.report.build import chosen_days  # noqa: PLC0415

    with last_tables(config, json=json) as (spark, snapshot, _):
        first, last = chosen_days(snapshot, days.latest, days.first, days.last)
        answer = add(spark, snapshot, first, last, queue=queue, price=price)
    return finish(snapshot, "cost", answer, show_cost, json=json)


def show_cost(answer: Any) -> None:
    out = console()
    out.print(f"{answer.first} to {answer.last}")
    numbers = "started, completed, failures, run hours, lost hours, share, s per job"
    numbers += ", cost" if answer.price is not None else ""

    def cells(row: Any) -> list[str]:
        each = "" if row.seconds_per_job is None else f"{row.seconds_per_job:.2f}"
        found = [
            f"{row.started:,}", f"{row.completed:,}", f"{row.failures:,}", f"{row.run_hours:,.2f}",
            f"{row.lost_hours:,.2f}", percent(row.share), each,
        ]  # fmt: skip
        return found if row.cost is None else [*found, f"{row.cost:,.2f}"]

    rows = [["all", "", *cells(answer.total)]]
    rows += [[row.queue, row.kind, *cells(row)] for row in answer.kinds]
    out.print(table(f"queue, kind, {numbers}", rows, 2))
    if answer.tags:
        out.print()
        out.print(table(f"tag, {numbers}", [[row.tag, *cells(row)] for row in answer.tags], 1))


# Forecast


def forecast(config: Config, hours: int, queue: str | None, at: str | None, *, json: bool) -> int:
    from millrace.pipeline.changes import whole_hours  # noqa: PLC0415 - loads Arrow
    from millrace.pipeline.forecast import forecast as predict  # noqa: PLC0415

    now = datetime.now(UTC)
    with last_tables(config, json=json) as (spark, snapshot, _):
        assert snapshot.run is not None
        end = whole_hours(parse_time(at, now) if at else min(now, snapshot.run.time))
        answer = predict(spark, snapshot, end, hours=hours, queue=queue)
    return finish(snapshot, "forecast", answer, show_forecast, json=json)


def show_forecast(answer: Any) -> None:
    out = console()
    out.print(f"{answer.first:%Y-%m-%d %H:%M} to {answer.last:%Y-%m-%d %H:%M} UTC, per hour")
    rows = []
    for each in answer.queues:
        peak = max(each.hours, key=lambda hour: hour.value)
        mean = sum(hour.value for hour in each.hours) / len(each.hours)
        rows.append(
            [each.queue, each.metric, f"{mean:,.1f}", f"{peak.value:,.1f}",
             f"{peak.low:,.1f} to {peak.high:,.1f}", f"{peak.at:%a %H:%M}", percent(each.error),
             percent(each.naive_error), "" if each.workers is None else str(each.workers)]
        )  # fmt: skip
    names = "queue, metric, mean, peak, 80 % band, at, error, naive error, workers"
    out.print(table(names, rows, 2))
    out.print("Error: WAPE of a rolling back-test. Naive: the same hour of the week before.")
    if answer.too_short:
        out.print(f"Less than two weeks of history: {', '.join(map(printable, answer.too_short))}")
