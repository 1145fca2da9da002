"""The audit log: as durable as the recorded actions, paged, and bounded."""

import pytest

from admin_room import Room
from millrace.admin import audit as audit_log
from millrace.admin.audit import GROUPING_WINDOW, MAX_ENTRIES
from wires import START


@pytest.fixture
def room() -> Room:
    return Room()


def note(room: Room, target: str, **more: str) -> None:
    room.asks(note={"action": "login", "target": target, "by": "ann", **more})


def test_the_newest_first_in_pages(room):
    for number in range(1, 6):
        note(room, str(number))
    first = room.asks(audit={"limit": 2})
    assert [each["target"] for each in first["audit"]] == ["5", "4"]
    assert first["audit"][0] == {
        "number": 5,
        "at": START,
        "by": "ann",
        "action": "login",
        "target": "5",
        "count": 0,
    }
    second = room.asks(audit={"cursor": first["next"], "limit": 2})
    assert [each["target"] for each in second["audit"]] == ["3", "2"]
    third = room.asks(audit={"cursor": second["next"], "limit": 2})
    assert [each["target"] for each in third["audit"]] == ["1"]
    assert third["next"] == 0


def test_an_entry_is_in_the_batch_of_its_change(room):
    room.push()
    room.act("kill", "a1")
    (batch,) = [batch for batch in room.kept if batch.settings]
    assert list(batch.settings) == ["audit/1"]
    assert [event[1] for event in batch.events] == ["pushed", "killed"]


def test_a_limited_number_of_entries_is_kept(room, monkeypatch):
    monkeypatch.setattr(audit_log, "MAX_ENTRIES", 10)
    for number in range(25):
        note(room, str(number))
    assert [each[2] for each in room.audit()] == [str(number) for number in range(24, 14, -1)]
    assert len(room.engine.settings) == 10
    assert MAX_ENTRIES == 20_000


def test_long_names_are_truncated(room):
    note(room, "x" * 10_000, by="y" * 10_000)
    ((by, _, target, _),) = room.audit()
    assert (len(by), len(target)) == (100, 500)


def test_the_log_continues_after_a_restart(room):
    note(room, "before")
    again = Room()
    again.engine.load_settings(dict(room.engine.settings))
    note(again, "after")
    assert [each[2] for each in again.audit()] == ["after", "before"]


def test_the_log_survives_a_flush(room):
    note(room, "before")
    room.asks(flush={"by": "ann"})
    for _ in room.qless_hub.flush(room.now, b"", all_databases=True):
        pass
    room.engine.flush(room.now)
    assert [each[1] for each in room.audit()] == ["flush", "login"]


def test_reverted_entries_are_removed(room):
    note(room, "kept")
    kept = dict(room.engine.settings)
    note(room, "lost")
    room.engine.load_settings(kept)
    room.engine.revert([], [], {})
    assert [each[2] for each in room.audit()] == ["kept"]
    note(room, "next")
    assert [each[2] for each in room.audit()] == ["next", "kept"]
    assert room.asks(audit={})["audit"][0]["number"] == 2


def test_repeated_work_of_one_caller_is_one_entry(room):
    log = room.hub.audit
    for number in range(5):
        log.add_work(START + number, "ci", "push", "jobs", 2)
        log.add_work(START + number, "other", "push", "jobs", 1)
    log.add_work(START + GROUPING_WINDOW, "ci", "push", "jobs", 1)
    assert [(each[0], each[3]) for each in room.audit()] == [("ci", 1), ("other", 5), ("ci", 10)]


def test_refused_logins_do_not_displace_other_entries(room, monkeypatch):
    monkeypatch.setattr(audit_log, "MAX_LOGIN_FAILURES", 10)
    monkeypatch.setattr(audit_log, "MAX_ENTRIES", 10)
    note(room, "first")
    for number in range(25):
        for _ in range(3):
            note(room, "/login", action="login refused", by=f"10.0.0.{number}")
    note(room, "last")
    entries = room.audit()
    assert [entries[0][2], entries[-1][2], len(entries)] == ["last", "first", 12]
    assert entries[1] == ("10.0.0.24", "login refused", "/login", 3)
    again = Room()
    again.engine.load_settings(dict(room.engine.settings))
    assert again.audit() == entries
    page = again.asks(audit={"limit": 11})
    assert len(page["audit"]) == 11
    assert [each["target"] for each in again.asks(audit={"cursor": page["next"]})["audit"]] == [
        "first"
    ]


def test_a_listener_receives_each_entry(room):
    heard = []
    room.hub.audit.heard = heard.append
    note(room, "here")
    for _ in range(2):
        note(room, "", action="login refused", by="10.0.0.1")
    assert [(each.action, each.target) for each in heard] == [
        ("login", "here"),
        ("login refused", ""),
    ]
