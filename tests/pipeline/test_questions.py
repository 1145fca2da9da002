"""`millrace pipeline changes`, `slo`, `cost` and `forecast`."""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from engine_history import START
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from millrace.cli.app import app
from millrace.cli.pipeline import questions
from millrace.engine.engine import Engine
from millrace.engine.events import EventTuple
from millrace.engine.job import FOREVER, NewJob
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.forecast import WEEK, Series, forecast_series
from millrace.pipeline.lake import Lake
from millrace.pipeline.report import build, page
from millrace.pipeline.run import run
from millrace.pipeline.slo import Objective, parse_objectives, slo
from millrace.pipeline.snapshot import Snapshot
from millrace.protocols.registry import FAKTORY
from millrace.protocols.spec import protocol_rules
from support.oracle import TableOracle
from support.shipped_history import ship

SECOND = 1_000_000
HOUR = 3600 * SECOND
BEGIN = START - START % HOUR
#: Hours of the history: three weeks and two days.
HOURS = 3 * WEEK + 48
END = datetime.fromtimestamp((BEGIN + HOURS * HOUR) / SECOND, UTC)


def history() -> list[EventTuple]:
    """Mail arrives by the hour of the week. On the last day a new kind of jobs fails."""
    engine, random, waits = Engine(Random(1), protocol_rules()), Random(2), Random(3)
    rows: list[EventTuple] = []
    for hour in range(HOURS):
        at = BEGIN + hour * HOUR
        count = round(3 + 2 * math.sin(hour / 24 * 2 * math.pi))
        kinds = ["send"] * count + (["broken"] * 2 if hour >= HOURS - 24 else [])
        for number, kind in enumerate(kinds):
            now = at + number * 60 * SECOND
            wait = (40 if number == 0 else 5) * SECOND + waits.randrange(10_000)
            run_for = random.randrange(1, 9) * SECOND
            tags = ["vip"] if number == 1 else []
            engine.push(NewJob("", kind, b"", FAKTORY, "mail", 1, FOREVER, tags=tags), now)
            job = engine.lease(["mail"], "w1", FAKTORY, now + wait)
            assert job is not None
            if kind == "broken":
                engine.fail(job, now + wait + run_for, FAKTORY, "Broken", "no such user", [])
                engine.cancel(job, now + wait + run_for)
            else:
                engine.complete(job, now + wait + run_for, FAKTORY)
        rows += engine.take_changes().events
    return rows


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("questions")
    rows = {"a11ce0a11ce00001": history()}
    ship(root, rows, {}, {server: len(each) for server, each in rows.items()})
    run(Lake(root), lambda _: spark)
    return root


