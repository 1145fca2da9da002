"""Idempotency keys: in the admin service, over HTTP, and across a crash."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from admin_room import Room
from millrace.admin import idempotency
from millrace.admin.errors import AdminError
from millrace.admin.work import push
from millrace.engine.settings import IDEMPOTENCY_PREFIX
from millrace.protocols.registry import HTTP
from millrace.records import PushJob, PushJobs
from server_process import ServerProcess, running_server

HOUR = 3600 * 1_000_000


@pytest.fixture
def room() -> Room:
    return Room()


def push_with(room: Room, key: str, payload: bytes = b"1", now: int | None = None) -> int:
    request = PushJobs([PushJob("q", payload)], "me", key, payload.decode())
    return push(room.hub, request, room.now if now is None else now).jobs[0].seq


def test_a_repeated_push_returns_the_first_job_even_after_its_end(room: Room) -> None:
    first = push_with(room, "key")
    assert push_with(room, "key") == first
    job = room.engine.lease(("q",), "w", HTTP, room.now)
    assert job is not None
    room.engine.complete(job, room.now, HTTP)
    assert push_with(room, "key", now=room.now + 23 * HOUR) == first
    assert not room.engine.jobs


def test_a_key_ends_after_a_day(room: Room) -> None:
    first = push_with(room, "key")
    later = room.now + 24 * HOUR
    assert push_with(room, "key", now=later) != first
    room.hub.idempotency.expire(later + 25 * HOUR)
    assert not [note for note in room.engine.settings if note.startswith(IDEMPOTENCY_PREFIX)]


def test_another_request_with_the_same_key_is_a_conflict(room: Room) -> None:
    push_with(room, "key")
    with pytest.raises(AdminError, match="another request") as error:
        push_with(room, "key", b"2")
    assert error.value.code == "conflict"
    assert push_with(room, "other", b"2") == 2


def test_the_number_of_keys_is_limited(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MAX_KEYS", 2)
    first = push_with(room, "a")
    push_with(room, "b")
    with pytest.raises(AdminError, match="Too many"):
        push_with(room, "c")
    assert push_with(room, "a") == first
    assert push_with(room, "c", now=room.now + 24 * HOUR) == 3


def test_a_long_key_is_refused(room: Room) -> None:
    with pytest.raises(AdminError, match="at most 255"):
        push_with(room, "x" * 256)


def test_a_flush_ends_all_keys(room: Room) -> None:
    first = push_with(room, "key")
    room.engine.flush(room.now)
    assert push_with(room, "key") != first


def test_a_key_survives_kill_9(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        body = {"queue": "mail", "payload": {"order": 7}, "delay": 60}
        first = post(server, body, "order-7")
        assert post(server, body, "order-7") == first
        server.kill()
        server.start()
        assert post(server, body, "order-7") == first
        with pytest.raises(urllib.error.HTTPError) as error:
            post(server, {"queue": "mail", "payload": 8}, "order-7")
        assert error.value.code == 409
        assert post(server, body, "order-8")["jobs"][0]["number"] == 2


def post(server: ServerProcess, body: Any, key: str) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.ports['web']}/api/v1/jobs",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Idempotency-Key": key},
    )
    with urllib.request.urlopen(request) as reply:
        assert reply.status == 201
        return json.load(reply)
