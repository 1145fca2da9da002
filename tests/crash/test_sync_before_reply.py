"""With a sync of 300 ms: the replies that wait for it, and the replies that must not."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from power_cut import cut_back

from raw_faktory import RawFaktory, line
from server_process import ServerProcess, server_process

SYNC = 0.3


class SlowDisk:
    """A server on a disk that is slow from `slow()` on."""

    def __init__(self, server: ServerProcess, trigger: Path) -> None:
        self.server = server
        self._trigger = trigger
        self._connections: list[RawFaktory] = []

    def connect(self, wid: str | None = None) -> RawFaktory:
        connection = RawFaktory(self.server.port, wid=wid)
        self._connections.append(connection)
        return connection

    def slow(self) -> float:
        self._trigger.touch()
        return time.monotonic()

    def fast(self) -> None:
        self._trigger.unlink()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@pytest.fixture
def disk(tmp_path: Path, sync_shim: Path) -> Iterator[SlowDisk]:
    trigger = tmp_path / "sync is slow now"
    with server_process(
        tmp_path / "data",
        LD_PRELOAD=str(sync_shim),
        SYNC_SHIM_DELAY=str(trigger),
        SYNC_SHIM_LOG=str(tmp_path / "syncs.log"),
    ) as server:
        server.start()
        disk = SlowDisk(server, trigger)
        try:
            yield disk
        finally:
            disk.close()


def unit(jid: str) -> dict[str, Any]:
    return {"jid": jid, "queue": "q", "jobtype": "t", "args": []}


def since(started: float) -> float:
    return time.monotonic() - started


def test_a_push_waits_for_the_sync_and_an_info_does_not(disk: SlowDisk) -> None:
    producer, reader = disk.connect(), disk.connect()
    producer.push(unit("some-job"))
    started = disk.slow()
    producer.send(line("PUSH", unit("slow-job")))
    reader.info()
    assert since(started) < SYNC * 0.7
    assert producer.reply() == "OK"
    assert since(started) >= SYNC


def test_ack_and_fail_wait_for_the_sync(disk: SlowDisk) -> None:
    worker = disk.connect("some-worker")
    for n in range(2):
        worker.push(unit(f"some-job-{n}"))
        worker.fetch("q")
    started = disk.slow()
    worker.ack("some-job-0")
    assert since(started) >= SYNC
    started = time.monotonic()
    worker.fail("some-job-1")
    assert since(started) >= SYNC


def test_concurrent_clients_share_one_sync(disk: SlowDisk) -> None:
    producers = [disk.connect() for _ in range(30)]
    started = disk.slow()
    for n, producer in enumerate(producers):
        producer.send(line("PUSH", unit(f"some-job-{n}")))
    for producer in producers:
        assert producer.reply() == "OK"
    assert SYNC <= since(started) < 2.0  # one after the other would take 9 s


def test_replies_keep_their_order_while_one_waits(disk: SlowDisk) -> None:
    """An INFO behind a PUSH on the same connection waits for the PUSH."""
    connection = disk.connect("some-worker")
    started = disk.slow()
    connection.send(line("PUSH", unit("some-job")) + line("INFO") + line("FETCH q"))
    assert connection.reply() == "OK"
    assert since(started) >= SYNC
    info, job = connection.reply(), connection.reply()
    assert isinstance(info, bytes)
    assert info.startswith(b'{"now"')
    assert isinstance(job, bytes)
    assert b'"some-job"' in job


def test_the_same_push_from_another_connection_waits_for_the_first_ones_sync(
    disk: SlowDisk,
) -> None:
    """It has no effect, but its +OK depends on a change that is not on the disk yet."""
    first, second = disk.connect(), disk.connect()
    started = disk.slow()
    first.send(line("PUSH", unit("some-job")))
    wait_until_visible(second, "q")
    second.push(unit("some-job"))
    assert since(started) >= SYNC
    assert first.reply() == "OK"
    assert second.queue_size("q") == 1


def test_the_same_ack_from_another_connection_waits_for_the_first_ones_sync(
    disk: SlowDisk,
) -> None:
    first, second = disk.connect("some-worker"), disk.connect()
    first.push(unit("some-job"))
    first.fetch("q")
    started = disk.slow()
    first.send(line("ACK", {"jid": "some-job"}))
    deadline = started + 5
    while second.set_size("working"):
        assert time.monotonic() < deadline
    second.ack("some-job")
    assert since(started) >= SYNC
    assert first.reply() == "OK"


def test_unsynced_data_at_restart_is_synced_before_its_acknowledgement(
    disk: SlowDisk, tmp_path: Path
) -> None:
    """Killed between write and sync, the job is in the log, but not synced.

    The client got no reply, pushes it again and gets OK; then the power fails.
    """
    producer = disk.connect()
    producer.push(unit("first-job"))
    (log,) = disk.server.data.rglob("*-wal")
    size = log.stat().st_size
    disk.slow()
    producer.send(line("PUSH", unit("some-job")))
    deadline = time.monotonic() + 5
    while log.stat().st_size == size:
        assert time.monotonic() < deadline, "the log does not grow"
    disk.server.kill()
    disk.fast()

    disk.server.start()
    disk.connect().push(unit("some-job"))
    disk.server.kill()
    for log in disk.server.data.rglob("*-wal"):
        cut_back(log, tmp_path / "syncs.log")

    disk.server.start()
    assert disk.connect().queue_size("q") == 2


def wait_until_visible(connection: RawFaktory, queue: str) -> None:
    deadline = time.monotonic() + 5
    while not connection.queue_size(queue):
        assert time.monotonic() < deadline


def test_replies_that_wait_for_a_slow_disk_are_bounded(disk: SlowDisk) -> None:
    """Replies behind a reply that waits for the sync wait, too; so the server produces only few of
    them.
    """
    reader = socket.create_connection(("127.0.0.1", disk.server.ports["qless"]), 30)
    reader.sendall(b"RPUSH k %b\r\n" % (b"x" * 60_000))
    assert reader.recv(100) == b":1\r\n"
    before = _resident(disk.server)
    disk.slow()
    reader.sendall(b"QLESS.PUT 1 q jid klass {} 1352375209 0\r\n" + b"LRANGE k 0 -1\r\n" * 2000)
    received = reader.recv(1 << 20)
    assert received.startswith(b"$3\r\njid\r\n")
    assert _resident(disk.server) - before < 16
    size = len(b"$3\r\njid\r\n") + 2000 * len(b"*1\r\n$60000\r\n" + b"x" * 60_000 + b"\r\n")
    got = len(received)
    while got < size:
        got += len(reader.recv(1 << 20))
    assert got == size
    reader.close()


def _resident(server: ServerProcess) -> float:
    """MiB."""
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
