"""Version 1 of the HTTP API keeps its names and bytes.

`api_v1_responses.jsonl` holds the responses to a fixed sequence of requests on a fixed clock, one
request and its response per line. Each response must contain every recorded member, in the recorded
order and with the recorded bytes. New members are allowed. Run this file as a script to record the
responses again.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from asgi_client import AppClient, web_settings

from admin_room import Room
from millrace.admin.client import content
from millrace.protocols.registry import FAKTORY
from millrace.records import PipelineRun, ServerStatus, Setting, ShippingStatus
from millrace.web.api.table import TABLE
from wires import SECOND, START

RECORDED = Path(__file__).parent / "api_v1_responses.jsonl"
JSON = {"content-type": "application/json", "host": "localhost:7420"}

#: Texts for people, which may change. `sizes` counts the tables of the engine.
TEXTS = {"text", "reason", "title", "target", "description", "sizes"}

#: Method, path and body, in order. {token} is the token of the last lease.
REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/jobs", {"queue": "mail", "id": "a1", "kind": "Send", "payload": {"to": [1, 2.50]}}),
    (
        "POST",
        "/jobs",
        [
            {"queue": "mail", "id": "a2", "payload_base64": "/w==", "priority": 5, "tags": ["x"]},
            {"queue": "mail", "id": "a3", "payload": None, "waits_for": ["a2"], "retries": 1},
            {"queue": "late", "id": "a4", "payload": "x", "at": "2027-01-01T00:00:00Z"},
            {"queue": "late", "id": "a5", "payload": [], "delay": 1.5, "lease_for": 60},
            {"queue": "late", "payload": ["y" * 300]},
        ],
    ),
    ("GET", "/overview", None),
    ("GET", "/queues", None),
    ("GET", "/queues?text=ma&limit=1", None),
    ("GET", "/queues/mail", None),
    ("GET", "/queues/mail?date=2026-11-15", None),
    ("POST", "/queues/mail/pause", None),
    ("POST", "/queues/mail/resume", None),
    ("GET", "/jobs", None),
    ("GET", "/jobs?queue=mail&limit=2", None),
    ("GET", "/jobs?q=state:ready", None),
    ("GET", "/jobs/a1", None),
    ("GET", "/jobs/a2", None),
    ("GET", "/jobs/a3", None),
    ("GET", "/jobs/a4", None),
    ("GET", "/jobs/f1", None),
    ("GET", "/jobs/q1", None),
    ("GET", "/jobs/a1/payload", None),
    ("GET", "/jobs/a1/events", None),
    ("POST", "/leases", {"queues": ["mail"], "worker": "w1", "limit": 1}),
    ("POST", "/leases/{token}/renew", {"lease_for": 90}),
    ("GET", "/jobs/a2", None),
    ("GET", "/jobs/a2/events", None),
    ("POST", "/leases/{token}/complete", {"result": {"ok": True}}),
    ("POST", "/leases", {"queues": ["late", "mail"], "worker": "w1", "limit": 1}),
    ("POST", "/leases/{token}/fail", {"group": "Timeout", "message": "no reply", "backtrace": ["a.py:1"]}),
    ("POST", "/leases", {"queues": ["mail"], "worker": "w2", "lease_for": 5}),
    ("POST", "/leases/{token}/release", None),
    ("GET", "/failures", None),
    ("GET", "/failures/{fingerprint}", None),
    ("GET", "/workers", None),
    ("GET", "/workers/faktory/fw1", None),
    ("POST", "/workers/faktory/fw1/quiet", None),
    ("POST", "/workers/faktory/fw1/terminate", None),
    ("POST", "/failures/{fingerprint}/retry", None),
    ("POST", "/failures/{fingerprint}/delete", None),
    ("POST", "/jobs/f1/kill", None),
    ("GET", "/jobs/f1", None),
    ("POST", "/jobs/f1/retry", None),
    ("POST", "/jobs/f1/move", {"queue": "other"}),
    ("POST", "/jobs/f1/priority", {"priority": 7}),
    ("POST", "/jobs/f1/tag", {"tags": ["red", "blue"]}),
    ("POST", "/jobs/f1/untag", {"tags": ["red"]}),
    ("POST", "/jobs/f1/track", None),
    ("GET", "/tracked", None),
    ("POST", "/jobs/f1/untrack", None),
    ("POST", "/jobs/b2/undepend", {"waits_for": ["b1"]}),
    ("POST", "/jobs/q2/timeout", None),
    ("POST", "/jobs/f1/cancel", None),
    ("POST", "/jobs/f2/delete", None),
    ("GET", "/tags", None),
    ("GET", "/throttles", None),
    ("GET", "/recurring", None),
    ("POST", "/recurring/r1/move", {"queue": "hourly"}),
    ("POST", "/recurring/r1/priority", {"priority": 3}),
    ("POST", "/recurring/r1/tag", {"tags": ["t1", "t2"]}),
    ("POST", "/recurring/r1/untag", {"tags": ["t1"]}),
    ("GET", "/recurring?limit=1", None),
    ("POST", "/recurring/r1/cancel", None),
    ("POST", "/actions", {"action": "kill", "jobs": ["q1", "none"]}),
    ("POST", "/actions", {"action": "tag", "query": {"queue": "late"}, "tags": ["l"]}),
    ("POST", "/queues/late/retain", {"keep_results": 90}),
    ("GET", "/actions", None),
    ("GET", "/actions/1", None),
    ("POST", "/actions/1/stop", None),
    ("POST", "/queues/late/clear", None),
    ("POST", "/queues/late/remove", None),
    ("GET", "/server", None),
    ("POST", "/ship", None),
    ("GET", "/pipeline", None),
    ("POST", "/pipeline/run", None),
    ("GET", "/configuration", None),
    ("POST", "/configuration/qless", {"option": "heartbeat", "value": "20"}),
    ("GET", "/audit", None),
    ("GET", "/audit?limit=2", None),
    ("GET", "/overview", None),
    ("POST", "/queues/hourly/limit", {"limit": 3}),
    ("POST", "/flush", {"confirm": "flush"}),
    ("GET", "//health", None),
    ("GET", "//ready", None),
    ("GET", "//stats", None),
    ("GET", "/events", None),
]  # fmt: skip


class FixedHost:
    """A process with fixed properties."""

    def server_status(self) -> ServerStatus:
        setting = Setting("web.port", "7420", "default", "Port of the pages.", reloadable=False)
        return ServerStatus(
            version="1", pid=1, host="h", started_at=START - SECOND, now=0, memory_mb=5, data="/d",
            lake="/d/lake", durability="fsync", halted="", sizes={}, store_bytes=10, disk_free=20,
            disk_size=30, tls=False, settings=[setting], qless={}, protocols=[],
            pipeline=self.pipeline(),
        )  # fmt: skip

    def pipeline(self) -> PipelineRun:
        return PipelineRun(True, False, START - 2 * SECOND, START - SECOND, 0, ["done"], 3600.0)

    def run_pipeline(self) -> str:
        return ""


class FixedShipper:
    def current_status(self) -> ShippingStatus:
        return ShippingStatus("s1", "/d/lake", 10, 8, 2, 300, 1.5, 0, 4, "")

    def ship(self, done: Any) -> None:
        done("")


class SceneClient:
    """The web process's client, connected to the scene without a socket."""

    def __init__(self, room: Room) -> None:
        self._room = room

    async def ask(self, type_: type[Any], *, patience: float = 1.0, **request: Any) -> Any:
        return msgspec.json.decode(await self.raw(**request), type=type_)

    async def raw(self, **request: Any) -> bytes:
        return self._lines(request)[-1]

    async def follow(self, type_: type[Any], **request: Any) -> AsyncIterator[Any]:
        for line in self._lines(request):
            yield msgspec.json.decode(line, type=type_)

    def close(self) -> None:
        pass

    def _lines(self, request: dict[str, Any]) -> list[bytes]:
        room, wire = self._room, self._room.wire
        before = len(wire.replies)
        wire.receive(msgspec.json.encode(request) + b"\n")
        for touched in list(room.hub.connections_with_messages):
            touched.session.flush()
        return [bytes(content(line)) for line in wire.replies[before:]]


