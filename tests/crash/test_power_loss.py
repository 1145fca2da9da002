"""After a power cut the log contains only synced data. A kill alone cannot show this."""

import random
import signal
from pathlib import Path

import pytest
from audit import drain, total
from ledger import Ledger, ViolationError
from power_cut import cut_back
from traffic import Traffic

from raw_faktory import RawFaktory
from server_process import server_process

CYCLES = 6


def power_cuts(folder: Path, shim: Path, seed: int, durability: str) -> None:
    """Work, kill, and cut the log back to its size at its last sync, again and again."""
    rng = random.Random(seed)
    ledger = Ledger()
    syncs = folder / "syncs.log"
    with server_process(
        folder / "data",
        MILLRACE_SERVER_DURABILITY=durability,
        LD_PRELOAD=str(shim),
        SYNC_SHIM_LOG=str(syncs),
    ) as server:
        for _ in range(CYCLES):
            ledger.life += 1
            server.start()
            with RawFaktory(server.port) as connection:
                ledger.check_total(total(connection.info()))
            last_reply = rng.randint(1, 400)

            def on_reply(number: int, last_reply: int = last_reply) -> None:
                if number == last_reply:
                    server.signal(signal.SIGKILL)

            traffic = Traffic(server.port, ledger, rng, on_reply)
            traffic.start()
            try:
                server.wait()
            finally:
                server.kill()
                traffic.join()
            for log in server.data.rglob("*-wal"):
                cut_back(log, syncs)
            if durability == "os":  # after the next boot the mark does not count
                (server.data / "mark").unlink()
        ledger.life += 1
        server.start()
        with RawFaktory(server.port, wid="auditor") as auditor:
            drain(auditor, ledger)


def test_acknowledged_commands_survive_a_power_cut(tmp_path: Path, sync_shim: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    power_cuts(tmp_path, sync_shim, seed, "fsync")


def test_a_server_without_syncs_is_detected(tmp_path: Path, sync_shim: Path) -> None:
    with pytest.raises(ViolationError, match="lost"):
        power_cuts(tmp_path, sync_shim, 1, "os")
