"""EXEC of many commands under SIGKILL: all of its jobs are there, or none."""

from pathlib import Path

import pytest
import redis

from raw_faktory import RawFaktory
from server_process import ServerProcess, server_process

COMMANDS = 5000
QUEUE = "exec"


def enqueued(server: ServerProcess) -> int:
    with RawFaktory(server.port) as faktory:
        return int(faktory.info()["faktory"]["queues"].get(QUEUE, 0))


def send_exec(server: ServerProcess, attempt: int) -> redis.Connection:
    """Send a transaction without waiting for its reply."""
    connection = redis.Connection(port=server.ports["qless"])
    puts = [
        ("QLESS.PUT", 1, QUEUE, f"{attempt}-{number}", "klass", "{}", 1_700_000_000, 0)
        for number in range(COMMANDS)
    ]
    connection.send_packed_command(connection.pack_commands([("MULTI",), *puts]))
    for _ in range(COMMANDS + 1):
        connection.read_response()
    connection.send_command("EXEC")
    return connection


@pytest.mark.parametrize("attempt", range(3))
def test_a_kill_between_two_steps_leaves_all_or_nothing(tmp_path: Path, attempt: int) -> None:
    with server_process(tmp_path / "data") as server:
        server.start()
        with RawFaktory(server.port) as faktory:
            connection = send_exec(server, attempt)
            wanted = (1, COMMANDS // 3, COMMANDS // 2)[attempt]
            while (seen := int(faktory.info()["faktory"]["queues"].get(QUEUE, 0))) < wanted:
                pass
            server.kill()
            connection.disconnect()
        assert seen < COMMANDS, "the transaction ended before the kill"
        server.start()
        assert enqueued(server) in {0, COMMANDS}
        server.kill()
        server.start()
        assert enqueued(server) in {0, COMMANDS}