@pytest.fixture(autouse=True)
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def started(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(questions, "tables_session", started)


def ask(lake: Path, *arguments: str, **environ: str) -> dict[str, Any]:
    command = ["pipeline", *arguments, "--lake", str(lake), "--json"]
    result = CliRunner().invoke(app, command, env=environ)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def days(count: int) -> str:
    first, last = END.date() - timedelta(days=count), END.date()
    return f"{first}..{last}"


def test_a_change_is_explained_by_its_kind_and_error(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask(lake, "changes", "--to", END.isoformat())
    measures = {row["measure"]: row for row in found["measures"]}
    assert measures["failures"]["before"] == 0
    assert measures["failures"]["after"] == 2
    assert measures["completed"]["before"] == measures["completed"]["after"]
    failures = [row for row in found["explanations"] if row["measure"] == "failures"]
    assert {(row["dimension"], row["member"].split()[-1]) for row in failures} == {
        ("queue", "mail"), ("kind", "broken"), ("worker", "w1"), ("error", "Broken"),
    }  # fmt: skip
    assert all(row["share"] == pytest.approx(1) and row["is_new"] for row in failures
               if row["dimension"] in {"kind", "error"})  # fmt: skip
    quiet = ask(lake, "changes", "--from", (END - timedelta(hours=72)).isoformat(),
                "--to", (END - timedelta(hours=48)).isoformat())  # fmt: skip
    assert quiet["explanations"] == []


def test_within_counts_are_exact_and_give_budget_and_burn(lake: Path) -> None:
    objectives = {"MILLRACE_SLO_OBJECTIVES": "mail: 90% within 30s, none: 99% within 1s"}
    found = ask(lake, "slo", "--at", END.isoformat(), **objectives)
    mail, none = found["objectives"]
    (counts,) = TableOracle(lake).rows(
        "SELECT count(*) AS n, count(*) FILTER (wait_us <= 30000000) AS good FROM events "
        "WHERE type = 'leased'"
    )
    assert (mail["started"], mail["within"]) == (counts["n"], counts["good"])
    late = counts["n"] - counts["good"]
    assert mail["budget_used"] == pytest.approx(late / (0.1 * counts["n"]))
    (hour,) = TableOracle(lake).rows(
        "SELECT count(*) AS n, count(*) FILTER (wait_us > 30000000) AS late FROM events WHERE "
        f"type = 'leased' AND time >= TIMESTAMPTZ '{END - timedelta(hours=1)}'"
    )
    assert mail["burn_1h"] == pytest.approx(hour["late"] / hour["n"] / 0.1)
    assert sum(day["within"] for day in mail["days"]) == mail["within"]
    assert none["attainment"] is None


@pytest.mark.parametrize("micros", [0, 5_000_000, 5_005_000, 17_000_000, 40_004_321, 60_000_000])
def test_within_counts_of_each_day_are_those_of_its_events(
    lake: Path, spark: SparkSession, micros: int
) -> None:
    objective = Objective("mail", 0.9, micros / SECOND)
    (found,) = slo(spark, Snapshot(lake), [objective], at=END, days=40).objectives
    counts = TableOracle(lake).rows(
        f"SELECT event_day AS day, count(*) AS started, "
        f"count(*) FILTER (wait_us <= {micros}) AS within "
        "FROM events WHERE type = 'leased' GROUP BY event_day ORDER BY event_day"
    )
    assert [(each.day, each.started, each.within) for each in found.days] == [
        (each["day"], each["started"], each["within"]) for each in counts
    ]


def test_an_objective_of_whole_seconds_reads_no_events_of_earlier_days(
    lake: Path, spark: SparkSession, tmp_path: Path
) -> None:
    objective = Objective("mail", 0.9, 30.0)
    whole = slo(spark, Snapshot(lake), [objective], at=END)
    shutil.copytree(lake, tmp_path / "lake")
    for folder in (tmp_path / "lake" / "events").glob("day=*"):
        if folder.name < f"day={(END - timedelta(hours=6)).date()}":
            for file in folder.rglob("*.parquet"):
                file.write_bytes(b"not Parquet")
    assert slo(spark, Snapshot(tmp_path / "lake"), [objective], at=END) == whole


def test_an_objective_of_whole_hours_reads_no_events(
    lake: Path, spark: SparkSession, tmp_path: Path
) -> None:
    """The buckets by hour grow by 10 %: no wait of this history is near 30 s."""
    objective = Objective("mail", 0.9, 30.0)
    whole = slo(spark, Snapshot(lake), [objective], at=END)
    shutil.copytree(lake, tmp_path / "lake")
    for file in (tmp_path / "lake" / "events").glob("day=*/**/*.parquet"):
        file.write_bytes(b"not Parquet")
    assert slo(spark, Snapshot(tmp_path / "lake"), [objective], at=END) == whole
    assert whole.objectives[0].burn_6h is not None


def test_the_last_hours_are_exact_at_any_time(lake: Path, spark: SparkSession) -> None:
    at = END - timedelta(hours=1, minutes=58, seconds=20)
    objective = Objective("mail", 0.9, 5.004)
    (found,) = slo(spark, Snapshot(lake), [objective], at=at).objectives
    for hours, burn in ((1, found.burn_1h), (6, found.burn_6h)):
        (counts,) = TableOracle(lake).rows(
            "SELECT count(*) AS n, count(*) FILTER (wait_us > 5004000) AS late FROM events "
            f"WHERE type = 'leased' AND time >= TIMESTAMPTZ '{at - timedelta(hours=hours)}' "
            f"AND time < TIMESTAMPTZ '{at}'"
        )
        assert burn == pytest.approx(counts["late"] / counts["n"] / 0.1)
    (counts,) = TableOracle(lake).rows(
        "SELECT count(*) AS n, count(*) FILTER (wait_us <= 5004000) AS good FROM events "
        f"WHERE type = 'leased' AND time < TIMESTAMPTZ '{at}'"
    )
    assert (found.started, found.within) == (counts["n"], counts["good"])


def test_cost_adds_runs_and_lost_runs(lake: Path) -> None:
    found = ask(lake, "cost", "--days", days(2), "--price", "2")
    (counts,) = TableOracle(lake).rows(
        "SELECT sum(run_us) FILTER (type = 'completed') AS run, "
        "sum(run_us) FILTER (type = 'failed') AS lost FROM events "
        f"WHERE time >= TIMESTAMPTZ '{END.date() - timedelta(days=2)}'"
    )
    assert found["total"]["run_hours"] == pytest.approx(int(counts["run"]) / 3.6e9)
    assert found["total"]["lost_hours"] == pytest.approx(int(counts["lost"]) / 3.6e9)
    assert found["total"]["cost"] == pytest.approx(
        2 * (found["total"]["run_hours"] + found["total"]["lost_hours"])
    )
    assert sum(row["share"] for row in found["kinds"]) == pytest.approx(1)
    assert {row["kind"] for row in found["kinds"]} == {"send", "broken"}
    assert [row["tag"] for row in found["tags"]] == ["vip"]


def test_the_forecast_publishes_its_error(lake: Path) -> None:
    found = ask(lake, "forecast", "--at", END.isoformat(), "--hours", "24")
    arrivals = next(each for each in found["queues"] if each["metric"] == "arrivals")
    assert arrivals["weeks"] == 3
    assert arrivals["error"] < 0.15
    assert arrivals["naive_error"] is not None
    wanted = [round(3 + 2 * math.sin(hour / 24 * 2 * math.pi)) for hour in range(HOURS, HOURS + 24)]
    off = sum(
        abs(hour["value"] - true) for hour, true in zip(arrivals["hours"], wanted, strict=True)
    )
    assert off / sum(wanted) < 0.35
    early = CliRunner().invoke(
        app, ["pipeline", "forecast", "--lake", str(lake), "--at", "2026-11-13"]
    )
    assert early.exit_code == 1
    assert "at least 2 weeks" in early.stderr


def test_answers_are_printed_as_tables(lake: Path) -> None:
    environ = {"MILLRACE_SLO_OBJECTIVES": "mail: 90% within 30s", "COLUMNS": "200"}
    for command, word in (
        (["slo", "--at", END.isoformat()], "90 % within 30 s"),
        (["cost", "--days", days(2)], "lost hours"),
        (["changes", "--to", END.isoformat()], "broken"),
        (["forecast", "--at", END.isoformat()], "naive error"),
    ):
        result = CliRunner().invoke(app, ["pipeline", *command, "--lake", str(lake)], env=environ)
        assert result.exit_code == 0, result.output
        assert word in result.stdout
    snapshot = Snapshot(lake)
    made = build.build(snapshot, END.date() - timedelta(days=2), END.date())
    assert [name for name, _ in made.answers.sections] == [
        "objectives", "changes", "cost", "forecast",
    ]  # fmt: skip
    text = page.render(made)
    for title in ("Objectives", "What changed", "Cost", "Forecast"):
        assert f">{title}</h2>" in text
    assert "mail broken" in text


def test_a_seasonal_series_is_forecast_exactly() -> None:
    week = [float(hour % 24) for hour in range(WEEK)]
    found = forecast_series(Series("mail", "arrivals", 0, week * 4, 1.0), WEEK)
    assert found.values == pytest.approx(week)
    assert found.error == pytest.approx(0)
    noisy = [value * (1.5 if number // WEEK == 2 else 1) for number, value in enumerate(week * 4)]
    tested = forecast_series(Series("mail", "arrivals", 0, noisy, 1.0), WEEK)
    assert tested.error is not None
    assert 0.1 < tested.error < 0.5
    assert tested.high > 0.4


def test_objectives_are_checked() -> None:
    text = "mail: 95% within 30s,\nbig reports: 99.9 % within 2 m"
    assert parse_objectives(text) == [
        Objective("mail", 0.95, 30.0), Objective("big reports", pytest.approx(0.999), 120.0),
    ]  # fmt: skip
    for wrong in ("mail", "mail: 100% within 3s", "mail: 95% within 3 weeks",
                  "a: 9% within 1s, a: 8% within 1s"):  # fmt: skip
        with pytest.raises(PipelineError):
            parse_objectives(wrong)
