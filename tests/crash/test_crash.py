"""SIGKILL at random times, torn files, and two servers on the same folder."""

import random
import time
from pathlib import Path

import pytest
from audit import drain, total
from ledger import Ledger, ViolationError
from rounds import crash_test

from raw_faktory import RawFaktory, line
from server_process import ServerProcess, running_server, server_process


def new_seed() -> int:
    return random.SystemRandom().randrange(10**6)  # printed with a failure


def test_twenty_rounds(tmp_path: Path) -> None:
    run = crash_test(20, new_seed(), tmp_path)
    assert run.tally.kills >= 20
    # Many more on an idle machine.
    assert run.ledger.acknowledged_pushes > 20
    assert run.ledger.acknowledged_acks > 20


def test_without_syncs_a_killed_process_loses_no_data(tmp_path: Path) -> None:
    crash_test(4, new_seed(), tmp_path, durability="os")


def test_the_rounds_detect_a_server_without_durability(tmp_path: Path) -> None:
    with pytest.raises(ViolationError, match="lost"):
        crash_test(20, 1, tmp_path, durability="memory")
    assert (tmp_path / "ledger.jsonl").exists()
    assert (tmp_path / "stderr.log").exists()


@pytest.mark.parametrize("damage", ["cut off", "garbage"])
def test_a_torn_log_tail_loses_no_acknowledged_command(tmp_path: Path, damage: str) -> None:
    """Data after the last acknowledgement may be damaged in any way, and the mark may be equally
    old, because it is not synced.
    """
    seed = new_seed()
    print(f"seed {seed}")
    rng = random.Random(seed)
    ledger = Ledger()
    with server_process(tmp_path / "data") as server:
        for cycle in range(4):
            ledger.life += 1
            server.start()
            with RawFaktory(server.port) as connection:
                ledger.check_total(total(connection.info()))
                push_acknowledged(connection, ledger, f"before-{cycle}", rng.randint(1, 100))
                (log,) = server.data.rglob("*-wal")
                safe = log.stat().st_size
                mark = (server.data / "mark").read_bytes()
                push_without_reply(connection, ledger, f"after-{cycle}", rng.randint(1, 100))
                wait_for_growth(log, safe)
                server.kill()
            tear(log, safe, damage, rng)
            (server.data / "mark").write_bytes(mark)
        ledger.life += 1
        server.start()
        with RawFaktory(server.port, wid="auditor") as auditor:
            drain(auditor, ledger)


def push_acknowledged(connection: RawFaktory, ledger: Ledger, name: str, count: int) -> None:
    for n in range(count):
        connection.push(ledger.pushing(f"{name}-{n:06d}", 25))
        ledger.pushed(f"{name}-{n:06d}")


def push_without_reply(connection: RawFaktory, ledger: Ledger, name: str, count: int) -> None:
    units = [ledger.pushing(f"{name}-{n:06d}", 25) for n in range(count)]
    connection.send(b"".join(line("PUSH", unit) for unit in units))


def wait_for_growth(log: Path, size: int) -> None:
    deadline = time.monotonic() + 10
    while log.stat().st_size <= size:
        assert time.monotonic() < deadline, "the log does not grow"
        time.sleep(0.001)


def tear(log: Path, safe: int, damage: str, rng: random.Random) -> None:
    size = log.stat().st_size
    place = rng.randint(safe, size - 1)
    with log.open("r+b") as file:
        if damage == "cut off":
            file.truncate(place)
        else:
            file.seek(place)
            file.write(rng.randbytes(size - place))


def test_a_second_server_on_the_same_folder_is_refused(
    server: ServerProcess, faktory: RawFaktory
) -> None:
    unit = {"jid": "before-second", "queue": "q", "jobtype": "t", "args": []}
    faktory.push(unit)
    with server_process(server.data) as second:
        second.spawn()
        assert second.wait() not in {0, None}
        output = second.stderr
    assert str(server.data) in output
    assert "Traceback" not in output
    assert any(word in output.lower() for word in ("another", "already", "in use", "locked")), (
        output
    )

    faktory.push({**unit, "jid": "after-second"})
    assert server.alive
    assert [faktory.fetch("q")["jid"] for _ in range(2)] == ["before-second", "after-second"]
    server.restart()
    with RawFaktory(server.port) as connection:
        assert total(connection.info()) == 2


def test_pausing_and_removing_a_queue_survive_a_kill(tmp_path: Path) -> None:
    unit = {"jobtype": "t", "args": []}
    with running_server(tmp_path / "data") as server:
        with RawFaktory(server.port) as connection:
            connection.push({**unit, "jid": "in-paused", "queue": "paused"})
            connection.push({**unit, "jid": "in-removed", "queue": "removed"})
            assert connection.command("QUEUE PAUSE paused") == "OK"
            assert connection.command("QUEUE REMOVE removed") == "OK"
        server.restart()
        with RawFaktory(server.port, wid="some-worker") as connection:
            assert connection.queue_size("paused") == 1
            assert "removed" not in connection.info()["faktory"]["queues"]
            assert connection.fetch("paused", "removed") is None
            assert connection.command("QUEUE RESUME paused") == "OK"
            assert connection.fetch("paused")["jid"] == "in-paused"
