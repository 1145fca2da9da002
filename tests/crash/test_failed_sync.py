"""A disk that cannot sync: the server must not continue."""

import json
from pathlib import Path

import pytest
from audit import drain, total
from ledger import QUEUES, Ledger

from raw_faktory import RawFaktory, RefusedError, line
from server_process import ServerProcess, server_process


def explanation(server: ServerProcess) -> str:
    """The errors that the server logged, in lower case."""
    problems = [
        record
        for record in server.log_records()
        if str(record.get("level", "")).lower() in {"error", "critical", "fatal"}
    ]
    assert problems, f"no error in the log:\n{server.stderr}"
    assert "Traceback" not in server.stderr
    return json.dumps(problems, ensure_ascii=False).lower()


def test_a_failed_sync_ends_the_server_without_an_acknowledgement(
    tmp_path: Path, sync_shim: Path
) -> None:
    trigger = tmp_path / "sync fails now"
    ledger = Ledger()
    with server_process(tmp_path / "data") as server:
        server.start(LD_PRELOAD=str(sync_shim), SYNC_SHIM_FAIL=str(trigger))
        with RawFaktory(server.port) as producer, RawFaktory(server.port, wid="w") as worker:
            for n in range(50):
                producer.push(ledger.pushing(f"acknowledged-{n}", 25))
                ledger.pushed(f"acknowledged-{n}")
            job = ledger.handed_out(worker.fetch(*QUEUES))
            trigger.touch()

            unheard = ledger.pushing("after-the-failure", 25)
            producer.send(line("PUSH", unheard))
            ledger.finishing(job.jid)
            worker.send(line("ACK", {"jid": job.jid}))
            for connection in (producer, worker):
                with pytest.raises((RefusedError, ConnectionError)):
                    connection.reply()
            assert server.wait() > 0
        errors = explanation(server)
        assert "sync" in errors
        assert "disk" in errors
        assert str(server.data).lower() in errors
        assert "start" in errors  # the message names the next step

        ledger.life += 1
        server.start()
        with RawFaktory(server.port, wid="auditor") as auditor:
            ledger.check_total(total(auditor.info()))
            drain(auditor, ledger)


def test_a_server_that_cannot_sync_at_all_does_not_start(tmp_path: Path, sync_shim: Path) -> None:
    with server_process(tmp_path / "data") as server:
        server.spawn(LD_PRELOAD=str(sync_shim), SYNC_SHIM_FAIL=str(sync_shim))
        assert server.wait() > 0
        assert "sync" in explanation(server)
