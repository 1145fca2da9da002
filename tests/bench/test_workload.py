"""The believable workload: the same jobs from the same seed, and a witness that nobody can shake.

That what it wrote down is what the server did is shown in tests/pipeline/test_end_to_end.py.
"""

import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from crew import UNTOLD, Place, Worker  # noqa: E402
from plans import DRAFTS, QUEUES, Plan, plans  # noqa: E402
from witness import Attempt, Notebook, Pushed, Witness  # noqa: E402
from workload import Load, run, usual_ports  # noqa: E402


def test_a_seed_says_everything_that_is_pushed():
    assert plans(1, 5, 100) == plans(1, 5, 100)
    assert plans(1, 5, 100) != plans(2, 5, 100)


def test_so_many_jobs_in_the_order_of_their_pushes_some_at_once():
    found = plans(1, 10, 200)
    moments = [plan.at for plan in found]
    assert len(found) == 2000
    assert moments == sorted(moments)
    most = max(sum(at <= each < at + 0.5 for each in moments) for at in range(10))
    assert most > 1.5 * 2000 / 20


def test_the_script_has_every_outcome_and_every_pair_of_protocols():
    scripted = [plan for plan in plans(1, 1, 1) if plan.worker]
    deeds = {deed for plan in scripted for deed in plan.deeds}
    assert deeds == {"complete", "fail", "bury", "release", "leave"}
    assert len({(plan.protocol, plan.worker) for plan in scripted}) == 25
    returning = [plan.queue for plan in scripted if plan.deeds != ("complete",)]
    assert len(returning) == len(set(returning))


def test_only_what_nobody_works_at_is_withdrawn():
    assert {plan.queue == DRAFTS for plan in plans(1, 10, 200) if plan.withdrawn} == {True}
    assert DRAFTS not in QUEUES
    assert {plan.withdrawn for plan in plans(1, 10, 200) if plan.queue == DRAFTS} == {True}


def test_a_job_that_somebody_dies_with_has_little_time():
    for plan in plans(1, 10, 200):
        assert plan.short == ("leave" in plan.deeds)


def test_the_last_deed_stands_for_all_later_ones():
    plan = plans(1, 1, 1)[0]._replace(deeds=("fail", "complete"))
    assert [plan.deed(attempt) for attempt in (1, 2, 3)] == ["fail", "complete", "complete"]


@pytest.mark.parametrize("protocol", sorted(UNTOLD))
def test_who_would_not_be_told_does_not_end_what_has_little_time(server, protocol):
    place = Place("127.0.0.1", server.ports, [], 1)
    worker = Worker(place, protocol, "w", ["mail"])
    plan: Plan = plans(1, 1, 1)[0]
    assert worker._able("complete", plan._replace(ttr=2.0)) == "leave"
    assert worker._able("complete", plan._replace(ttr=1800.0)) == "complete"


def test_a_worker_may_have_a_job_before_its_producer_knows():
    notebook = Notebook(1, 0)
    one, two = (Attempt("w", "faktory", "mail", 1, 2) for _ in range(2))
    assert (notebook.leased(5, one), notebook.leased(5, two)) == (1, 2)
    notebook.pushed(Pushed(5, "faktory", "jid", "mail", "k", 0, 3))
    assert notebook.counts == (1, 2)
    witness = notebook.close(9)
    assert witness.jobs[5].attempts == [one, two]
    assert witness.totals()["ends"] == {"faktory left": 2}


def test_a_server_that_goes_ends_it_with_an_error(server):
    stop = threading.Timer(1.0, server.kill)
    stop.start()
    with pytest.raises(OSError):
        run("127.0.0.1", server.ports, Load(seconds=30, rate=100))
    stop.join()


def test_the_usual_ports_are_those_of_the_configuration(monkeypatch):
    monkeypatch.setenv("MILLRACE_WORKQ_PORT", "4711")
    assert usual_ports() | {"workq": 9922} == {
        "workq": 9922,
        "masenko": 12345,
        "faktory": 7419,
        "qless": 6380,
        "goqueue": 11223,
    }
    assert usual_ports()["workq"] == 4711


def test_by_hand(tmp_path):
    out = tmp_path / "seen.json"
    command = [sys.executable, BENCH / "workload.py", "--seconds", "1", "--rate", "60"]
    ran = subprocess.run(
        [*command, "--serve", tmp_path / "data", "--out", out],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    witness = msgspec.json.decode(out.read_bytes(), type=Witness)
    assert len(witness.jobs) == 60
    assert sum(witness.totals()["pushed"].values()) == 60
    assert "60 jobs in" in ran.stdout
    assert list((tmp_path / "data/lake/landing").glob("ev-*.parquet"))
    assert ran.stderr == ""
