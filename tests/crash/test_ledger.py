"""A crash test is worth what its ledger notices: each broken promise must be seen as one."""

import pytest
from ledger import FOREVER, Ledger, ViolationError


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def pushed(ledger: Ledger, jid: str = "some-job", retry: int = 25, at: str | None = None) -> dict:
    unit = ledger.pushing(jid, retry, at)
    ledger.pushed(jid)
    return unit


def restart(ledger: Ledger) -> None:
    ledger.life += 1


def test_an_acknowledged_push_that_is_not_there_is_lost(ledger):
    pushed(ledger)
    with pytest.raises(ViolationError, match="lost"):
        ledger.check_total(0)
    with pytest.raises(ViolationError, match=r"lost.*some-job"):
        ledger.check_nothing_left()


def test_an_unacknowledged_push_may_be_there_or_not(ledger):
    ledger.pushing("some-job", 25)
    ledger.check_total(0)
    ledger.check_total(1)
    ledger.check_nothing_left()


def test_what_was_not_there_must_never_appear_later(ledger):
    unit = ledger.pushing("some-job", 25)
    ledger.check_nothing_left()
    with pytest.raises(ViolationError, match="although it was done"):
        ledger.handed_out(unit)


def test_more_jobs_than_were_pushed(ledger):
    pushed(ledger)
    with pytest.raises(ViolationError, match="too many"):
        ledger.check_total(2)


def test_a_job_nobody_pushed(ledger):
    with pytest.raises(ViolationError, match="nobody ever pushed"):
        ledger.handed_out({"jid": "ghost", "args": []})


def test_a_job_that_was_done_comes_back(ledger):
    unit = pushed(ledger)
    job = ledger.handed_out(unit)
    ledger.finishing(job.jid)
    ledger.finished(job.jid)
    restart(ledger)
    with pytest.raises(ViolationError, match="although it was done"):
        ledger.handed_out(unit)


def test_an_unacknowledged_ack_leaves_both_open_until_the_job_is_seen(ledger):
    unit = pushed(ledger)
    ledger.finishing(ledger.handed_out(unit).jid)
    restart(ledger)
    ledger.check_total(0)
    ledger.check_total(1)
    ledger.handed_out(unit)
    with pytest.raises(ViolationError, match="lost"):
        ledger.check_total(0)


def test_a_job_seen_after_a_restart_was_pushed_whatever_the_client_heard(ledger):
    unit = ledger.pushing("some-job", 25)
    restart(ledger)
    ledger.handed_out(unit)
    with pytest.raises(ViolationError, match="lost"):
        ledger.check_nothing_left()


def test_two_leases_in_one_life(ledger):
    unit = pushed(ledger)
    ledger.handed_out(unit)
    with pytest.raises(ViolationError, match="twice"):
        ledger.handed_out(unit)
    restart(ledger)
    ledger.handed_out(unit)


def test_a_refused_push_must_not_be_there(ledger):
    unit = ledger.pushing("some-job", 25)
    ledger.refused("some-job")
    with pytest.raises(ViolationError, match="too many"):
        ledger.check_total(1)
    with pytest.raises(ViolationError, match="although it was done"):
        ledger.handed_out(unit)


def test_a_failure_that_was_acknowledged_and_forgotten(ledger):
    unit = pushed(ledger)
    job = ledger.handed_out(unit)
    ledger.failed(job, ledger.failing(job))
    with pytest.raises(ViolationError, match="failed 0 times"):
        ledger.handed_out(unit)
    ledger.handed_out({**unit, "failure": {"retry_count": 0}})


def test_a_job_may_come_again_before_the_sender_of_its_fail_has_heard(ledger):
    unit = pushed(ledger)
    job = ledger.handed_out(unit)
    failures = ledger.failing(job)
    failed_once = {**unit, "failure": {"retry_count": 0}}
    ledger.handed_out(failed_once)
    ledger.failed(job, failures)
    restart(ledger)
    ledger.handed_out(failed_once)


def test_a_failure_nobody_reported(ledger):
    unit = pushed(ledger)
    with pytest.raises(ViolationError, match="failed 1 times"):
        ledger.handed_out({**unit, "failure": {"retry_count": 0}})


def test_a_failure_without_retry_ends_the_job(ledger):
    unit = pushed(ledger, retry=0)
    job = ledger.handed_out(unit)
    failures = ledger.failing(job)
    ledger.check_total(0)
    ledger.check_total(1)
    ledger.failed(job, failures)
    with pytest.raises(ViolationError, match="although it was done"):
        ledger.handed_out(unit)


@pytest.mark.parametrize("field", ["args", "queue", "at", "retry", "jobtype"])
def test_a_job_that_changed(ledger, field):
    unit = pushed(ledger, at=FOREVER)
    with pytest.raises(ViolationError, match=f"another {field}"):
        ledger.handed_out({**unit, field: "changed"})


def test_what_a_flush_took_must_not_be_there(ledger):
    unit = pushed(ledger)
    ledger.flushed()
    with pytest.raises(ViolationError, match="too many"):
        ledger.check_total(1)
    with pytest.raises(ViolationError, match="although it was done"):
        ledger.handed_out(unit)
