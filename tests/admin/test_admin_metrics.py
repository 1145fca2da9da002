"""`metrics`: a limited number of series for any number of queues, and histograms with exact sums."""

import pytest

from admin_room import Room
from millrace.protocols.registry import FAKTORY
from wires import SECOND


@pytest.fixture
def room() -> Room:
    return Room()


def test_the_deepest_queues_and_the_sum_of_the_other_queues(room):
    for n in range(5):
        for k in range(n + 1):
            room.push(f"job-{n}-{k}", f"queue-{n}")
            room.now += 1
    reply = room.asks(metrics={"limit": 2})
    assert reply["queues"] == {
        "queue-4": [0, 0, 5, 0, 0, 0],
        "queue-3": [0, 0, 4, 0, 0, 0],
        "": [0, 0, 6, 0, 0, 0],
    }
    assert reply["oldest"] == {
        "": room.engine.find("job-0-0").ready_at,
        "queue-3": room.engine.find("job-3-0").ready_at,
        "queue-4": room.engine.find("job-4-0").ready_at,
    }
    assert reply["queues_count"] == 5


def test_counters_and_durations(room):
    room.push("a")
    room.now += SECOND
    job = room.lease()
    room.now += 5 * SECOND
    room.engine.complete(job, room.now, FAKTORY)
    room.push("b")
    room.engine.fail(room.lease(), room.now, FAKTORY, "Oops", "it broke", [])
    room.hub.samples.measured.commits.add(3000)
    reply = room.asks(metrics={})
    assert (reply["pushed"], reply["completed"], reply["failed"], reply["retrying"]) == (2, 1, 1, 1)
    waits, runs, commits = reply["waits"], reply["runs"], reply["commits"]
    assert (waits["count"], waits["sum"]) == (2, 1.0)
    assert (runs["count"], runs["sum"]) == (1, 5.0)
    assert (commits["count"], commits["sum"]) == (1, 0.003)
    for each in (waits, runs, commits, reply["lag"]):
        assert each["bounds"] == sorted(each["bounds"])
        assert each["counts"] == sorted(each["counts"])
    reached = dict(zip(waits["bounds"], waits["counts"], strict=True))
    assert (reached[0.000256], reached[0.262144], reached[1.048576]) == (1, 1, 2)


def test_absent_parts_are_zero(room):
    reply = room.asks(metrics={})
    assert (reply["store_bytes"], reply["outbox_events"], reply["shipping_lag"]) == (0, 0, 0)
    assert reply["halted"] is False
    room.engine.unavailable_reason = "disk full"
    reply = room.asks(metrics={})
    assert (reply["halted"], reply["pushes_refused"]) == (True, True)


def test_refused_pushes_are_reported(room):
    assert room.asks(metrics={})["pushes_refused"] is False
    room.engine.push_refusal_reason = "disk full"
    reply = room.asks(metrics={})
    assert (reply["halted"], reply["pushes_refused"]) == (False, True)


def test_waiters_and_workers(room):
    room.faktory_worker("w1").receive(b"FETCH a b\r\n")
    reply = room.asks(metrics={})
    assert (reply["waiters"], reply["workers"], reply["queues"]) == (2, 1, {})


def test_admin_requests_are_counted(room):
    room.refused(queue={"name": "no"})
    reply = {row["name"]: row for row in room.asks(metrics={})["protocols"]}
    assert (reply["control"]["commands"], reply["control"]["errors"]) == (2, 1)
