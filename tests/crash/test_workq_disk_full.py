"""A full disk for a Workq client: it gets an error, reads work, and space restores all commands.

The original server stayed read-only until its restart, and then did not start.
"""

import time
from pathlib import Path

from test_disk_full import small_disk  # noqa: F401 - a fixture

from raw_workq import RawWorkq
from server_process import server_process

REFUSED = b"-SERVER-ERROR disk full: nothing was changed, try again later"


def uid(number: int) -> bytes:
    return b"6ba7b810-9dad-41d1-80b4-%012x" % number


def test_a_full_disk_is_reported_and_recovered_from(small_disk: Path) -> None:  # noqa: F811
    payload = b"x" * 65_536
    with server_process(small_disk / "data") as server:
        server.start()
        with RawWorkq(server.ports["workq"]) as client, RawWorkq(server.ports["workq"]) as waiter:
            client.add(uid(0), "first")
            assert client.complete(uid(0), b"kept") == b"+OK"
            waiter.send(b"lease waits 60000\r\n")
            added = []
            for number in range(1, 2000):
                line = b"add %b q 60000 6000000 %d\r\n%b\r\n" % (uid(number), len(payload), payload)
                reply = client.ask(line)
                if reply != b"+OK":
                    break
                added.append(number)
            assert reply == REFUSED
            assert client.ask(b"lease q 0\r\n") == REFUSED
            assert client.result(uid(0)) == (b"1", b"kept")
            assert client.inspect(uid(1))["state"] == "0"
            assert client.inspect(uid(len(added) + 1)) is None, "a refused job exists"
            (small_disk / "ballast").unlink()
            deadline = time.monotonic() + 20
            while client.ask(b"add %b waits 60000 6000000 1\r\nx\r\n" % uid(5000)) == REFUSED:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert waiter.line() == b"+OK 1"
        server.kill()
        server.start()
        with RawWorkq(server.ports["workq"]) as client:
            assert all(client.inspect(uid(number))["state"] == "0" for number in added)
            assert client.result(uid(0)) == (b"1", b"kept")
