"""A server that refuses its data folder does not change it, not even when its process ends."""

from pathlib import Path

import pytest

from raw_faktory import RawFaktory
from server_process import DidNotStartError, ServerProcess

KEPT = ("millrace.db", "millrace.db-wal", "mark")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in KEPT}


def test_a_refused_folder_is_unchanged_after_the_process_ends(server: ServerProcess):
    with RawFaktory(server.port) as connection:
        for n in range(20):
            connection.push({"jid": f"job-{n:06d}", "jobtype": "SomeJob", "args": ["x" * 200]})
    server.kill()
    log = server.data / "millrace.db-wal"
    log.write_bytes(log.read_bytes()[:-1000])
    damaged = contents(server.data)
    for _ in range(3):  # the order of the cleanup at exit varies
        with pytest.raises(DidNotStartError, match="was committed"):
            server.start()
        assert contents(server.data) == damaged
