"""`millrace pipeline whatif`: replays of recorded workloads."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from recorded_workloads import SECOND, START, WORKLOADS, Workload, record, scaled
from typer.testing import CliRunner

import millrace.cli.pipeline.questions as command
from millrace.cli.app import app
from millrace.cli.pipeline.whatif import show
from millrace.engine.events import Event
from millrace.engine.states import LEASED, READY, STATE_NAMES
from millrace.pipeline import answers
from millrace.pipeline.buckets import Bucket, merged, percentiles
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import Lake
from millrace.pipeline.run import run
from millrace.pipeline.whatif.model import Prediction
from millrace.pipeline.whatif.prediction import components
from millrace.pipeline.whatif.replay import Replay
from millrace.pipeline.whatif.results import QueueResult, recorded
from millrace.pipeline.whatif.scenario import Scenario, parse
from millrace.pipeline.whatif.slots import infer
from millrace.pipeline.whatif.visits import NEVER, Period, Visit
from millrace.protocols.registry import PROTOCOL_NAMES
from support.shipped_history import ship

#: Maximum relative error of a replay with the recorded workers.
MAX_ERROR = 0.1
LOADS = {load.name: load for load in WORKLOADS}


#: The workloads of the lake, and their length in seconds.
IN_LAKE = ("bursty", "failures", "mixed")
SECONDS = 480


def short(load: Workload) -> Workload:
    return load._replace(seconds=load.seconds / 3)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with one server for each workload."""
    root = tmp_path_factory.mktemp("whatif")
    loads = [LOADS[name]._replace(seconds=SECONDS) for name in IN_LAKE]
    rows = {f"{number:016x}": record(load) for number, load in enumerate(loads)}
    ship(root, rows, {}, {server: len(each) for server, each in rows.items()})
    run(Lake(root), lambda _: spark)
    return root


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def started(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(command, "tables_session", started)


def ask(lake: Path, *arguments: str) -> dict[str, Any]:
    start = datetime.fromtimestamp(START / SECOND, UTC)
    times = ["--from", start.isoformat(), "--to", (start + timedelta(seconds=SECONDS)).isoformat()]
    arguments = ("pipeline", "whatif", *arguments, *times, "--lake", str(lake), "--json")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def visits_of(load: Workload, seed: int = 1) -> tuple[list[Visit], Period]:
    """The visits of a workload, from its events."""
    found, last = [], {}
    for event in (Event(*row) for row in record(load, seed)):
        last[event.seq] = event
        if event.before == LEASED:
            ready = event.leased_at - event.wait
            found.append(_visit(event, event.holder, ready, event.leased_at, event.time))
    for event in last.values():
        if event.state == LEASED:
            found.append(_visit(event, event.actor, event.ready_at, event.leased_at, NEVER))
        elif event.state == READY:
            found.append(_visit(event, 0, event.ready_at, NEVER, NEVER))
    return sorted(found), Period(START, START + int(load.seconds * SECOND))


def _visit(event: Event, holder: int, ready: int, leased: int, ended: int) -> Visit:
    names = PROTOCOL_NAMES[event.origin], PROTOCOL_NAMES[holder], event.worker
    job = event.seq, event.queue, event.kind, *names, event.rank, event.created
    return Visit(*job, ready, leased, ended, event.type, STATE_NAMES[event.state])


def wait(results: dict[str, QueueResult], percent: int) -> float:
    rows = [Bucket(at, *row) for each in results.values() for at, row in each.waits.items()]
    return next(iter(percentiles(merged(rows), [percent])), 0.0)


@pytest.mark.usefixtures("shared")
def test_a_replay_without_changes_predicts_the_recorded_waits(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask(lake, "workers:thumbs=8")
    assert found["error_p50"] <= MAX_ERROR
    assert found["error_p95"] <= MAX_ERROR
    queues = {row["queue"]: row for row in found["recorded"]["queues"]}
    replayed = {row["queue"]: row for row in found["replay"]["queues"]}
    assert queues.keys() == replayed.keys()
    assert queues.keys() == {"thumbs", "hooks", "shared"}
    for name, row in queues.items():
        assert replayed[name]["started"] == pytest.approx(row["started"], rel=0.02)
        assert replayed[name]["wait_p95"] == pytest.approx(row["wait_p95"], rel=0.2, abs=0.05)
    (scenario,) = found["scenarios"]
    thumbs = next(row for row in scenario["queues"] if row["queue"] == "thumbs")
    assert thumbs["wait_p95"] < queues["thumbs"]["wait_p95"] / 2
    assert len(found["at"]) == len(scenario["backlog"]) == SECONDS // 60
    show(answers.load(lake, "whatif", Prediction) or pytest.fail("not saved"))
    assert "Error of the replay" in capsys.readouterr().out
    assert not list((lake / "ops").glob("visits-*"))


@pytest.mark.parametrize("name", LOADS)
def test_every_workload_is_within_ten_percent(name: str) -> None:
    check(short(LOADS[name]))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", LOADS)
def test_every_long_workload_is_within_ten_percent(name: str, seed: int) -> None:
    check(LOADS[name], seed)


def check(load: Workload, seed: int = 1) -> None:
    visits, period = visits_of(load, seed)
    truth, found = recorded(visits, period), Replay(visits, period, Scenario()).run()
    for percent in (50, 95):
        assert wait(found, percent) == pytest.approx(wait(truth, percent), rel=MAX_ERROR, abs=1_000)


@pytest.mark.parametrize(
    ("name", "factor"),
    [("steady", 1.5), ("bursty", 0.75), ("bursty", 2), ("scheduled", 2)],
)  # fmt: skip
def test_a_recording_with_other_workers_confirms_the_prediction(name: str, factor: float) -> None:
    load = short(LOADS[name])
    other = scaled(load, factor)
    count = sum(each.threads for each in other.workers)
    truth = recorded(*visits_of(other))
    visits, period = visits_of(load)
    found = Replay(visits, period, Scenario(name="more", workers={"": count})).run()
    assert wait(found, 95) == pytest.approx(wait(truth, 95), rel=0.15)


def test_capacity_follows_the_leases() -> None:
    visits, period = visits_of(LOADS["changing workers"])
    slots = infer(visits, period).slots
    assert len(slots) == 8
    left = [slot for slot in slots if slot.worker == "w2"]
    assert [(slot.last - START) // (60 * SECOND) for slot in left] == [25, 25]
    (arrived,) = [slot for slot in slots if slot.worker == "w4"]
    assert (arrived.first - START) // (60 * SECOND) == 41


def test_scenarios_change_the_replay() -> None:
    visits, period = visits_of(short(LOADS["priorities"]))
    before = Replay(visits, period, Scenario()).run()["index"]

    def after(text: str) -> QueueResult:
        return Replay(visits, period, parse(text)).run()["index"]

    assert wait({"": after("limit:index=2")}, 50) > 2 * wait({"": before}, 50)
    assert wait({"": after("run=0.2")}, 95) < wait({"": before}, 95) / 4
    assert wait({"": after("arrivals=0.3")}, 95) < wait({"": before}, 95) / 4
    assert after("arrivals=0.3").started < 0.4 * len(visits)
    urgent = [visit.key for visit in visits if visit.kind == "urgent"]
    assert urgent
    assert wait({"": after("priority:urgent=-5")}, 95) != wait({"": before}, 95)


def test_a_retry_policy_changes_the_number_of_attempts() -> None:
    visits, period = visits_of(short(LOADS["failures"]))
    before = Replay(visits, period, Scenario()).run()["hooks"]
    once = Replay(visits, period, parse("retries=0")).run()["hooks"]
    soon = Replay(visits, period, parse("retries=5 retry_delay=1s")).run()["hooks"]
    assert once.started + once.unserved < before.started + before.unserved
    assert soon.failures > 0
    assert soon.started > 0


def test_a_job_that_was_removed_after_a_failure_is_not_retried() -> None:
    job = (1, "mail", "broken", "faktory", "faktory", "w1", 0.0, START, START)
    failed = Visit(*job, START + SECOND, START + 2 * SECOND, "failed", "scheduled")
    period = Period(START, START + 3600 * SECOND)
    (found,) = Replay([failed], period, Scenario()).run().values()
    assert (found.started, found.failures) == (1, 1)


def visit(seq: int, queue: str, ready: float, leased: float, ended: float, **more: Any) -> Visit:
    """A visit of a worker without a name; times are in seconds after START."""
    at = [START + int(time * SECOND) if time < NEVER else NEVER for time in (ready, leased, ended)]
    values = {"holder": "workq", "worker": "", "outcome": "completed", "state": "gone", **more}
    names = values.pop("holder"), values.pop("worker")
    return Visit(seq, queue, "k", "workq", *names, 0.0, at[0], *at, **values)


def test_a_lost_job_occupies_its_worker_only_for_the_usual_time() -> None:
    """A worker that loses the connection with a job takes the next one at once."""
    found = [visit(number, "mail", number, number + 0.1, number + 0.6) for number in range(20)]
    lost = visit(20, "mail", 20, 20.1, 50.1, outcome="expired", state="ready")
    later = [visit(number, "mail", number, number + 0.1, number + 0.6) for number in range(21, 40)]
    period = Period(START, START + 60 * SECOND)
    pool = infer([*found, lost, *later], period)
    assert len(pool.slots) == 1
    assert pool.freed[lost.key] == START + int(20.6 * SECOND)
    # Unended leases that are far longer than usual are lost, too.
    running = visit(20, "mail", 20, 20.1, NEVER, outcome="running", state="leased")
    assert len(infer([*found, running, *later], period).slots) == 1
    results = Replay([*found, running, *later], period, Scenario()).run()["mail"]
    assert (results.started, results.unserved) == (40, 0)
    assert wait({"": results}, 95) == pytest.approx(100_000, rel=0.02)


def test_unnamed_workers_serve_queues_together_if_this_explains_the_waits() -> None:
    """One worker serves two queues in turn: a job waits while the worker has one of the other."""
    period = Period(START, START + 60 * SECOND)
    together = [
        visit(number, "ab"[number % 2], number - 0.5, number, number + 1.0)
        for number in range(1, 40)
    ]
    (slot,) = infer(together, period).slots
    assert set(slot.queues) == {"a", "b"}
    apart = [visit(n, "a", n, n, n + 0.4) for n in range(1, 40)]
    apart += [visit(100 + n, "b", n - 0.5, n + 0.5, n + 1.5) for n in range(1, 40)]
    assert sorted(slot.queues for slot in infer(apart, period).slots) == [("a",), ("b",)]


def test_a_worker_that_has_left_takes_no_more_jobs() -> None:
    """After its last lease a worker is present only until a job waits that it does not take."""
    period = Period(START, START + 100 * SECOND)
    left = [visit(n, "q", 5 * n, 5 * n, 5 * n + 1, holder="faktory", worker="w1") for n in range(5)]
    waited = [visit(9, "q", 22, 24, 25, holder="faktory", worker="w2")]
    slots = infer([*left, *waited], period).slots
    (slot,) = (each for each in slots if each.worker == "w1")
    assert slot.last == START + 22 * SECOND


def test_waits_of_qless_count_from_the_put() -> None:
    """The time before a job was ready is part of its wait, but no worker could take it."""
    jobs = [visit(n, "q", 2 * n, 2 * n, 2 * n + 1, early=10 * SECOND) for n in range(1, 20)]
    period = Period(START, START + 60 * SECOND)
    for results in (recorded(jobs, period), Replay(jobs, period, Scenario()).run()):
        assert wait(results, 50) == pytest.approx(10 * SECOND, rel=0.02)


@pytest.mark.parametrize(
    "text", ["workers=many", "limit=3", "colour:mail=2", "retry_delay=soon", "workers:mail=2.5",
             "arrivals=-1", "workers"],
)  # fmt: skip
def test_a_wrong_scenario_is_an_error(text: str) -> None:
    with pytest.raises(PipelineError):
        parse(text)


def test_queues_with_a_common_worker_are_replayed_together() -> None:
    links = [("w1", "a"), ("w1", "b"), ("", "c"), ("", "d"), ("w2", "d"), ("w2", "e")]
    assert components(links) == [("a", "b"), ("c",), ("d", "e")]
