"""`recurring`, `tracked`, `tags` and `limits`."""

import base64

import pytest

from admin_room import Room
from wires import SECOND, START


@pytest.fixture
def room() -> Room:
    return Room()


def test_recurring(room):
    room.speaks_qless(
        "recur", "q", "r1", "klass", '{"a":1}', "interval", 60, 10, "priority", 5, "tags", '["t"]'
    )
    answer = room.asks(recurring={})
    (row,) = answer["recurring"]
    assert (row["jid"], row["kind"], row["queue"], row["interval"]) == ("r1", "klass", "q", 60)
    assert (row["priority"], row["tags"], row["count"]) == (5, ["t"], 0)
    assert row["next_at"] == START + 10 * SECOND
    assert base64.b64decode(row["payload"]) == b'{"a":1}'
    assert answer["count"] == 1


def test_recurring_pages(room):
    for number in range(10):
        room.speaks_qless("recur", "q", f"r{number}", "klass", "{}", "interval", 60, 0)
    first = room.asks(recurring={"limit": 7})
    assert [row["jid"] for row in first["recurring"]] == [f"r{number}" for number in range(7)]
    second_page = room.asks(recurring={"limit": 7, "cursor": first["next"]})
    assert [row["jid"] for row in second_page["recurring"]] == ["r7", "r8", "r9"]
    assert second_page["next"] == ""


def test_tracked(room):
    room.put("a1")
    room.put("a2")
    for jid in ("a1", "a2"):
        room.speaks_qless("track", "track", jid)
    room.speaks_qless("cancel", "a2")
    answer = room.asks(tracked={})
    assert [row["jid"] for row in answer["tracked"]] == ["a1", "a2"]
    assert answer["tracked"][0]["job"]["tracked"]
    assert answer["tracked"][0]["since"] == START
    assert answer["tracked"][1]["job"] is None
    assert [row["jid"] for row in room.asks(search={"query": {"tracked": True}})["jobs"]] == ["a1"]


def test_tags(room):
    room.put("a1", "q", "tags", '["one","two"]')
    room.put("a2", "q", "tags", '["two"]')
    room.push("a3")
    room.act("tag", "a3", tags=["three", "two"])
    answer = room.asks(tags={})
    assert answer["tags"] == [
        {"tag": "two", "count": 3},
        {"tag": "one", "count": 1},
        {"tag": "three", "count": 1},
    ]
    assert room.asks(tags={"limit": 1}) == {"tags": [{"tag": "two", "count": 3}], "count": 3}
    found = room.asks(search={"query": {"tag": "two"}})["jobs"]
    assert [job["jid"] for job in found] == ["a3", "a2", "a1"]


def test_tags_without_qless():
    room = Room(qless=False)
    room.push("a1", tags=["one", "two"])
    room.push("a2", tags=["two"])
    room.push("a3")
    answer = room.asks(tags={})
    assert answer["tags"] == [{"tag": "two", "count": 2}, {"tag": "one", "count": 1}]
    found = room.asks(search={"query": {"tag": "two"}})["jobs"]
    assert [job["jid"] for job in found] == ["a2", "a1"]
    for name in ("recurring", "tracked"):
        assert room.asks(**{name: {}})["count"] == 0
    assert room.asks(limits=True) == {"limits": []}


def test_throttles(room):
    for jid in ("a1", "a2", "a3"):
        room.put(jid, "q", "throttles", '["narrow"]')
    room.qless.throttles.set("narrow", 1, 0, room.now)
    room.qless.throttles.set("wide", 10, START + SECOND, room.now)
    room.speaks_qless("pop", "q", "w1", 3)
    answer = room.asks(limits=True)
    assert answer["limits"] == [
        {
            "name": "narrow",
            "maximum": 1,
            "expires_at": 0,
            "holders": ["a1"],
            "waiting": ["a2", "a3"],
        },
        {
            "name": "wide",
            "maximum": 10,
            "expires_at": START + SECOND,
            "holders": [],
            "waiting": [],
        },
    ]
    codes = [reason["code"] for reason in room.asks(job={"id": "a2"})["reasons"]]
    assert "limit" in codes


def test_a_recurring_payload_is_complete_or_marked(room):
    for jid, size in (("r1", 5000), ("r2", 70_000)):
        data = '{"a":"%s"}' % ("x" * size)
        room.speaks_qless("recur", "q", jid, "klass", data, "interval", 60, 0)
    first, second = room.asks(recurring={})["recurring"]
    assert len(base64.b64decode(first["payload"])) == first["size"] == 5008
    assert len(base64.b64decode(second["payload"])) < second["size"] == 70_008
