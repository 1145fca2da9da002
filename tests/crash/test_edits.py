"""Edits of a job survive kill -9, each sent alone to an otherwise quiet server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from raw_faktory import RawFaktory
from server_process import ServerProcess, running_server

Client = redis.Redis


def qless(server: ServerProcess) -> Client:
    return redis.Redis(port=server.ports["qless"], decode_responses=True)


def get(client: Client, jid: str) -> dict[str, Any]:
    return json.loads(client.execute_command("QLESS.GET", 0, jid))


def put(client: Client, jid: str, *options: object) -> None:
    client.execute_command("QLESS.PUT", 1, "queue", jid, "klass", "{}", 1_800_000_000, 0, *options)


def call(client: Client, command: str, *arguments: object) -> Any:
    return client.execute_command(f"QLESS.{command}", 0, *arguments)


EDITS: dict[str, Callable[[Client], Any]] = {
    "tag": lambda client: call(client, "TAG", "add", "edited-job", 1_800_000_001, "red", "blue"),
    "priority": lambda client: call(client, "PRIORITY", "edited-job", 7),
    "depends": lambda client: call(client, "DEPENDS", "blocked", "on", "second"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_alone_in_a_turn_survives(edit: str, tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        client = qless(server)
        for jid in ("first", "second", "edited-job"):
            put(client, jid)
        put(client, "blocked", "depends", '["first"]')
        EDITS[edit](client)
        before = {jid: get(client, jid) for jid in ("edited-job", "blocked")}
        server.restart()
        assert {jid: get(qless(server), jid) for jid in before} == before


@pytest.mark.parametrize("edit", ["tag", "priority"])
def test_an_edit_of_a_faktory_job_over_qless_survives(edit: str, tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        with RawFaktory(server.port) as faktory:
            faktory.push({"jid": "edited-job", "jobtype": "mail", "args": [], "queue": "queue"})
        client = qless(server)
        EDITS[edit](client)
        before = get(client, "edited-job")
        server.restart()
        assert get(qless(server), "edited-job") == before
