"""Server, Configuration, Audit."""

from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from pretended import CHIEF, GUARDED, OPERATOR, READER, get, post, pretended, refusing
from told_room import an_overview

from millrace.records import (
    AuditEntry,
    AuditPage,
    PipelineRun,
    PortStatus,
    ServerStatus,
    Setting,
    ShippingStatus,
)

XSS = '<img src=x onerror="hacked">'
NOW = 1_800_000_000_000_000
JOURNAL = ShippingStatus("abc", "/data/lake", 1001, 901, 100, 20_480, 12.0, files=3)


def detail(**more: Any) -> ServerStatus:
    values: dict[str, Any] = {
        "version": "0.8",
        "pid": 4711,
        "host": "127.0.0.1",
        "started_at": NOW - 90_000_000,
        "now": NOW,
        "memory_mb": 120,
        "data": "/data",
        "lake": "/data/lake",
        "durability": "fsync",
        "halted": "",
        "sizes": {"jobs": 12_345, "queues": 7},
        "store_bytes": 5 << 20,
        "disk_free": 40 << 30,
        "disk_size": 100 << 30,
        "tls": False,
        "settings": [
            Setting("server.host", '"127.0.0.1"', "default", "Where it listens.", False),
            Setting("web.password", '"(hidden)"', "file", "Who may look.", True),
        ],
        "qless": {"application": "shop", "heartbeat": 60},
        "protocols": [PortStatus("faktory", 7419, 3, 1, 999, 2)],
        "pipeline": PipelineRun(True, False, 0, 0, -1, [], 0.0),
    }
    return ServerStatus(**values | more)


def test_how_the_server_stands() -> None:
    text = get(pretended(server=detail(), overview=an_overview(), journal=JOURNAL), "/server").text
    for told in (
        "0.8",
        "1 min 30 s",
        "4711",
        "120 MiB",
        "7419",
        "999",
        "12,345",
        "40 GiB of 100 GiB",
    ):
        assert told in text
    for told in (
        "Ship now",
        "1.2 ms",
        "100 events, 20 KiB",
        "oldest 12 s",
        "Type FLUSH to confirm",
        "<meter",
    ):
        assert told in text


def test_a_server_that_cannot_write_says_so() -> None:
    text = get(
        pretended(
            server=detail(halted=f"disk full {XSS}"), overview=an_overview(), journal=JOURNAL
        ),
        "/server",
    ).text
    assert "The store cannot write" in text
    assert "<img src=x" not in text


def test_a_server_that_keeps_nothing() -> None:
    room = pretended(
        server=detail(data="", lake="", durability="memory", disk_size=0),
        overview=an_overview(),
        journal=refusing("nothing is kept here"),
    )
    answer = get(room, "/server")
    assert answer.status == 200
    assert "nothing is kept here" in answer.text
    assert "Ship now" not in answer.text


def test_shipping() -> None:
    room = pretended(ship=JOURNAL)
    assert post(room, "/server/ship", {}).status == 303
    assert [name for name, _ in room.control.asked] == ["ship", "note"]
    room = pretended(ship=refusing("the lake is full"))
    answer = post(room, "/server/ship", {})
    assert answer.status == 503
    assert "the lake is full" in answer.text


def test_forgetting_everything_has_to_be_typed() -> None:
    room = pretended()
    for typed in ("", "flush", "FLUSH "):
        assert post(room, "/server/flush", {"sure": typed}).status == 400
    assert room.control.asked == []
    assert post(room, "/server/flush", {"sure": "FLUSH"}).status == 303
    assert room.control.asked[0][0] == "flush"
    assert room.control.asked[0][1].by == "anybody from 127.0.0.1"


@pytest.mark.parametrize("who", [READER, OPERATOR])
def test_what_only_admins_may(who: Any) -> None:
    room = pretended(GUARDED, server=detail(), overview=an_overview(), journal=JOURNAL)
    assert post(room, "/server/flush", {"sure": "FLUSH"}, who.secret).status == 403
    assert get(room, "/configuration", who.secret).status == 403
    assert get(room, "/audit", who.secret).status == 403
    assert room.control.asked == []
    assert "FLUSH" not in get(room, "/server", who.secret).text


def test_the_configuration() -> None:
    room = pretended(GUARDED, server=detail())
    text = get(room, "/configuration", CHIEF.secret).text
    for told in (
        "[server]",
        "[web]",
        "127.0.0.1",
        "(hidden)",
        "on reload",
        "on restart",
        "Who may",
    ):
        assert told in text
    assert 'name="option" value="heartbeat"' in text
    assert 'value="60"' in text


def test_settings_of_qless() -> None:
    room = pretended(GUARDED, server=detail(qless={XSS: XSS}))
    assert "<img src=x" not in get(room, "/configuration/qless", OPERATOR.secret).text
    assert "Unset" not in get(room, "/configuration/qless", READER.secret).text
    room = pretended(GUARDED)
    form = {"option": "heartbeat", "value": "30"}
    assert post(room, "/configuration/qless", form, READER.secret).status == 403
    assert post(room, "/configuration/qless", form, OPERATOR.secret).status == 303
    unset = {"option": "heartbeat", "value": "30", "action": "unset"}
    assert post(room, "/configuration/qless", unset, OPERATOR.secret).status == 303
    told = [msgspec.to_builtins(asked) for _, asked in room.control.asked]
    assert [(each["option"], each["value"]) for each in told] == [
        ("heartbeat", "30"),
        ("heartbeat", None),
    ]
    assert post(room, "/configuration/qless", {"value": "1"}, OPERATOR.secret).status == 400
    assert post(room, "/configuration/qless", form | {"action": "x"}, OPERATOR.secret).status == 400


def test_the_audit_log() -> None:
    assert "No changes yet" in get(pretended(audit=AuditPage([], 0)), "/audit").text
    rows = [AuditEntry(9, NOW, f"chief {XSS}", "delete", f"queue:{XSS}", 1204)]
    room = pretended(audit=AuditPage(rows, 9))
    text = get(room, "/audit?before=10").text
    for told in ("chief", "delete", "1,204", 'href="/audit?before=9"', 'href="/audit"'):
        assert told in text
    assert "<img src=x" not in text
    assert room.control.asked[0][1].before == 10


@pytest.mark.parametrize("before", ["-1", "x", "1.5", "9" * 30, "²"])
def test_a_page_of_the_audit_log_that_cannot_be(before: str) -> None:
    assert get(pretended(), f"/audit?before={quote(before)}").status == 400


def test_only_admins_see_the_folders() -> None:
    house = pretended(GUARDED, server=detail(), overview=an_overview(), journal=JOURNAL)
    for reader in (READER, OPERATOR):
        text = get(house, "/server", reader.secret).text
        assert "0.8" in text
        assert "/data" not in text
    assert "<code>/data</code>" in get(house, "/server", CHIEF.secret).text
