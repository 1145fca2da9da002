"""From rows to columns: every value is in its column, and every row can be shipped."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import event_tables
from millrace.engine.events import EVENT_VERSION, Event
from millrace.engine.job import FOREVER, NO_PROTOCOL
from millrace.engine.states import DEAD, DONE, GONE, LEASED, NEW, READY, SCHEDULED
from millrace.journal import columns, schema
from millrace.protocols.registry import FAKTORY
from scene import SECOND, START, Scene

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVENT = Event(
    time=START,
    type="pushed",
    seq=7,
    jid="job-7",
    queue="mail",
    kind="SendMail",
    origin=FAKTORY,
    actor=FAKTORY,
    worker="",
    attempt=0,
    state=READY,
    rank=0,
    ready_at=START,
    leased_at=0,
    wait=0,
    run=0,
    due=0,
    size=2,
    before=NEW,
    created=START,
)
#: The columns that only the end of a job has.
TOTALS = (
    "leases", "failures", "wait_total_us", "run_total_us", "first_leased_at", "first_queue",
    "outcome", "ended_at",
)  # fmt: skip
LEASE = EVENT._replace(
    type="leased", before=READY, state=LEASED, attempt=1, leased_at=START + 5, wait=5
)


def rows(*events: tuple[Any, ...], version: int = EVENT_VERSION) -> list[dict[str, Any]]:
    """The columns of these events."""
    table = event_tables.table("5e7", 40, version, events)
    assert table.schema.equals(schema.arrow())
    table.validate(full=True)
    for field in schema.FIELDS:
        assert not (field.required and table.column(field.name).null_count), field.name
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def row(event: tuple[Any, ...], version: int = EVENT_VERSION) -> dict[str, Any]:
    return rows(event, version=version)[0]


def at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def test_each_value_is_in_its_column() -> None:
    event = Event(
        time=START + 9,
        type="failed",
        seq=7,
        jid="job-7",
        queue="mail",
        kind="SendMail",
        origin=FAKTORY,
        actor=4,
        worker="w-1",
        attempt=2,
        state=SCHEDULED,
        rank=3,
        ready_at=START + 1,
        leased_at=START + 5,
        wait=3,
        run=4,
        due=START + SECOND,
        size=11,
        before=LEASED,
        created=START,
        group="ValueError",
        message="no such thing",
        fingerprint="0123456789abcdef",
        tags=("red", "blue"),
        source="",
        holder=FAKTORY,
        renewals=2,
        repeat=1,
    )
    assert row(event) == {
        "server": "5e7",
        "event_id": 40,
        "time": at(START + 9),
        "type": "failed",
        "seq": 7,
        "jid": "job-7",
        "queue": "mail",
        "kind": "SendMail",
        "origin": "faktory",
        "actor": "qless",
        "worker": "w-1",
        "attempt": 2,
        "before": "leased",
        "state": "scheduled",
        "priority": 3.0,
        "created": at(START),
        "ready_at": at(START + 1),
        "leased_at": at(START + 5),
        "wait_us": 3,
        "run_us": 4,
        "due": at(START + SECOND),
        "payload_bytes": 11,
        "error_group": "ValueError",
        "error_message": "no such thing",
        "fingerprint": "0123456789abcdef",
        "source": None,
        "tags": ["red", "blue"],
        "version": EVENT_VERSION,
        "holder": "faktory",
        "renewals": 2,
        "repeat": True,
        **dict.fromkeys(TOTALS),
    }


def test_the_end_of_a_job_has_its_totals() -> None:
    ended = LEASE._replace(
        type="completed",
        before=LEASED,
        state=GONE,
        holder=FAKTORY,
        leases=2,
        failures=1,
        wait_total=9,
        run_total=8,
        first_leased_at=START + 5,
        outcome="completed",
        ended_at=START + 7,
    )
    found = row(ended)
    assert [found[name] for name in TOTALS] == [
        2, 1, 9, 8, at(START + 5), "mail", "completed", at(START + 7)
    ]  # fmt: skip
    assert row(ended._replace(first_queue="post"))["first_queue"] == "post"
    cancelled = EVENT._replace(type="cancelled", before=READY, state=GONE, outcome="cancelled")
    assert [row(cancelled)[name] for name in TOTALS] == [
        0, 0, 0, 0, None, "mail", "cancelled", at(0)
    ]  # fmt: skip


def test_totals_that_are_unknown_are_null() -> None:
    ended = LEASE._replace(
        type="completed", before=LEASED, state=GONE, wait=-1, holder=FAKTORY,
        leases=-1, failures=-1, wait_total=-1, run_total=-1, outcome="completed", ended_at=START,
    )  # fmt: skip
    found = row(ended)
    assert found["wait_us"] is None
    assert [found[name] for name in TOTALS[:5]] == [None] * 5
    assert found["outcome"] == "completed"


def test_rows_of_version_2_have_no_totals() -> None:
    ended = LEASE._replace(type="completed", before=LEASED, state=GONE, wait=0)
    found = row(ended[:20], version=2)
    assert [found[name] for name in ("wait_us", "holder", "renewals", *TOTALS)] == [None] * 11
    failed = LEASE._replace(type="failed", before=LEASED, state=SCHEDULED, fingerprint="f")
    assert row(failed[:25], version=2)["repeat"] is None


def test_events_are_numbered_from_the_first_on() -> None:
    assert [each["event_id"] for each in rows(EVENT, LEASE, EVENT)] == [40, 41, 42]


def test_empty_values_are_null() -> None:
    found = row(EVENT._replace(actor=NO_PROTOCOL))
    nothing = [name for name, value in found.items() if value is None]
    assert nothing == [
        "actor", "worker", "leased_at", "wait_us", "run_us", "due", "error_group",
        "error_message", "fingerprint", "source", "tags", "holder", "renewals", "repeat", *TOTALS,
    ]  # fmt: skip


def test_short_and_long_rows_can_be_mixed() -> None:
    """The engine omits empty values at the end of a row."""
    long = EVENT._replace(tags=("red",))
    assert [each["tags"] for each in rows(EVENT[:20], long, EVENT[:20])] == [None, ["red"], None]


def test_rows_of_the_store_are_lists() -> None:
    assert row(list(EVENT)) == row(EVENT)  # type: ignore[arg-type]


def test_no_rows_give_an_empty_table() -> None:
    assert rows() == []


def test_a_wait_of_zero_is_a_wait() -> None:
    assert row(LEASE._replace(wait=0))["wait_us"] == 0


@pytest.mark.parametrize(
    ("cause", "before", "state", "expected"),
    [
        ("completed", LEASED, GONE, True),
        ("completed", READY, DONE, True),  # as the statistics count it
        ("advanced", LEASED, DONE, True),
        ("failed", LEASED, DEAD, True),
        ("failed", READY, DEAD, False),
        ("expired", LEASED, READY, True),
        ("expired", LEASED, LEASED, False),
        ("released", LEASED, READY, False),
        ("cancelled", LEASED, GONE, False),
        ("moved", LEASED, READY, False),
        ("pushed", NEW, READY, False),
    ],
)
def test_the_run_time_is_in_the_event_that_ends_the_lease(
    cause: str, before: int, state: int, expected: bool
) -> None:
    found = row(LEASE._replace(type=cause, before=before, state=state))
    assert found["run_us"] == (0 if expected else None)


def test_a_flush() -> None:
    scene = Scene()
    scene.push("job-1")
    scene.engine.flush(scene.now)
    (found,) = (each for each in rows(*scene.engine.change_set.events) if each["type"] == "flushed")
    assert (found["seq"], found["before"], found["state"]) == (1, "gone", "gone")
    assert (found["created"], found["jid"], found["origin"]) == (None, "", "")


# Odd values


@pytest.mark.parametrize("time", [FOREVER, columns.LAST_TIME + 1, columns.FIRST_TIME - 1, -FOREVER])
@pytest.mark.parametrize("name", ["created", "ready_at", "leased_at", "due"])
def test_a_time_out_of_range_is_null(name: str, time: int) -> None:
    assert row(LEASE._replace(**{name: time}))[name] is None


def test_the_event_time_is_limited_to_the_valid_range() -> None:
    last, first = rows(EVENT._replace(time=FOREVER), EVENT._replace(time=-FOREVER))
    assert (last["time"].year, first["time"].year) == (9999, 1)


def test_a_clock_may_start_at_0() -> None:
    """For example the clock of a Qless client: a job pushed and leased at 0 has both times."""
    found = row(LEASE._replace(time=0, created=0, leased_at=0, ready_at=0))
    assert (found["time"], found["created"], found["leased_at"]) == (EPOCH, EPOCH, EPOCH)


def test_messages_are_cut() -> None:
    long = EVENT._replace(type="failed", group="g", message="ä" * 5000, fingerprint="f")
    assert row(long)["error_message"] == "ä" * 4096


def test_an_error_without_a_message_is_an_error() -> None:
    found = row(EVENT._replace(type="failed", fingerprint="f"))
    assert (found["error_group"], found["error_message"], found["fingerprint"]) == ("", "", "f")


@pytest.mark.parametrize(
    ("rank", "expected"),
    [(1 << 62, 2.0**62), (-0.5, -0.5), (10**400, float("inf")), (-(10**400), float("-inf")),
     (None, 0.0), ("high", 0.0)],
)  # fmt: skip
def test_any_rank_is_a_number(rank: Any, expected: float) -> None:
    assert [each["priority"] for each in rows(EVENT, EVENT._replace(rank=rank))] == [0.0, expected]


@pytest.mark.parametrize("name", ["seq", "attempt", "size", "time", "wait", "leased_at", "due"])
@pytest.mark.parametrize("value", [1 << 80, -(1 << 80), 1.5, "seven"])
def test_any_number_is_accepted(name: str, value: Any) -> None:
    assert [each["jid"] for each in rows(EVENT, LEASE._replace(**{name: value}))] == ["job-7"] * 2


@pytest.mark.parametrize("name", ["origin", "actor", "state", "before"])
@pytest.mark.parametrize("value", [99, -1])
def test_a_number_without_a_name_is_shown_as_a_number(name: str, value: int) -> None:
    assert [each[name] for each in rows(EVENT, EVENT._replace(**{name: value}))][1] == str(value)


@pytest.mark.parametrize("name", ["jid", "queue", "kind", "worker", "type"])
@pytest.mark.parametrize(
    ("value", "expected"), [("a\0b", "a\0b"), ("\ud800", "?"), (b"\xff", "�"), (7, "7")]
)
def test_any_text_is_a_text(name: str, value: Any, expected: str) -> None:
    assert [each[name] for each in rows(EVENT, EVENT._replace(**{name: value}))][1] == expected


@pytest.mark.parametrize(("tags", "expected"), [(["a", 7, "\ud800"], ["a", "7", "?"]), (7, ["7"])])
def test_any_tags_are_texts(tags: Any, expected: list[str]) -> None:
    assert [each["tags"] for each in rows(EVENT, EVENT._replace(tags=tags))] == [None, expected]


# Version 1, which had neither `before` nor `created` nor `source`


def version_1(event: Event) -> tuple[Any, ...]:
    return (*event[:18], *event[20:24])


@pytest.mark.parametrize(
    ("cause", "state", "run", "before"),
    [
        ("pushed", READY, 0, "new"),
        ("due", READY, 0, "scheduled"),
        ("unblocked", READY, 0, "blocked"),
        ("leased", LEASED, 0, "ready"),
        ("renewed", LEASED, 0, "leased"),
        ("released", READY, 0, "leased"),
        ("expired", READY, 9, "leased"),
        ("doomed", DEAD, 0, "blocked"),
        ("advanced", DONE, 9, "leased"),
        ("completed", GONE, 9, "leased"),
        ("completed", GONE, 0, None),
        ("failed", DEAD, 9, "leased"),
        ("cancelled", GONE, 0, None),
        ("flushed", GONE, 0, "gone"),
    ],
)
def test_version_1_has_the_previous_state_where_it_is_unique(
    cause: str, state: int, run: int, before: str | None
) -> None:
    event = LEASE._replace(type=cause, state=state, run=run)
    found = row(version_1(event), version=1)
    assert (found["before"], found["version"], found["source"]) == (before, 1, None)


def test_version_1_has_the_push_time_if_the_push_is_present() -> None:
    lease = LEASE._replace(ready_at=START + 3)
    pushed, leased = rows(version_1(EVENT), version_1(lease), version=1)
    assert (pushed["created"], leased["created"]) == (at(START), at(START))
    assert row(version_1(lease), version=1)["created"] == at(START + 3)
    assert row(version_1(lease._replace(ready_at=0)), version=1)["created"] is None


def test_version_1_has_its_errors_and_tags() -> None:
    event = LEASE._replace(
        type="failed", state=DEAD, group="g", message="m", fingerprint="f", tags=("red",)
    )
    found = row(version_1(event), version=1)
    expected = [found[name] for name in ("error_group", "error_message", "fingerprint", "tags")]
    assert expected == ["g", "m", "f", ["red"]]
