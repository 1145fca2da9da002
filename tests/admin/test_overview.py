"""`overview`, with its samples and days."""

from itertools import pairwise

import pytest

from admin_room import Room
from millrace.admin.samples import (
    LATENCY_WINDOW,
    MAX_SAMPLED_QUEUES,
    SAMPLE_HISTORY_SIZE,
    SAMPLE_INTERVAL,
    SAMPLE_SLICE_SIZE,
)
from millrace.engine.settings import DAYS_PREFIX
from millrace.engine.statistics import DAY, HISTORY_DAYS, Statistics
from millrace.protocols.registry import FAKTORY
from wires import SECOND, START


@pytest.fixture
def room() -> Room:
    return Room()


def sample(room: Room, times: int = 1) -> None:
    """Fire the alarm of the service until it has taken this number of samples."""
    for _ in range(times):
        while (again := room.hub.samples.take(room.now)) == room.now:
            pass
        room.now = again


def worked(room: Room, jid: str, *, fails: bool = False) -> None:
    room.push(jid)
    job = room.lease()
    if fails:
        room.engine.fail(job, room.now, FAKTORY, "Oops", "it broke", [])
    else:
        room.engine.complete(job, room.now, FAKTORY)


def test_all_numbers(room):
    worked(room, "a")
    worked(room, "b", fails=True)
    room.push("c", "late", due_at=room.now + 60 * SECOND)
    room.push("d", "other")
    room.now += SECOND
    room.push("e", "other")
    room.engine.pause("late", paused=True, now=room.now)
    room.dead("f")
    room.hub.started_at, room.hub.memory_mb = START, lambda: 42
    reply = room.asks(overview=True)
    assert reply["counts"] == [2, 0, 2, 0, 0, 1]
    assert (reply["queues"], reply["paused_queues"], reply["retrying"]) == (3, 1, 1)
    assert (reply["processed"], reply["failures"]) == (2, 1)
    job = room.engine.find("d")
    oldest = {"jid": "d", "queue": "other", "ready_at": job.ready_at, "seq": job.seq}
    assert reply["oldest_job"] == oldest
    assert (reply["memory_mb"], reply["started_at"], reply["halted"]) == (42, START, "")
    (now,) = reply["samples"]
    assert now == [room.now, 6, 1, 1, 4, 0]
    assert reply["days"] == [{"day": room.now // DAY, "processed": 2, "failures": 1}]


def test_an_empty_server(room):
    reply = room.asks(overview=True)
    assert reply["counts"] == [0] * 6
    assert (reply["oldest_job"], reply["days"]) == (None, [])


def test_a_queue_with_only_a_waiter_is_not_counted(room):
    room.faktory_worker("w1").receive(b"FETCH nothing\r\n")
    reply = room.asks(overview=True)
    assert reply["queues"] == 0
    faktory = reply["protocols"][0]
    assert (faktory["name"], faktory["connections"], faktory["waiters"]) == ("faktory", 1, 1)
    assert faktory["commands"] == 1


def test_ports_are_reported(room):
    room.hub.ports = {"faktory": 7419, "web": 7420}
    reply = {row["name"]: row["port"] for row in room.asks(overview=True)["protocols"]}
    assert reply == {"faktory": 7419, "qless": 0, "control": 0}


def test_samples_cover_ten_minutes(room):
    room.push()
    sample(room, SAMPLE_HISTORY_SIZE + 5)
    samples = room.asks(overview=True)["samples"]
    assert len(samples) == SAMPLE_HISTORY_SIZE + 1
    assert {after[0] - before[0] for before, after in pairwise(samples[:-1])} == {SAMPLE_INTERVAL}
    assert samples[0][1:] == [1, 0, 0, 1, 0]
    (row,) = room.asks(queues={})["queues"]
    assert row["depths"] == [1] * SAMPLE_HISTORY_SIZE


def test_only_the_deepest_queues_are_sampled_in_slices(room):
    for n in range(SAMPLE_SLICE_SIZE + 100):
        room.push(f"job-{n}", f"queue-{n}")
    room.push("x", "queue-7")
    steps = 1
    while room.hub.samples.take(room.now) == room.now:
        steps += 1
    assert steps == 2
    depths = room.hub.samples.depths
    assert len(depths) == MAX_SAMPLED_QUEUES
    assert list(depths["queue-7"]) == [2]


def test_the_alarm_repeats(room):
    room.hub.begin(START)
    assert room.engine.timers.when((room.hub, "sample")) == START + SAMPLE_INTERVAL
    room.engine.tick(START + SAMPLE_INTERVAL)
    assert room.engine.alarms == [(room.hub, "sample")]
    room.hub.handle_alarm("sample", START + SAMPLE_INTERVAL)
    assert room.engine.timers.when((room.hub, "sample")) == START + 2 * SAMPLE_INTERVAL
    assert len(room.hub.samples.totals) == 2


def test_latencies_are_forgotten_after_ten_minutes(room):
    sample(room)
    worked(room, "a")
    room.hub.samples.measured.commits.add(700)
    sample(room, LATENCY_WINDOW // SAMPLE_INTERVAL)
    assert room.asks(queues={})["queues"][0]["run"]["count"] == 1
    assert room.asks(overview=True)["commit"]["p50"] == pytest.approx(700, rel=0.2)
    sample(room, LATENCY_WINDOW // SAMPLE_INTERVAL)
    assert room.asks(queues={})["queues"][0]["run"]["count"] == 0
    assert room.asks(overview=True)["commit"]["count"] == 0
    assert room.hub.samples.totals[-1].completed == 1


def test_windows_advance_after_the_clock_was_set_back(room):
    sample(room)
    worked(room, "a")
    room.now -= 10 * LATENCY_WINDOW
    sample(room)
    sample(room, LATENCY_WINDOW // SAMPLE_INTERVAL)
    assert room.asks(queues={})["queues"][0]["run"]["count"] == 0


def days(room: Room) -> list[tuple[int, int, int]]:
    reply = room.asks(overview=True)["days"]
    today = room.now // DAY
    return [(each["day"] - today, each["processed"], each["failures"]) for each in reply]


def test_ended_days_are_stored_and_kept_for_half_a_year(room):
    worked(room, "a")
    worked(room, "b", fails=True)
    sample(room)
    assert not any(key.startswith(DAYS_PREFIX) for key in room.engine.settings)
    room.now += DAY
    sample(room)
    assert days(room) == [(-1, 2, 1)]
    room.engine.statistics.days.clear()  # as after a month and a restart
    room.engine.statistics._totals = None
    assert days(room) == [(-1, 2, 1)]
    room.now += (HISTORY_DAYS - 2) * DAY
    sample(room)
    assert days(room) == [(1 - HISTORY_DAYS, 2, 1)]
    room.now += DAY
    sample(room)
    assert days(room) == []
    assert not any(key.startswith(DAYS_PREFIX) for key in room.engine.settings)


def test_no_day_is_stored_while_the_store_fails(room):
    worked(room, "a")
    room.now += DAY
    room.engine.unavailable_reason = "disk full"
    sample(room)
    assert not room.engine.settings
    assert days(room) == [(-1, 1, 0)]


def test_a_flush_forgets_the_days(room):
    worked(room, "a")
    room.now += DAY
    sample(room)
    assert days(room)
    room.engine.flush(room.now)
    assert days(room) == []
    assert not any(key.startswith(DAYS_PREFIX) for key in room.engine.settings)


def test_future_days_of_a_wrong_clock_are_omitted(room):
    room.now += 400 * DAY
    worked(room, "later")
    room.now -= 400 * DAY
    assert days(room) == []


def test_a_late_event_does_not_replace_a_stored_day(room):
    for jid in "abc":
        worked(room, jid)
    room.now += DAY
    sample(room)
    room.engine.take_changes()
    room.engine.statistics = Statistics()  # as after a month and a restart
    room.now -= DAY
    worked(room, "late")
    room.now += DAY
    sample(room, LATENCY_WINDOW // SAMPLE_INTERVAL)
    assert days(room) == [(-1, 3, 0)]
