"""`overview`, and the samples and days it tells of."""

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
from millrace.engine.engine import DAYS
from millrace.engine.job import FAKTORY
from millrace.engine.stats import DAY, HISTORY_DAYS, Statistics
from wires import SECOND, START


@pytest.fixture
def room() -> Room:
    return Room()


def sample(room: Room, times: int = 1) -> None:
    """Let the hub's alarm ring as often as it takes for so many samples."""
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


def test_all_of_it_in_numbers(room):
    worked(room, "a")
    worked(room, "b", fails=True)
    room.push("c", "late", due=room.now + 60 * SECOND)
    room.push("d", "other")
    room.now += SECOND
    room.push("e", "other")
    room.engine.pause("late", paused=True, now=room.now)
    room.dead("f")
    room.hub.started_at, room.hub.memory_mb = START, lambda: 42
    told = room.asks(overview=True)
    assert told["counts"] == [2, 0, 2, 0, 0, 1]
    assert (told["queues"], told["paused"], told["retrying"]) == (3, 1, 1)
    assert (told["processed"], told["failures"]) == (2, 1)
    job = room.engine.find("d")
    oldest = {"jid": "d", "queue": "other", "ready_at": job.ready_at, "seq": job.seq}
    assert told["oldest_job"] == oldest
    assert (told["memory_mb"], told["started_at"], told["halted"]) == (42, START, "")
    (now,) = told["samples"]
    assert now == [room.now, 6, 1, 1, 4, 0]
    assert told["days"] == [{"day": room.now // DAY, "processed": 2, "failures": 1}]


def test_an_empty_server(room):
    told = room.asks(overview=True)
    assert told["counts"] == [0] * 6
    assert (told["oldest_job"], told["days"]) == (None, [])


def test_a_name_that_somebody_waits_for_is_no_queue(room):
    room.faktory_worker("w1").receive(b"FETCH nothing\r\n")
    told = room.asks(overview=True)
    assert told["queues"] == 0
    faktory = told["protocols"][0]
    assert (faktory["name"], faktory["connections"], faktory["waiters"]) == ("faktory", 1, 1)
    assert faktory["commands"] == 1


def test_ports_are_told(room):
    room.hub.ports = {"faktory": 7419, "web": 7420}
    told = {row["name"]: row["port"] for row in room.asks(overview=True)["protocols"]}
    assert told == {"faktory": 7419, "qless": 0, "control": 0}


def test_samples_are_kept_for_ten_minutes(room):
    room.push()
    sample(room, SAMPLE_HISTORY_SIZE + 5)
    samples = room.asks(overview=True)["samples"]
    assert len(samples) == SAMPLE_HISTORY_SIZE + 1
    assert {after[0] - before[0] for before, after in pairwise(samples[:-1])} == {SAMPLE_INTERVAL}
    assert samples[0][1:] == [1, 0, 0, 1, 0]
    (row,) = room.asks(queues={})["queues"]
    assert row["depths"] == [1] * SAMPLE_HISTORY_SIZE


def test_only_the_deepest_queues_are_sampled_and_some_at_a_time(room):
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


def test_the_alarm_rings_again(room):
    room.hub.begin(START)
    assert room.engine.timers.when((room.hub, "sample")) == START + SAMPLE_INTERVAL
    room.engine.tick(START + SAMPLE_INTERVAL)
    assert room.engine.alarms == [(room.hub, "sample")]
    room.hub.alarm("sample", START + SAMPLE_INTERVAL)
    assert room.engine.timers.when((room.hub, "sample")) == START + 2 * SAMPLE_INTERVAL
    assert len(room.hub.samples.totals) == 2


def test_what_took_long_is_forgotten_after_ten_minutes(room):
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


def test_windows_turn_also_when_the_clock_was_set_back(room):
    sample(room)
    worked(room, "a")
    room.now -= 10 * LATENCY_WINDOW
    sample(room)
    sample(room, LATENCY_WINDOW // SAMPLE_INTERVAL)
    assert room.asks(queues={})["queues"][0]["run"]["count"] == 0


def days(room: Room) -> list[tuple[int, int, int]]:
    told = room.asks(overview=True)["days"]
    today = room.now // DAY
    return [(each["day"] - today, each["processed"], each["failures"]) for each in told]


def test_days_are_noted_when_they_are_over_and_kept_for_half_a_year(room):
    worked(room, "a")
    worked(room, "b", fails=True)
    sample(room)
    assert not any(key.startswith(DAYS) for key in room.engine.notes)
    room.now += DAY
    sample(room)
    assert days(room) == [(-1, 2, 1)]
    room.engine.statistics.days.clear()  # as they are after a month, and a restart
    room.engine.statistics._totals = None
    assert days(room) == [(-1, 2, 1)]
    room.now += (HISTORY_DAYS - 2) * DAY
    sample(room)
    assert days(room) == [(1 - HISTORY_DAYS, 2, 1)]
    room.now += DAY
    sample(room)
    assert days(room) == []
    assert not any(key.startswith(DAYS) for key in room.engine.notes)


def test_nothing_is_noted_while_nothing_can_be_kept(room):
    worked(room, "a")
    room.now += DAY
    room.engine.halted = "disk full"
    sample(room)
    assert not room.engine.notes
    assert days(room) == [(-1, 1, 0)]


def test_a_flush_forgets_the_days(room):
    worked(room, "a")
    room.now += DAY
    sample(room)
    assert days(room)
    room.engine.flush(room.now)
    assert days(room) == []
    assert not any(key.startswith(DAYS) for key in room.engine.notes)


def test_days_of_wrong_clocks_are_not_told(room):
    room.now += 400 * DAY
    worked(room, "later")
    room.now -= 400 * DAY
    assert days(room) == []


def test_a_straggler_does_not_replace_what_was_noted(room):
    for jid in "abc":
        worked(room, jid)
    room.now += DAY
    sample(room)
    room.engine.take_batch()
    room.engine.statistics = Statistics()  # as after a month, and a restart
    room.now -= DAY
    worked(room, "late")
    room.now += DAY
    sample(room, LATENCY_WINDOW // SAMPLE_INTERVAL)
    assert days(room) == [(-1, 3, 0)]
