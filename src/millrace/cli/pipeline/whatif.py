"""`millrace pipeline whatif`."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.cli.pipeline.answers import console, seconds, table
from millrace.cli.pipeline.questions import finish, last_tables
from millrace.cli.pipeline.state import parse_time
from millrace.config import Config

if TYPE_CHECKING:
    from millrace.pipeline.whatif.model import Prediction, QueueOutcome, ScenarioOutcome


def whatif(
    config: Config,
    changes: list[str] | None,
    first: str | None,
    last: str | None,
    queue: str | None,
    *,
    json: bool,
) -> int:
    from millrace.pipeline.whatif.prediction import predict  # noqa: PLC0415 - loads Arrow
    from millrace.pipeline.whatif.scenario import parse  # noqa: PLC0415
    from millrace.pipeline.whatif.visits import Period  # noqa: PLC0415

    scenarios = [parse(text) for text in changes or []]
    now = datetime.now(UTC)
    with last_tables(config, json=json) as (spark, snapshot, steps):
        assert snapshot.run is not None
        end = parse_time(last, now) if last else min(now, snapshot.run.time)
        start = parse_time(first, now) if first else end - timedelta(days=1)
        period = Period(micros(start), micros(end))
        found = predict(spark, snapshot, period, scenarios, queue=queue, progress=steps)
    return finish(snapshot, "whatif", found, show, json=json)


def micros(when: datetime) -> int:
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def show(found: "Prediction") -> None:
    out = console()
    out.print(f"{found.first:%Y-%m-%d %H:%M} to {found.last:%Y-%m-%d %H:%M} UTC")
    rows = []
    for outcome in (found.recorded, found.replay, *found.scenarios):
        queues = outcome.queues if len(outcome.queues) > 1 else []
        rows.append(_row(outcome, outcome.total, "all" if queues else _only(outcome)))
        rows += [_row(outcome, row, row.queue) for row in queues]
    names = "workers, started, wait p50, wait p95, wait p99, peak backlog, left"
    out.print(table(f"scenario, queue, {names}", rows, 2))
    if found.error_p50 is not None and found.error_p95 is not None:
        out.print(
            f"Error of the replay without changes: {found.error_p50:.1%} at p50, "
            f"{found.error_p95:.1%} at p95."
        )


def _only(outcome: "ScenarioOutcome") -> str:
    return outcome.queues[0].queue if outcome.queues else ""


def _row(outcome: "ScenarioOutcome", row: "QueueOutcome", queue: str) -> list[str]:
    is_total = row is outcome.total
    return [
        outcome.name if is_total else "",
        queue,
        f"{outcome.workers:,}" if is_total else "",
        f"{row.started:,}",
        *(seconds(value) for value in (row.wait_p50, row.wait_p95, row.wait_p99)),
        f"{row.peak_backlog:,}",
        f"{row.unserved:,}",
    ]
