"""A long command that waits for a commit uses no time of the loop and continues with its end."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from held_server import HeldCommits, HeldServer

from millrace.engine.states import READY
from millrace.protocols.masenko.connection import TRANSACTION_BATCH_SIZE
from millrace.protocols.qless.transactions import STEP_COST
from millrace.server import server as server_module
from millrace.store import StoreWriteFailed

#: Large enough that the command waits for commits before its reply.
TASKS = 2 * TRANSACTION_BATCH_SIZE + 1
PUTS = 2 * STEP_COST + 1
NOW = 1_700_000_000
PUSH = b'PUSH {"name":"n","queue":"q","payload":[1]}\n'


def atomic(tasks: int = TASKS) -> bytes:
    return b"ATOMIC\n" + PUSH * tasks + b"DONE\n"


def _words(*words: object) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def transaction(puts: int = PUTS) -> bytes:
    put = [_words("QLESS.PUT", 1, "q", f"j{n}", "klass", "{}", NOW, 0) for n in range(puts)]
    return _words("MULTI") + b"".join(put) + _words("EXEC")


REQUESTS = {"masenko": (atomic(), TASKS), "qless": (transaction(), PUTS)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HeldServer]:
    server = HeldServer(tmp_path)
    yield server
    server.close()


@pytest.fixture(params=list(REQUESTS))
def protocol(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def begin(server: HeldServer, protocol: str) -> None:
    """Send the request with commits that take until `finish`."""
    server.send(protocol, b"PING\n" if protocol == "masenko" else _words("PING"))
    server.hold()
    server.send(protocol, REQUESTS[protocol][0])


def count_callbacks(server: HeldServer, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of callbacks of the loop in 50 ms."""
    run, calls = asyncio.Handle._run, 0

    def counted(handle: Any) -> Any:
        nonlocal calls
        calls += 1
        return run(handle)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", counted)
        server._loop.run_until_complete(asyncio.sleep(0.05))
    return calls


def finish(server: HeldServer, ended: Callable[[], object]) -> None:
    """End one commit after another."""
    for _ in range(100):
        if ended():
            return
        waiting, HeldCommits.waiting = HeldCommits.waiting, []
        for each in waiting:
            each()
        server._spin()
    raise AssertionError("the command does not continue")


def refuse(server: HeldServer) -> None:
    """The commit in progress fails."""
    HeldCommits.waiting.clear()
    server.store._db.rollback()
    server._loop.call_soon(server.server.turns._after_commit, StoreWriteFailed("disk full"))
    server._spin()


def reply(server: HeldServer, protocol: str) -> bytes:
    """The reply to the request; for Qless, to EXEC."""
    written = server._sessions[protocol, "main"][1].written
    return written if protocol == "masenko" else written.partition(b"*")[2]


def test_a_waiting_command_does_not_use_the_loop(
    server: HeldServer, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(server, protocol)
    while True:  # until it waits for its last commit
        server._spin()
        assert not reply(server, protocol)
        if len(server.engine.jobs) == REQUESTS[protocol][1]:
            break
        finish(server, lambda waiting=list(HeldCommits.waiting): waiting != HeldCommits.waiting)
    assert count_callbacks(server, monkeypatch) < 10
    assert not reply(server, protocol)
    finish(server, lambda: reply(server, protocol))
    assert b"OK" in reply(server, protocol) or reply(server, protocol).startswith(b"%d" % PUTS)


def test_the_command_of_a_lost_client_leaves_no_waiter(server: HeldServer, protocol: str) -> None:
    begin(server, protocol)
    session, _ = server._sessions.pop((protocol, "main"))
    session.connection_lost(None)
    server.release()
    finish(server, lambda: not server.engine.has_uncommitted)
    assert not server.engine.commit_waiters
    assert not server.server.queue._waiting
    assert server.send("masenko", b"PING\n") == b"PONG {}\n"


def test_a_refused_commit_ends_the_wait(server: HeldServer, protocol: str) -> None:
    begin(server, protocol)
    refuse(server)
    assert not server.engine.commit_waiters
    assert b"disk full" in server._sessions[protocol, "main"][1].written
    assert not server.engine.jobs
    assert not server.server.queue._waiting


def test_a_second_command_of_the_client_waits_too(server: HeldServer) -> None:
    begin(server, "masenko")
    session, transport = server._sessions["masenko", "main"]
    session.data_received(atomic() + b"PING\n")
    finish(server, lambda: b"PONG" in transport.written)
    assert transport.written.count(b"OK") == 2
    assert len(server.engine.jobs) == 2 * TASKS
    assert all(job.state == READY for job in server.engine.jobs.values())


def test_a_server_that_stops_answers_the_command(
    server: HeldServer, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changes are durable, so the client must learn of them."""
    monkeypatch.setattr(server_module, "LAST_REPLIES_TIMEOUT", 30)  # the machine may be busy
    begin(server, protocol)

    async def stop() -> None:
        stopping = asyncio.ensure_future(server.server.stop(0, asyncio.Event()))
        await asyncio.sleep(0.01)
        HeldCommits.held = False
        waiting, HeldCommits.waiting = HeldCommits.waiting, []
        for each in waiting:
            each()
        await stopping

    server._loop.run_until_complete(stop())
    assert len(server.engine.jobs) == REQUESTS[protocol][1]
    assert reply(server, protocol)


def test_a_defect_after_a_commit_does_not_stop_later_commits(
    server: HeldServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.hold()
    assert not server.send("masenko", PUSH, "first")
    assert not server.send("masenko", PUSH, "second")  # its turn is due when the commit ends

    def defect() -> None:
        monkeypatch.undo()
        raise RuntimeError("a defect")

    monkeypatch.setattr(server.server.turns, "_turn_finished", defect)
    server._loop.set_exception_handler(lambda *_: None)
    server.release()
    assert server.written("masenko", "second").startswith(b"OK")
    assert server.send("masenko", PUSH, "third").startswith(b"OK")


def test_a_client_that_waits_for_a_slow_commit_is_not_silent(server: HeldServer) -> None:
    (hub,) = [hub for hub in server.server.hubs if hub.protocol == "masenko"]
    hub.heartbeat = 50_000
    server.send("masenko", b"PING\n")
    server.hold()
    assert not server.send("masenko", PUSH)
    server.sleep(0.3)
    assert not server.written("masenko", "main")
    server.release()
    assert server.written("masenko", "main") == b'OK {"id":1}\n'
    server.sleep(0.3)
    assert server.written("masenko", "main").endswith(b'ERR {"msg":"no heartbeat"}\n')