def scene() -> Room:
    room = Room()
    room.dice.seed(1)
    room.hub.tokens.make_key = lambda: b"k" * 32
    room.hub.host, room.hub.keeper = FixedHost(), FixedShipper()
    room.hub.ports = {"faktory": 7419, "qless": 6380}
    room.hub.started_at, room.hub.memory_mb = START - SECOND, lambda: 5
    room.push("f1", "work", payload=b'["hello", 1.0]')
    room.push("f2", "work", payload=b"\xff\xfe")
    room.push("f3", "work")
    job = room.engine.lease(("work",), "fw1", FAKTORY, room.now)
    assert job is not None
    room.engine.fail(job, room.now, FAKTORY, "ValueError", "bad value 17", ["x.py:3", "y.py:4"])
    room.faktory_worker("fw1")
    blocker = room.push("b1", "work")
    room.push("b2", "work", blockers=[blocker.seq])
    room.put("q1", "plans", "priority", 4, "tags", '["red"]')
    room.put("q2", "plans")
    room.pop("plans", "qw1")
    room.pop("plans", "qw1")
    room.put("q3", "plans", "depends", '["q1"]')
    room.speaks_qless("recur", "plans", "r1", "Daily", '{"a": 1.50}', "interval", 60, 0)
    room.speaks_qless("recur", "plans", "r2", "Weekly", '{"b": 2}', "interval", 3600, 5)
    room.qless.throttles.set("tr1", 3, 0, room.now)
    room.hub.handle_alarm("sample", room.now)
    return room


