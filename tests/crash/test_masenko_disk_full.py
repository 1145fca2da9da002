"""A full disk for a Masenko client: it gets an error, waits work, and space restores all
commands.
"""

import json
import time
from pathlib import Path

from test_disk_full import small_disk  # noqa: F401 - a fixture

from raw_masenko import RawMasenko
from server_process import server_process

REFUSED = b'ERR {"msg":"disk full: nothing was changed, try again later"}'


def test_a_full_disk_is_reported_and_recovered_from(small_disk: Path) -> None:  # noqa: F811
    line = f'PUSH {{"name":"a","queue":"q","payload":"{"x" * 65_000}"}}'
    with server_process(small_disk / "data") as server:
        server.start()
        port = server.ports["masenko"]
        with RawMasenko(port) as client, RawMasenko(port) as waiter:
            held = client.push("held")
            assert client.fetch()["id"] == held
            waiter.send(b'FETCH {"queues":["waits"],"timeout":"45s"}\n')
            added = []
            for _ in range(2000):
                reply = client.ask(line)
                if reply == REFUSED:
                    break
                added.append(json.loads(reply[3:])["id"])
            assert reply == REFUSED
            assert client.ack(held) == REFUSED
            assert client.commit(f'ACK {{"id":{held}}}') == REFUSED
            assert client.ask("PING") == b"PONG {}"
            assert client.queues()["q"] == (len(added), 0, 0), "a refused task exists"
            (small_disk / "ballast").unlink()
            deadline = time.monotonic() + 20
            while client.ack(held) == REFUSED:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert client.ack(held) == b'ERR {"msg":"task not acquired"}'
            # Completions work as soon as the reserve is released, pushes when it fits again.
            while client.ask('PUSH {"name":"last","queue":"waits"}') == REFUSED:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert b'"name":"last"' in waiter.line()
        server.kill()
        server.start()
        with RawMasenko(server.ports["masenko"]) as client:
            assert client.queues()["q"] == (len(added), 0, 0)
            assert client.fetch("q", timeout="1s")["id"] == added[0]
