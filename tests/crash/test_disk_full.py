"""A full disk: the server refuses changes with an error, other commands work, and space restores
all.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from audit import drain, replies, total
from ledger import QUEUES, Ledger

from raw_faktory import RawFaktory, RefusedError, line
from server_process import DidNotStartError, server_process

DISK = "64m"
BALLAST = (
    32 << 20
)  # freed later: enough for all writes that the store postpones while the disk is full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.strip()}")
    (folder / "ballast").write_bytes(bytes(BALLAST))
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def push(connection: RawFaktory, ledger: Ledger, jid: str) -> str | None:
    """The text of the error, or None; the ledger records either."""
    try:
        connection.push(ledger.pushing(jid, 25))
    except RefusedError as refusal:
        ledger.refused(jid)
        return str(refusal)
    ledger.pushed(jid)
    return None


def fill(connection: RawFaktory, ledger: Ledger) -> str:
    for n in range(2000):
        if refusal := push(connection, ledger, f"fill-large-{n:04d}"):
            return refusal
    raise AssertionError(f"a disk of {DISK} took 2000 jobs of 64 KiB")


def test_a_full_disk_is_reported_and_recovered_from(small_disk: Path) -> None:
    ledger = Ledger()
    with server_process(small_disk / "data") as server:
        server.start()
        with (
            RawFaktory(server.port) as producer,
            RawFaktory(server.port, wid="some-worker") as worker,
        ):
            assert push(producer, ledger, "first-of-all") is None
            held = ledger.handed_out(worker.fetch(*QUEUES))
            refusal = fill(producer, ledger)
            assert refusal.startswith("ERR ")
            assert "disk" in refusal.lower()

            # A batch of small pushes: accepted ones must be stored, refused ones must not.
            units = [ledger.pushing(f"squeeze-{n:04d}", 25) for n in range(100)]
            answers = replies(producer, [line("PUSH", unit) for unit in units])
            for unit, answer in zip(units, answers, strict=True):
                if answer == "OK":
                    ledger.pushed(unit["jid"])
                else:
                    assert "disk" in str(answer).lower()
                    ledger.refused(unit["jid"])

            # Reads and waits work.
            ledger.check_total(total(producer.info()))
            started = time.monotonic()
            assert worker.fetch("nothing-in-here") is None
            assert 1.9 < time.monotonic() - started < 20

            # The reserve has space for completions.
            ledger.finishing(held.jid)
            (answer,) = replies(worker, [line("ACK", {"jid": held.jid})])
            assert answer == "OK"
            ledger.finished(held.jid)
            ledger.check_total(total(producer.info()))
            assert server.alive

            # With space again, no restart is needed.
            (small_disk / "ballast").unlink()
            deadline = time.monotonic() + 5
            attempts = iter(range(10**6))
            while push(producer, ledger, f"again-{next(attempts):06d}") is not None:
                assert time.monotonic() < deadline, "there is space again, but pushes are refused"
                time.sleep(0.05)
            for n in range(10):
                assert push(producer, ledger, f"afterwards-{n:04d}") is None
            ledger.check_total(total(producer.info()))

        ledger.life += 1
        server.restart()
        with RawFaktory(server.port, wid="auditor") as auditor:
            ledger.check_total(total(auditor.info()))
            drain(auditor, ledger)


def test_on_a_full_disk_jobs_can_be_completed_and_removed(small_disk: Path) -> None:
    """Pushes are refused until enough is removed; then they are accepted without a restart."""
    ledger = Ledger()
    with server_process(small_disk / "data") as server:
        server.start()
        reserve = small_disk / "data" / "reserve"
        assert reserve.stat().st_size == 8 << 20
        with (
            RawFaktory(server.port) as producer,
            RawFaktory(server.port, wid="some-worker") as worker,
        ):
            fill(producer, ledger)
            deadline = time.monotonic() + 10
            completed = 0
            while completed < 50:
                job = worker.fetch(*QUEUES)  # waits until the store is writable again
                if job is not None:
                    worker.ack(job["jid"])
                    completed += 1
                assert time.monotonic() < deadline
            assert not reserve.exists()
            with pytest.raises(RefusedError, match="disk full"):
                producer.push(ledger.pushing("still-refused", 25))
            producer.command("FLUSH")
            while True:
                try:
                    producer.push({"jid": "afterwards-0", "jobtype": "t", "args": []})
                    break
                except RefusedError:
                    assert time.monotonic() < deadline + 10
                    time.sleep(0.05)
            assert reserve.stat().st_size == 8 << 20
        messages = [record["message"] for record in server.log_records()]
        assert "New jobs are refused: disk full. All other commands continue." in messages
        assert "New jobs are accepted again. Removed cause: disk full." in messages


def test_a_server_killed_on_a_full_disk_recovers_when_space_is_freed(
    small_disk: Path,
) -> None:
    ledger = Ledger()
    with server_process(small_disk / "data") as server:
        server.start()
        with RawFaktory(server.port) as producer:
            fill(producer, ledger)
        server.kill()

        ledger.life += 1
        try:
            server.start()
        except DidNotStartError:
            message = server.log_records()[-1]["message"]
            assert "disk" in message.lower()
            assert str(server.data) in message
            assert "Traceback" not in server.stderr
        else:
            with RawFaktory(server.port) as producer:
                ledger.check_total(total(producer.info()))
            server.kill()

        (small_disk / "ballast").unlink()
        ledger.life += 1
        server.start()
        with RawFaktory(server.port, wid="auditor") as auditor:
            drain(auditor, ledger)
