"""The replies to commands whose commit the store refuses: one per command, and at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_rows import faktory, workq
from held_server import HeldServer

from failing_stores import FailingSqliteStore

REFUSED = b"-SERVER-ERROR "


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HeldServer]:
    server = HeldServer(tmp_path, FailingSqliteStore)
    try:
        yield server
    finally:
        server.close()


def uid(number: int) -> str:
    return f"61a444a0-6128-41c0-8078-{number:012x}"


def add(number: int, size: int = 3) -> bytes:
    return workq("add", uid(number), "q", 60_000, 600_000, block=b"x" * size)


def refuse_commits(server: HeldServer) -> None:
    assert isinstance(server.store, FailingSqliteStore)
    server.store.fail = "commit"


def test_a_run_whose_push_is_refused_ends_with_the_error(server: HeldServer) -> None:
    refuse_commits(server)
    reply = server.send("workq", workq("run", uid(1), "q", 60_000, 600_000, block=b"x"))
    assert reply.startswith(REFUSED)
    assert reply.count(b"\r\n") == 1
    assert not server.engine.jobs
    assert not server.engine.waiters.awaited_job_count
    assert server.send("workq", b"inspect server\r\n").startswith(b"+OK 1")


@pytest.mark.parametrize("protocol", ["workq", "faktory"])
def test_a_wait_for_a_job_whose_push_is_refused_ends_with_the_error(
    server: HeldServer, protocol: str
) -> None:
    server.hold()
    refuse_commits(server)
    assert server.send("workq", add(1), "producer") == b""
    request = (
        workq("result", uid(1), 600_000)
        if protocol == "workq"
        else faktory("MILLRACE", {"result": {"jid": uid(1), "wait": 30}})
    )
    assert server.send(protocol, request, "waiting") == b""
    server.release()
    assert server.written("workq", "producer").startswith(REFUSED)
    reply = server.written(protocol, "waiting")
    assert reply.startswith(b"-")
    assert b"disk full" in reply
    assert reply.count(b"\r\n") == 1


def test_a_long_inspect_whose_commit_is_refused_has_one_error(server: HeldServer) -> None:
    for number in range(9):
        assert server.send("workq", add(number, 40_000)) == b"+OK\r\n"
    server.hold()
    refuse_commits(server)
    assert server.send("workq", add(9, 40_000), "producer") == b""
    assert server.send("workq", b"inspect jobs q 0 10\r\ninspect server\r\n", "reader") == b""
    server.release()
    reply = server.written("workq", "reader")
    assert reply.startswith(REFUSED)
    lines = reply.split(b"\r\n")
    assert lines[1] == b"+OK 1"
    assert lines[2] == b"server 3"
    assert reply.count(REFUSED) == 1


def test_a_long_inspect_after_a_commit_is_complete(server: HeldServer) -> None:
    server.hold()
    for number in range(9):
        assert server.send("workq", add(number, 40_000), f"producer-{number}") == b""
    assert server.send("workq", b"inspect jobs q 0 10\r\n", "reader") == b""
    server.release()
    reply = server.written("workq", "reader")
    assert reply.startswith(b"+OK 9\r\n")
    assert reply.count(b"x" * 40_000) == 9
