"""`metrics`: few series however many queues there are, and histograms that add up."""

import pytest

from admin_room import Room
from millrace.engine.job import FAKTORY
from wires import SECOND


@pytest.fixture
def room() -> Room:
    return Room()


def test_the_deepest_queues_and_all_others_together(room):
    for n in range(5):
        for k in range(n + 1):
            room.push(f"job-{n}-{k}", f"queue-{n}")
            room.now += 1
    told = room.asks(metrics={"most": 2})
    assert told["queues"] == {
        "queue-4": [0, 0, 5, 0, 0, 0],
        "queue-3": [0, 0, 4, 0, 0, 0],
        "": [0, 0, 6, 0, 0, 0],
    }
    assert told["oldest"] == {
        "": room.engine.find("job-0-0").ready_at,
        "queue-3": room.engine.find("job-3-0").ready_at,
        "queue-4": room.engine.find("job-4-0").ready_at,
    }
    assert told["queues_count"] == 5


def test_counters_and_spans(room):
    room.push("a")
    room.now += SECOND
    job = room.lease()
    room.now += 5 * SECOND
    room.engine.complete(job, room.now, FAKTORY)
    room.push("b")
    room.engine.fail(room.lease(), room.now, FAKTORY, "Oops", "it broke", [])
    room.hub.samples.measured.commits.add(3000)
    told = room.asks(metrics={})
    assert (told["pushed"], told["completed"], told["failed"], told["retrying"]) == (2, 1, 1, 1)
    waits, runs, commits = told["waits"], told["runs"], told["commits"]
    assert (waits["count"], waits["sum"]) == (2, 1.0)
    assert (runs["count"], runs["sum"]) == (1, 5.0)
    assert (commits["count"], commits["sum"]) == (1, 0.003)
    for each in (waits, runs, commits, told["lag"]):
        assert each["bounds"] == sorted(each["bounds"])
        assert each["counts"] == sorted(each["counts"])
    reached = dict(zip(waits["bounds"], waits["counts"], strict=True))
    assert (reached[0.000256], reached[0.262144], reached[1.048576]) == (1, 1, 2)


def test_what_is_not_there_is_nothing(room):
    told = room.asks(metrics={})
    assert (told["store_bytes"], told["outbox_events"], told["shipping_lag"]) == (0, 0, 0)
    assert told["halted"] is False
    room.engine.halted = "disk full"
    assert room.asks(metrics={})["halted"] is True


def test_waiters_and_workers(room):
    room.faktory_worker("w1").receive(b"FETCH a b\r\n")
    told = room.asks(metrics={})
    assert (told["waiters"], told["workers"], told["queues"]) == (2, 1, {})


def test_what_is_asked_here_is_counted_too(room):
    room.refused(queue={"name": "no"})
    told = {row["name"]: row for row in room.asks(metrics={})["protocols"]}
    assert (told["control"]["commands"], told["control"]["errors"]) == (2, 1)
