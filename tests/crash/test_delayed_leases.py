"""The commit of a lease waits for the next change, but not for long."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_rows import faktory
from held_server import HeldServer

from failing_stores import FailingSqliteStore
from millrace.engine.states import LEASED, READY
from millrace.server import turns
from millrace.store import SqliteStore

FETCH = b"FETCH q\r\n"
#: Longer than the delay of a server, so that the time of a test does not matter.
DELAY = 0.5


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldServer]:
    monkeypatch.setattr(turns, "LEASE_COMMIT_DELAY", DELAY)
    server = HeldServer(tmp_path, FailingSqliteStore)
    try:
        yield server
    finally:
        server.close()


def push(server: HeldServer, jid: str, queue: str = "q") -> bytes:
    return server.send("faktory", _push(jid, queue), "producer")


def _push(jid: str, queue: str) -> bytes:
    return faktory("PUSH", {"jid": jid, "jobtype": "t", "args": [], "queue": queue})


def ack(server: HeldServer, jid: str) -> bytes:
    return server.send("faktory", faktory("ACK", {"jid": jid}), "worker")


def states_on_disk(folder: Path) -> dict[str, int]:
    """The states of the jobs that a server would have after kill -9 now."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "data", copy)
    store = SqliteStore(copy, sync=False)
    try:
        return {job.jid: job.state for job in store.load().jobs.values()}
    finally:
        store.close()


def test_a_lease_of_a_quiet_server_is_soon_on_disk(server: HeldServer, tmp_path: Path) -> None:
    push(server, "a-job-000")
    assert b"a-job-000" in server.send("faktory", FETCH, "worker")
    assert states_on_disk(tmp_path) == {"a-job-000": READY}
    server.sleep(2 * DELAY)
    assert states_on_disk(tmp_path) == {"a-job-000": LEASED}
    assert not server.engine.has_uncommitted


def test_the_end_of_a_job_is_committed_with_its_lease(server: HeldServer, tmp_path: Path) -> None:
    before = server.server.turns.synced
    push(server, "a-job-000")
    server.send("faktory", FETCH, "worker")
    assert server.server.turns.synced == before + 1
    assert ack(server, "a-job-000") == b"+OK\r\n"
    assert server.server.turns.synced == before + 2
    assert states_on_disk(tmp_path) == {}


def test_a_change_of_another_client_commits_the_lease(server: HeldServer, tmp_path: Path) -> None:
    push(server, "a-job-000")
    server.send("faktory", FETCH, "worker")
    push(server, "b-job-000")
    assert states_on_disk(tmp_path) == {"a-job-000": LEASED, "b-job-000": READY}


def test_many_leases_are_committed_at_once(server: HeldServer, tmp_path: Path) -> None:
    for number in range(turns.MAX_UNAWAITED_EVENTS):
        push(server, f"a-job-{number:03}")
    before = server.server.turns.synced
    server.send("faktory", FETCH * turns.MAX_UNAWAITED_EVENTS, "worker")
    assert server.server.turns.synced > before
    assert LEASED in states_on_disk(tmp_path).values()


def test_an_ack_after_a_crash_ends_a_lease_that_was_not_committed(
    server: HeldServer, tmp_path: Path
) -> None:
    push(server, "a-job-000")
    server.send("faktory", FETCH, "worker")
    folder = tmp_path / "after"
    shutil.copytree(tmp_path / "data", folder / "data")  # kill -9
    restarted = HeldServer(folder)
    try:
        assert ack(restarted, "a-job-000") == b"+OK\r\n"
        assert states_on_disk(folder) == {}
        assert not restarted.engine.jobs
    finally:
        restarted.close()


def test_a_lease_after_a_held_reply_keeps_the_order(server: HeldServer, tmp_path: Path) -> None:
    push(server, "a-job-000")
    server.hold()
    assert not server.send("faktory", _push("b-job-000", "others") + FETCH, "worker")
    server.release()
    reply = server.written("faktory", "worker")
    assert reply.startswith(b"+OK\r\n$")
    assert b"a-job-000" in reply
    assert states_on_disk(tmp_path) == {"a-job-000": LEASED, "b-job-000": READY}


def test_a_lease_during_a_commit_is_committed_later(server: HeldServer, tmp_path: Path) -> None:
    push(server, "a-job-000")
    server.hold()
    push(server, "b-job-000", "others")
    assert b"a-job-000" in server.send("faktory", FETCH, "worker")
    server.release()
    assert states_on_disk(tmp_path) == {"a-job-000": READY, "b-job-000": READY}
    server.sleep(2 * DELAY)
    assert states_on_disk(tmp_path) == {"a-job-000": LEASED, "b-job-000": READY}


def test_a_refused_commit_undoes_the_leases_in_it(server: HeldServer, tmp_path: Path) -> None:
    push(server, "a-job-000")
    server.send("faktory", FETCH, "worker")
    server.store.fail = "commit"
    assert push(server, "b-job-000").startswith(b"-ERR")
    assert server.engine.find("b-job-000") is None
    job = server.engine.find("a-job-000")
    assert job is not None
    assert job.state == READY
    assert server.engine.find_leased("a-job-000", job.origin) is None
    server.store.fail = ""
    server.sleep(0.7)  # the store is probed
    # The worker still has the job, and its ACK ends it.
    assert ack(server, "a-job-000") == b"+OK\r\n"
    assert states_on_disk(tmp_path) == {}


def test_a_delayed_lease_is_written_before_the_server_stops(
    server: HeldServer, tmp_path: Path
) -> None:
    push(server, "a-job-000")
    server.send("faktory", FETCH, "worker")
    server.drain()
    assert states_on_disk(tmp_path) == {"a-job-000": LEASED}
