"""`queues` and `queue`."""

import pytest

from admin_room import Room
from millrace.engine.statistics import DAY
from millrace.protocols.registry import FAKTORY
from wires import SECOND

HOSTILE = ["a/b?c#d", "  ", "q\"uo'te", "<script>", "\u202eabc", "\u00fcn\u00ef", "x" * 300]


@pytest.fixture
def room() -> Room:
    return Room()


def names(room: Room, **request) -> list[str]:
    return [row["name"] for row in room.asks(queues=request)["queues"]]


def test_a_row(room):
    room.push("a")
    room.push("b", due_at=room.now + SECOND)
    room.now += SECOND // 2
    room.push("c")
    job = room.lease()
    room.now += 3 * SECOND
    room.engine.complete(job, room.now, FAKTORY)
    room.engine.pause("q", paused=True, now=room.now)
    (row,) = room.asks(queues={})["queues"]
    assert (row["name"], row["paused"], row["counts"]) == ("q", True, [1, 0, 1, 0, 0, 0])
    assert row["oldest"] == room.engine.find("c").ready_at
    assert row["wait"]["count"] == row["run"]["count"] == 1
    assert row["wait"]["p50"] == pytest.approx(SECOND / 2, rel=0.2)
    assert row["run"]["p99"] == pytest.approx(3 * SECOND, rel=0.2)
    assert row["last_fetch_at"] == room.now - 3 * SECOND
    assert (row["waiters"], row["limit"], row["depths"]) == (0, 0, [])


def test_pages_are_in_the_order_of_the_names(room):
    every = sorted(f"q{n}" for n in range(7))
    for name in reversed(every):
        room.push(name, name)
    found, after = [], ""
    while True:
        page = room.asks(queues={"limit": 3, "cursor": after})
        assert page["count"] == 7
        found += [row["name"] for row in page["queues"]]
        after = page["next"]
        if not after:
            break
    assert found == every


def test_part_of_a_name(room):
    for name in ("Mail", "email", "sms"):
        room.push(name, name)
    assert names(room, text="MAIL") == ["Mail", "email"]
    assert room.asks(queues={"text": "mail", "limit": 1})["count"] == 2
    assert names(room, text="nothing") == []


def test_a_limit_is_set_and_removed(room):
    for jid in ("j1", "j2"):
        room.put(jid, "q")
    room.asks(act_on_queue={"name": "q", "action": "limit", "limit": 1})
    room.lease()
    assert room.engine.lease(("q",), "w1", FAKTORY, room.now) is None
    assert room.asks(queue={"name": "q"})["queue"]["limit"] == 1
    room.asks(act_on_queue={"name": "q", "action": "limit"})
    room.lease()


def test_only_paused_queues(room):
    for name in ("a", "b", "c"):
        room.push(name, name)
    assert room.asks(queues={"paused": True}) == {"queues": [], "count": 0, "next": ""}
    room.engine.pause("b", paused=True, now=room.now)
    assert names(room, paused=True) == ["b"]
    assert room.asks(queues={"paused": True, "text": "c"})["count"] == 0
    assert names(room) == ["a", "b", "c"]


def test_hostile_names_are_reported_unchanged(room):
    for number, name in enumerate(HOSTILE):
        room.push(f"job-{number}", name)
        assert room.asks(queue={"name": name})["queue"]["name"] == name
    assert names(room) == sorted(HOSTILE)


def test_an_unknown_queue(room):
    assert room.refused(queue={"name": "no"}) == ("not found", 'Queue "no" not found.')
    room.faktory_worker("w").receive(b"FETCH no\r\n")  # a client waits for it, but it has no job
    assert room.refused(queue={"name": "no"})[0] == "not found"


def test_statistics_of_a_day(room):
    room.push("a")
    room.engine.complete(room.lease(), room.now, FAKTORY)
    today = room.now // DAY
    reply = room.asks(queue={"name": "q"})
    assert reply["day"][:2] == ["q", today]
    assert reply["day"][3][0] == 1
    assert reply["days"] == [today]
    yesterday = room.asks(queue={"name": "q", "day": today - 1})
    assert yesterday["day"][:2] == ["q", today - 1]
    assert yesterday["day"][3][0] == 0


def test_a_qless_limit_is_reported(room):
    room.put("a")
    assert room.asks(queue={"name": "q"})["queue"]["limit"] == 0
    room.speaks_qless("config.set", "q-max-concurrency", 7)
    assert room.asks(queue={"name": "q"})["queue"]["limit"] == 7
    room.qless.throttles.set("ql:q:q", 3, 0, room.now)
    assert room.asks(queue={"name": "q"})["queue"]["limit"] == 3


def test_counters_of_qless(room):
    room.put("a")
    room.put("b")
    room.pop()
    room.speaks_qless("recur", "q", "again", "klass", "{}", "interval", 60, 0)
    room.speaks_qless("recur", "other", "again2", "klass", "{}", "interval", 60, 0)
    reply = room.asks(queue={"name": "q"})
    assert (reply["stalled"], reply["recurring"], reply["throttled"]) == (0, 1, 0)
    room.now += 3600 * SECOND
    assert room.asks(queue={"name": "q"})["stalled"] == 1


def test_without_qless():
    room = Room(qless=False)
    room.push("a")
    reply = room.asks(queue={"name": "q"})
    assert (reply["stalled"], reply["recurring"], reply["throttled"]) == (0, 0, 0)
    assert reply["queue"]["limit"] == 0
