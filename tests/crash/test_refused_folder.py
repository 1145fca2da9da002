"""A server that refuses its data folder leaves it as it is, also by the way its process ends."""

from pathlib import Path

import pytest

from raw_faktory import RawFaktory
from server_process import DidNotStartError, ServerProcess

KEPT = ("millrace.db", "millrace.db-wal", "mark")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in KEPT}


def test_a_refused_folder_is_as_it_was_when_the_process_has_ended(server: ServerProcess):
    with RawFaktory(server.port) as connection:
        for n in range(20):
            connection.push({"jid": f"job-{n:06d}", "jobtype": "SomeJob", "args": ["x" * 200]})
    server.kill()
    log = server.data / "millrace.db-wal"
    log.write_bytes(log.read_bytes()[:-1000])
    damaged = contents(server.data)
    for _ in range(3):  # the order in which a process forgets its things is not always the same
        with pytest.raises(DidNotStartError, match="was committed"):
            server.start()
        assert contents(server.data) == damaged
