"""`workers`: who works, and on what."""

import pytest

from admin_room import Room
from millrace.admin.workers import MAX_HELD_JOBS
from millrace.engine.job import FAKTORY, GOQUEUE, MASENKO, QLESS, WORKQ
from wires import START


@pytest.fixture
def room() -> Room:
    return Room()


def names(answer: dict) -> list[tuple[str, str]]:
    return [(row["protocol"], row["wid"]) for row in answer["workers"]]


def test_faktorys_workers(room):
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


def test_a_worker_that_is_gone_is_told_as_long_as_it_has_something(room):
    wire = room.faktory_worker("w1")
    room.push("a1", origin=WORKQ)
    wire.receive(b"FETCH q\r\n")
    wire.connection.lost(room.now)
    (row,) = room.asks(workers={})["workers"]
    assert (row["connections"], row["count"]) == (0, 1)
    room.engine.complete(room.engine.find("a1"), room.now, FAKTORY)
    assert room.asks(workers={})["workers"] == []


def test_qless_workers_and_what_has_stalled(room):
    room.put("a1")
    room.put("a2")
    room.pop(worker="w9")
    room.advance(3600 * 1_000_000)
    (row,) = room.asks(workers={})["workers"]
    assert (row["protocol"], row["wid"], row["count"], row["stalled"]) == ("qless", "w9", 1, 1)
    assert row["beat_at"] == START


def test_those_who_hold_something(room):
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
    told, after = [], ""
    while True:
        answer = room.asks(workers={"after": after, "most": 7})
        assert answer["count"] == 25
        told += names(answer)
        after = answer["more"]
        if not after:
            break
    assert told == [("faktory", f"w {number:02}/?#") for number in range(25)]


def test_one_of_them(room):
    for holder in ("w1", "w2"):
        room.push(holder)
        room.lease(holder=holder)
    answer = room.asks(workers={"protocol": "faktory", "wid": "w2"})
    assert names(answer) == [("faktory", "w2")]
    assert room.asks(workers={"protocol": "faktory", "wid": "w3"})["workers"] == []


def test_of_much_that_one_holds_the_first_are_told(room):
    for number in range(MAX_HELD_JOBS + 5):
        room.push(f"a{number}")
        room.lease()
    (row,) = room.asks(workers={})["workers"]
    assert row["count"] == MAX_HELD_JOBS + 5
    assert [held["jid"] for held in row["held"]] == [
        f"a{number}" for number in range(MAX_HELD_JOBS)
    ]


@pytest.mark.parametrize("asked", [{"most": 0}, {"most": 1001}, {"after": "nobody"}])
def test_what_makes_no_sense(room, asked):
    assert room.refused(workers=asked)[0] == "bad request"
