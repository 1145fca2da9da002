"""The realistic workload: a seed determines its jobs, and its record is exact.

tests/pipeline/test_end_to_end.py compares the record with the server's tables.
"""

import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from actors import SILENT_EXPIRY, Context, Worker  # noqa: E402
from observations import Attempt, Observations, Pushed, Recorder, WallClock  # noqa: E402
from plans import DRAFTS, QUEUES, Plan, plans  # noqa: E402
from workload import Load, default_ports, run  # noqa: E402


def test_the_seed_determines_all_pushes():
    assert plans(1, 5, 100) == plans(1, 5, 100)
    assert plans(1, 5, 100) != plans(2, 5, 100)


def test_plans_are_in_push_order_with_bursts():
    found = plans(1, 10, 200)
    moments = [plan.at for plan in found]
    assert len(found) == 2000
    assert moments == sorted(moments)
    most = max(sum(at <= each < at + 0.5 for each in moments) for at in range(10))
    assert most > 1.5 * 2000 / 20


def test_the_script_has_every_outcome_and_every_pair_of_protocols():
    scripted = [plan for plan in plans(1, 1, 1) if plan.worker]
    actions = {action for plan in scripted for action in plan.actions}
    assert actions == {"complete", "fail", "bury", "release", "leave"}
    assert len({(plan.protocol, plan.worker) for plan in scripted}) == 25
    returning = [plan.queue for plan in scripted if plan.actions != ("complete",)]
    assert len(returning) == len(set(returning))


def test_only_jobs_of_the_queue_without_workers_are_cancelled():
    assert {plan.queue == DRAFTS for plan in plans(1, 10, 200) if plan.withdrawn} == {True}
    assert DRAFTS not in QUEUES
    assert {plan.withdrawn for plan in plans(1, 10, 200) if plan.queue == DRAFTS} == {True}


def test_a_job_whose_worker_disconnects_has_a_short_lease():
    for plan in plans(1, 10, 200):
        assert plan.short == ("leave" in plan.actions)


def test_the_last_action_applies_to_later_attempts():
    plan = plans(1, 1, 1)[0]._replace(actions=("fail", "complete"))
    assert [plan.action(attempt) for attempt in (1, 2, 3)] == ["fail", "complete", "complete"]


@pytest.mark.parametrize("protocol", sorted(SILENT_EXPIRY))
def test_workers_without_expiry_errors_do_not_finish_short_leases(server, protocol):
    context = Context("127.0.0.1", server.ports, [], 1)
    worker = Worker(context, protocol, "w", ["mail"])
    plan: Plan = plans(1, 1, 1)[0]
    assert worker._supported("complete", plan._replace(ttr=2.0)) == "leave"
    assert worker._supported("complete", plan._replace(ttr=1800.0)) == "complete"


def test_a_corrected_clock_is_measured(monkeypatch):
    clock = WallClock()
    wall, monotonic = iter([10_000_000, 10_700_000]), iter([0, 1, 10**6, 10**6, 2, 3])
    monkeypatch.setattr("time.time_ns", wall.__next__)
    monkeypatch.setattr("time.monotonic_ns", monotonic.__next__)
    assert [clock.now(), clock.now()] == [10_000, 10_700]
    assert clock.drift == 301  # 300 us back, and the resolution
    monkeypatch.undo()


def test_a_lease_may_precede_the_reply_to_its_push():
    recorder = Recorder(1, 0)
    one, two = (Attempt("w", "faktory", "mail", 1, 2) for _ in range(2))
    assert (recorder.leased(5, one), recorder.leased(5, two)) == (1, 2)
    recorder.pushed(Pushed(5, "faktory", "jid", "mail", "k", 0, 3))
    assert recorder.counts == (1, 2)
    observations = recorder.close(9, 0)
    assert observations.jobs[5].attempts == [one, two]
    assert observations.totals()["ends"] == {"faktory left": 2}


def test_a_killed_server_ends_the_run_with_an_error(server):
    stop = threading.Timer(1.0, server.kill)
    stop.start()
    with pytest.raises(OSError):
        run("127.0.0.1", server.ports, Load(seconds=30, rate=100))
    stop.join()


def test_default_ports_are_from_the_configuration(monkeypatch):
    monkeypatch.setenv("MILLRACE_WORKQ_PORT", "4711")
    assert default_ports() | {"workq": 9922} == {
        "workq": 9922,
        "masenko": 12345,
        "faktory": 7419,
        "qless": 6380,
        "goqueue": 11223,
    }
    assert default_ports()["workq"] == 4711


def test_the_command_line_writes_the_observations(tmp_path):
    out = tmp_path / "seen.json"
    command = [sys.executable, BENCH / "workload.py", "--seconds", "1", "--rate", "60"]
    ran = subprocess.run(
        [*command, "--serve", tmp_path / "data", "--out", out],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    observations = msgspec.json.decode(out.read_bytes(), type=Observations)
    assert len(observations.jobs) == 60
    assert sum(observations.totals()["pushed"].values()) == 60
    assert "60 jobs in" in ran.stdout
    assert list((tmp_path / "data/lake/events").glob("day=*/server=*/*.parquet"))
    assert ran.stderr == ""
