"""The pages Server, Configuration and Audit."""

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from asgi_client import bearer
from scripted_app import CHIEF, GUARDED, OPERATOR, READER, get, post, refusing, scripted_app
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


def test_the_status_of_the_server() -> None:
    text = get(
        scripted_app(server=detail(), overview=an_overview(), journal=JOURNAL), "/server"
    ).text
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


def test_a_failing_store_is_reported() -> None:
    text = get(
        scripted_app(
            server=detail(halted=f"disk full {XSS}"), overview=an_overview(), journal=JOURNAL
        ),
        "/server",
    ).text
    assert "The store cannot write" in text
    assert "<img src=x" not in text


def test_a_server_without_a_data_folder() -> None:
    room = scripted_app(
        server=detail(data="", lake="", durability="memory", disk_size=0),
        overview=an_overview(),
        journal=refusing("nothing is kept here"),
    )
    answer = get(room, "/server")
    assert answer.status == 200
    assert "nothing is kept here" in answer.text
    assert "Ship now" not in answer.text


def test_shipping() -> None:
    room = scripted_app(ship=JOURNAL)
    assert post(room, "/server/ship", {}).status == 303
    assert [name for name, _ in room.control.asked] == ["ship", "note"]
    room = scripted_app(ship=refusing("the lake is full"))
    answer = post(room, "/server/ship", {})
    assert answer.status == 503
    assert "the lake is full" in answer.text


def test_a_flush_requires_a_typed_confirmation() -> None:
    room = scripted_app()
    for typed in ("", "flush", "FLUSH "):
        assert post(room, "/server/flush", {"sure": typed}).status == 400
    assert room.control.asked == []
    assert post(room, "/server/flush", {"sure": "FLUSH"}).status == 303
    assert room.control.asked[0][0] == "flush"
    assert room.control.asked[0][1].by == "anybody from 127.0.0.1"


@pytest.mark.parametrize("who", [READER, OPERATOR])
def test_routes_for_admins_only(who: Any) -> None:
    room = scripted_app(GUARDED, server=detail(), overview=an_overview(), journal=JOURNAL)
    assert post(room, "/server/flush", {"sure": "FLUSH"}, who.secret).status == 403
    assert get(room, "/configuration", who.secret).status == 403
    assert get(room, "/audit", who.secret).status == 403
    assert room.control.asked == []
    assert "FLUSH" not in get(room, "/server", who.secret).text


def test_the_configuration() -> None:
    room = scripted_app(GUARDED, server=detail())
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
    room = scripted_app(GUARDED, server=detail(qless={XSS: XSS}))
    assert "<img src=x" not in get(room, "/configuration/qless", OPERATOR.secret).text
    assert "Unset" not in get(room, "/configuration/qless", READER.secret).text
    room = scripted_app(GUARDED)
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
    assert "No changes yet" in get(scripted_app(audit=AuditPage([], 0)), "/audit").text
    rows = [AuditEntry(9, NOW, f"chief {XSS}", "delete", f"queue:{XSS}", 1204)]
    room = scripted_app(audit=AuditPage(rows, 9))
    text = get(room, "/audit?before=10").text
    for told in ("chief", "delete", "1,204", 'href="/audit?before=9"', 'href="/audit"'):
        assert told in text
    assert "<img src=x" not in text
    assert room.control.asked[0][1].cursor == 10


@pytest.mark.parametrize("before", ["-1", "x", "1.5", "9" * 30, "²"])
def test_an_invalid_page_of_the_audit_log(before: str) -> None:
    assert get(scripted_app(), f"/audit?before={quote(before)}").status == 400


def test_only_admins_see_the_folders() -> None:
    web_app = scripted_app(GUARDED, server=detail(), overview=an_overview(), journal=JOURNAL)
    for reader in (READER, OPERATOR):
        text = get(web_app, "/server", reader.secret).text
        assert "0.8" in text
        assert "/data" not in text
        assert "/data" not in get(web_app, "/api/v1/server", reader.secret).text
    assert "<code>/data</code>" in get(web_app, "/server", CHIEF.secret).text
    assert '"lake":"/data/lake"' in get(web_app, "/api/v1/server", CHIEF.secret).text


def test_only_admins_see_the_lake_after_shipping() -> None:
    web_app = scripted_app(GUARDED, ship=JOURNAL)
    for who, seen in ((OPERATOR, False), (CHIEF, True)):
        headers = bearer(who.secret) | {"content-type": "application/json"}
        answer = asyncio.run(web_app.exchange("POST", "/api/v1/ship", headers, b"{}"))
        assert answer.status == 200
        assert (b"/data/lake" in answer.body) == seen
