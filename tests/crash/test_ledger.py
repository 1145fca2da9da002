"""A crash test depends on its ledger: it must detect each broken promise."""

import pytest
from audit import WINDOW, drain
from ledger import FOREVER, Ledger, ViolationError

from raw_faktory import RawFaktory


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def pushed(ledger: Ledger, jid: str = "some-job", retry: int = 25, at: str | None = None) -> dict:
    unit = ledger.pushing(jid, retry, at)
    ledger.pushed(jid)
    return unit


def restart(ledger: Ledger) -> None:
    ledger.life += 1


def test_a_missing_acknowledged_push_is_a_loss(ledger):
    pushed(ledger)
    with pytest.raises(ViolationError, match="lost"):
        ledger.check_total(0)
    with pytest.raises(ViolationError, match=r"lost.*some-job"):
        ledger.check_none_lost()


def test_an_unacknowledged_push_may_exist_or_not(ledger):
    ledger.pushing("some-job", 25)
    ledger.check_total(0)
    ledger.check_total(1)
    ledger.check_none_lost()


def test_an_absent_job_must_not_appear_later(ledger):
    unit = ledger.pushing("some-job", 25)
    ledger.check_none_lost()
    with pytest.raises(ViolationError, match="although it was done"):
        ledger.handed_out(unit)


def test_excess_jobs_are_a_violation(ledger):
    pushed(ledger)
    with pytest.raises(ViolationError, match="excess jobs"):
        ledger.check_total(2)


def test_a_job_that_was_never_pushed_is_a_violation(ledger):
    with pytest.raises(ViolationError, match="never pushed"):
        ledger.handed_out({"jid": "ghost", "args": []})


def test_a_completed_job_that_is_leased_again_is_a_violation(ledger):
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


def test_a_job_seen_after_a_restart_counts_as_pushed(ledger):
    unit = ledger.pushing("some-job", 25)
    restart(ledger)
    ledger.handed_out(unit)
    with pytest.raises(ViolationError, match="lost"):
        ledger.check_none_lost()


def test_two_leases_in_one_life_are_a_violation(ledger):
    unit = pushed(ledger)
    ledger.handed_out(unit)
    with pytest.raises(ViolationError, match="twice"):
        ledger.handed_out(unit)
    restart(ledger)
    ledger.handed_out(unit)


def test_a_refused_push_must_not_exist(ledger):
    unit = ledger.pushing("some-job", 25)
    ledger.refused("some-job")
    with pytest.raises(ViolationError, match="excess jobs"):
        ledger.check_total(1)
    with pytest.raises(ViolationError, match="although it was done"):
        ledger.handed_out(unit)


def test_a_lost_acknowledged_failure_is_a_violation(ledger):
    unit = pushed(ledger)
    job = ledger.handed_out(unit)
    ledger.failed(job, ledger.failing(job))
    with pytest.raises(ViolationError, match="failed 0 times"):
        ledger.handed_out(unit)
    ledger.handed_out({**unit, "failure": {"retry_count": 0}})


def test_a_job_may_be_leased_before_the_reply_to_its_fail(ledger):
    unit = pushed(ledger)
    job = ledger.handed_out(unit)
    failures = ledger.failing(job)
    failed_once = {**unit, "failure": {"retry_count": 0}}
    ledger.handed_out(failed_once)
    ledger.failed(job, failures)
    restart(ledger)
    ledger.handed_out(failed_once)


def test_an_unreported_failure_is_a_violation(ledger):
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
def test_a_changed_job_is_a_violation(ledger, field):
    unit = pushed(ledger, at=FOREVER)
    with pytest.raises(ViolationError, match=f"another {field}"):
        ledger.handed_out({**unit, field: "changed"})


def test_a_flushed_job_must_not_exist(ledger):
    unit = pushed(ledger)
    ledger.flushed()
    with pytest.raises(ViolationError, match="excess jobs"):
        ledger.check_total(1)
    with pytest.raises(ViolationError, match="although it was done"):
        ledger.handed_out(unit)


def test_a_repeated_unacknowledged_push_may_exist_twice(ledger):
    unit = ledger.pushing("some-job", 25)
    assert ledger.sending_again(10) == []
    restart(ledger)
    assert ledger.sending_again(10) == [unit]
    assert ledger.sending_again(10) == []
    ledger.pushed("some-job")
    for count in (1, 2):
        ledger.check_total(count)
    with pytest.raises(ViolationError, match="lost"):
        ledger.check_total(0)
    with pytest.raises(ViolationError, match="excess jobs"):
        ledger.check_total(3)
    ledger.handed_out(unit)
    ledger.handed_out(unit)
    with pytest.raises(ViolationError, match="twice"):
        ledger.handed_out(unit)


def test_after_the_end_of_one_copy_the_other_may_exist(ledger):
    unit = ledger.pushing("some-job", 25)
    restart(ledger)
    ledger.sending_again(1)
    ledger.pushed("some-job")
    for left in (1, 0):
        job = ledger.handed_out(unit)
        ledger.finishing(job.jid)
        ledger.finished(job.jid)
        ledger.check_total(left)
        ledger.check_total(0)
    with pytest.raises(ViolationError, match="although it was done"):
        ledger.handed_out(unit)


@pytest.mark.parametrize("retry", [25, 0])
def test_a_push_acknowledged_after_the_end_of_one_copy_promises_no_other_copy(ledger, retry):
    unit = ledger.pushing("some-job", retry)
    restart(ledger)
    ledger.sending_again(1)
    job = ledger.handed_out(unit)
    if retry:
        ledger.finishing(job.jid)
        ledger.finished(job.jid)
    else:
        ledger.failed(job, ledger.failing(job))
    ledger.pushed("some-job")
    for count in (0, 1):
        ledger.check_total(count)
    with pytest.raises(ViolationError, match="excess jobs"):
        ledger.check_total(2)
    restart(ledger)
    ledger.handed_out(unit)
    with pytest.raises(ViolationError, match="lost"):
        ledger.check_total(0)


def test_the_audit_accepts_the_end_of_a_job_whose_two_fails_are_in_different_windows(
    ledger, server
):
    ledger.handed_out(ledger.pushing("sent-once", 25))
    for n in range(WINDOW):
        ledger.pushing(f"job-{n}", 25)
    restart(ledger)
    for unit in ledger.sending_again(WINDOW):
        ledger.pushed(unit["jid"])
        ledger.finishing(ledger.handed_out(unit).jid)
    with RawFaktory(server.port, wid="auditor") as auditor:
        drain(auditor, ledger)


def test_a_push_that_was_acknowledged_or_seen_is_not_sent_again(ledger):
    pushed(ledger, "acknowledged")
    ledger.handed_out(ledger.pushing("seen", 25))
    restart(ledger)
    assert ledger.sending_again(10) == []