def responses() -> list[dict[str, Any]]:
    """The response to each request, on a clock that moves one second per request."""
    return asyncio.run(_responses())


async def _responses() -> list[dict[str, Any]]:
    room, web_app = scene(), AppClient(web_settings(password="", tokens=[]))
    client = SceneClient(room)
    web = web_app.room
    web.control = web.tasks._control = web.live._control = client
    found, token, fingerprint = [], "", ""
    with (
        patch.object(time, "time", lambda: room.now / SECOND),
        patch.object(time, "time_ns", lambda: room.now * 1000),
    ):
        for method, path, body in REQUESTS:
            room.advance(SECOND)
            filled = path.replace("{token}", token).replace("{fingerprint}", fingerprint)
            target = filled[1:] if filled.startswith("//") else "/api/v1" + filled
            data = b"" if body is None else msgspec.json.encode(body)
            answer = await web_app.exchange(method, target, JSON if body is not None else {}, data)
            text = answer.body.decode()
            if path == "/leases":
                token = json.loads(text)["leases"][0]["token"]
            if path == "/failures":
                fingerprint = json.loads(text)["failures"][0]["fingerprint"]
            found.append({
                "request": f"{method} {path}",
                "status": answer.status,
                "type": answer.header("content-type"),
                "link": answer.header("link"),
                "body": text,
            })  # fmt: skip
    return found


def known(recorded: Any, current: Any) -> Any:
    """The current value without the members that were added since the recording."""
    if isinstance(recorded, Members) and isinstance(current, Members):
        before = dict(recorded)
        return Members(
            (name, before[name] if name in TEXTS else known(before[name], value))
            for name, value in current
            if name in before
        )
    if isinstance(recorded, list) and isinstance(current, list) and len(recorded) == len(current):
        return [known(*pair) for pair in zip(recorded, current, strict=True)]
    return current


class Members(list[tuple[str, Any]]):
    """An object's members in their order; numbers stay as they are written."""


def parsed(text: str) -> Any:
    return json.loads(text, object_pairs_hook=Members, parse_float=repr_of, parse_int=repr_of)


def repr_of(digits: str) -> str:
    return f"number {digits}"


def test_every_route_is_recorded() -> None:
    recorded = {json.loads(line)["request"].partition("?")[0] for line in RECORDED.open()}
    patterns = {
        f"{each.method} {each.path}": re.compile(
            re.sub(r"{\w+:\w+}", "[^/]+", f"{each.method} {each.path}").replace("/api/v1", "")
        )
        for each in TABLE
    }
    plain = [each.replace(" //", " /") for each in recorded]
    missing = [name for name, pattern in patterns.items() if not any(map(pattern.fullmatch, plain))]
    assert missing == ["GET /api/v1/analytics"]  # needs a lake; see test_analytics_page.py


def test_the_responses_keep_their_names_and_bytes() -> None:
    recorded = [json.loads(line) for line in RECORDED.open()]
    current = responses()
    assert [each["request"] for each in current] == [each["request"] for each in recorded]
    for before, now in zip(recorded, current, strict=True):
        assert now["status"] == before["status"], (before["request"], now["body"])
        assert (now["type"], now["link"]) == (before["type"], before["link"])
        if now["type"] == "application/json":
            old, new = parsed(before["body"]), parsed(now["body"])
            assert known(old, new) == old, before["request"]
        else:
            assert now["body"] == before["body"]


if __name__ == "__main__":
    RECORDED.write_text("".join(json.dumps(each) + "\n" for each in responses()))
