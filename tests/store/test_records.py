"""Rows of jobs and statistics have the bytes that earlier versions wrote, and load from them."""

import msgspec
import pytest

from millrace.engine.details import JobDetails, LastError, LimitWait
from millrace.engine.job import Extra, Failure, Job, JobTotals, LeaseHistory, ensure_history
from millrace.engine.limits import Limit, read_limit
from millrace.engine.recurring import RecurringJob, read_recurring
from millrace.engine.statistics import DurationSummary, QueueDay
from millrace.store import records
from support.plain import copy_of, values

# Recorded with format 3, when these classes were msgspec structs.
PLAIN = bytes.fromhex(
    "dc001c07a56a6f622d37a46d61696cc4035b315d010a1419c4027b7da764656661756c7402000a0000000a00"
    "00a000c0c0000000a0c0"
)
FULL = bytes.fromhex(
    "dc001c08a36ac3bca46d61696cc401ff040a1405c40173a17105cbbff8000000000000fd6302011e2832a277"
    "3104950102a147a14d92a161a1629891a3726564920304c40100c3a4646561649f05919301a370757481a171"
    "a1619192a3726564030bc394a167a16dcb3ff8000000000000a177a272310c91a16b0d93a16b0e0591a16cc3"
    "f110a46c6f61643c64035aa66661696c65649902010304050607a56669727374c2"
)
STATE = bytes.fromhex(
    "dc001208a17105cbbff8000000000000fd6302011e2832a2773104950102a147a14d92a161a1629891a37265"
    "64920304c40100c3a4646561649f05919301a370757481a171a1619192a3726564030bc394a167a16dcb3ff8"
    "000000000000a177a272310c91a16b0d93a16b0e0591a16cc3f110a46c6f61643c5aa66661696c6564990201"
    "0304050607a56669727374c2"
)
DAY = bytes.fromhex(
    "97a171cd4e209402cb3ff8000000000000cb3fe00000000000008200013c019400cb0000000000000000cb00"
    "0000000000000080010203"
)
LIMIT = bytes.fromhex("930305f9")
RECURRING = bytes.fromhex("dc0012a172a16bc4027b7da1713c00050091a1744d0191a178c3c20804a2703ac3")


def plain_job() -> Job:
    return Job(
        7, "job-7", "mail", b"[1]", 1, 10, 20, 25, b"{}", "default", 2, 0, 10, 0, 10,
    )  # fmt: skip


def full_job() -> Job:
    details = JobDetails(
        5, [(1, "put", {"q": "a"})], [("red", 3)], 11, True, LastError("g", "m", 1.5, "w"), "r1", 12,
        ["k"], 13, LimitWait("k", 14, 5), ["l"], True, -15, 16,
    )  # fmt: skip
    extra = Extra(["red"], [3, 4], b"\x00", True, "dead", details, "load", 60)
    totals = JobTotals(2, 1, 3, 4, 5, 6, 7, "first", False)
    failure = Failure(1, 2, "G", "M", ["a", "b"])
    history = LeaseHistory(2, 1, 40, 50, "w1", 4, failure, 90, "failed", totals)
    return Job(
        8, "jü", "mail", b"\xff", 4, 10, 20, 5, b"s", "q", 5, -1.5, -3, 99, 30, history, extra,
        100, 3,
    )  # fmt: skip


def full_day() -> QueueDay:
    return QueueDay(
        "q", 20000, DurationSummary(2, 1.5, 0.5, {0: 1, 60: 1}), DurationSummary(), 1, 2, 3
    )


@pytest.mark.parametrize(("job", "record"), [(plain_job(), PLAIN), (full_job(), FULL)])
def test_the_row_of_a_job_has_the_recorded_bytes(job: Job, record: bytes) -> None:
    assert records.encode(job) == record
    assert records.encode(records.job_row(job)) == record
    assert records.encode(records.decode_job(record)) == record


def test_backtraces_of_earlier_failures_survive_a_restart() -> None:
    job = plain_job()
    ensure_history(job).failure = Failure(
        1, 2, "G", "M", ["a"], 3, [(2, 1, "E", "first", ["b", "c"])]
    )
    found = records.decode_job(records.encode(job)).failure
    assert found is not None
    assert (found.attempt, found.earlier) == (3, [(2, 1, "E", "first", ["b", "c"])])
    other = plain_job()
    records.apply_state(other, records.decode_any(records.encode(records.state_row(job))))
    assert values(other) == values(job)


def test_the_changing_fields_have_the_recorded_bytes() -> None:
    job = full_job()
    assert records.encode(records.state_row(job)) == STATE
    other = copy_of(plain_job(), seq=8)
    records.apply_state(other, records.decode_any(STATE))
    assert records.encode(records.state_row(other)) == STATE


def test_statistics_have_the_recorded_bytes() -> None:
    assert records.encode(full_day()) == DAY
    assert records.encode(records.decode_day(DAY)) == DAY


def test_settings_have_the_recorded_bytes() -> None:
    limit = Limit(3, 5, -7)
    assert msgspec.msgpack.encode(limit.fields()) == LIMIT
    assert read_limit(LIMIT).fields() == limit.fields()
    recurring = RecurringJob(
        "r", "k", b"{}", "q", 60, 0, 5, 0, ["t"], 77, 1, ["x"], True, False, 8, 4, "p:", True
    )
    assert msgspec.msgpack.encode(recurring.fields()) == RECURRING
    assert read_recurring(RECURRING).fields() == recurring.fields()


@pytest.mark.parametrize("fields", range(23, 28))
def test_a_shorter_row_of_an_older_format_loads(fields: int) -> None:
    row = records.decode_any(PLAIN)[:fields]
    assert values(records.job_from_row(row)) == values(plain_job())


def test_details_of_thirteen_fields_load() -> None:
    row = records.decode_any(FULL)
    row[records.EXTRA_INDEX][records.DETAILS_INDEX] = row[records.EXTRA_INDEX][
        records.DETAILS_INDEX
    ][:13]
    extra = records.job_from_row(row).extra
    assert extra is not None
    assert extra.details is not None
    assert (extra.details.lower_first, extra.details.clock_offset, extra.details.lease_offset) == (
        True,
        0,
        0,
    )


def test_a_row_with_a_wrong_number_of_fields_is_refused() -> None:
    row = records.decode_any(PLAIN)
    for wrong in (row[:22], [*row, 1]):
        with pytest.raises((TypeError, IndexError)):
            records.job_from_row(list(wrong))
