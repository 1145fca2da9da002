"""`workers`: the workers and their jobs."""

import pytest

from admin_room import Room
from millrace.admin.workers import MAX_HELD_JOBS
from millrace.protocols.registry import FAKTORY, GOQUEUE, MASENKO, QLESS, WORKQ
from wires import START


@pytest.fixture
def room() -> Room:
    return Room()


def names(answer: dict) -> list[tuple[str, str]]:
    return [(row["protocol"], row["wid"]) for row in answer["workers"]]


def test_faktory_workers(room):
    wire = room.faktory_worker("w1")
    (row,) = room.asks(workers={})["workers"]
    assert (row["protocol"], row["wid"], row["state"], row["connections"]) == (
        "faktory",
        "w1",
        "",
        1,
    )
    room.push("a1", origin=WORKQ)
    wire.receive(b"FETCH q\r\n")
    (row,) = room.asks(workers={})["workers"]
    assert row["count"] == 1
    (held,) = row["held"]
    assert (held["jid"], held["queue"], held["kind"]) == ("a1", "q", "Kind")
    assert held["leased_at"] == START
    assert held["deadline"] > START
    room.asks(act_on_worker={"wid": "w1", "action": "quiet"})
    assert room.asks(workers={})["workers"][0]["state"] == "quiet"


def test_a_disconnected_worker_is_listed_while_it_holds_jobs(room):
    wire = room.faktory_worker("w1")
    room.push("a1", origin=WORKQ)
    wire.receive(b"FETCH q\r\n")
    wire.connection.connection_lost(room.now)
    (row,) = room.asks(workers={})["workers"]
    assert (row["connections"], row["count"]) == (0, 1)
    room.engine.complete(room.engine.find("a1"), room.now, FAKTORY)
    assert room.asks(workers={})["workers"] == []


def test_qless_workers_and_stalled_jobs(room):
    room.put("a1")
    room.put("a2")
    room.pop(worker="w9")
    room.advance(3600 * 1_000_000)
    (row,) = room.asks(workers={})["workers"]
    assert (row["protocol"], row["wid"], row["count"], row["stalled"]) == ("qless", "w9", 1, 1)
    assert row["heartbeat_at"] == START


def test_holders_of_all_protocols_are_listed(room):
    for actor, holder in ((GOQUEUE, ""), (GOQUEUE, ""), (MASENKO, "masenko-1"), (QLESS, "same")):
        room.push(f"{actor}-{holder}")
        room.lease(actor=actor, holder=holder)
    room.push("twice")
    room.lease(actor=FAKTORY, holder="same")
    answer = room.asks(workers={})
    found = {(row["protocol"], row["wid"]): row for row in answer["workers"]}
    assert list(found) == [
        ("faktory", "same"),
        ("goqueue", ""),
        ("masenko", "masenko-1"),
        ("qless", "same"),
    ]
    assert found["goqueue", ""]["count"] == 2
    assert found["masenko", "masenko-1"]["held"][0]["deadline"] == 0
    assert answer["count"] == 4


def test_pages(room):
    for number in range(25):
        room.push(f"a{number}")
        room.lease(holder=f"w {number:02}/?#")
    rows, after = [], ""
    while True:
        answer = room.asks(workers={"cursor": after, "limit": 7})
        assert answer["count"] == 25
        rows += names(answer)
        after = answer["next"]
        if not after:
            break
    assert rows == [("faktory", f"w {number:02}/?#") for number in range(25)]


def test_a_filter_for_one_worker(room):
    for holder in ("w1", "w2"):
        room.push(holder)
        room.lease(holder=holder)
    answer = room.asks(workers={"protocol": "faktory", "wid": "w2"})
    assert names(answer) == [("faktory", "w2")]
    assert room.asks(workers={"protocol": "faktory", "wid": "w3"})["workers"] == []


def test_only_the_first_held_jobs_are_listed(room):
    for number in range(MAX_HELD_JOBS + 5):
        room.push(f"a{number}")
        room.lease()
    (row,) = room.asks(workers={})["workers"]
    assert row["count"] == MAX_HELD_JOBS + 5
    assert [held["jid"] for held in row["held"]] == [
        f"a{number}" for number in range(MAX_HELD_JOBS)
    ]


@pytest.mark.parametrize("request_", [{"limit": 0}, {"limit": 1001}, {"cursor": "nobody"}])
def test_invalid_requests_are_refused(room, request_):
    assert room.refused(workers=request_)[0] == "bad request"
