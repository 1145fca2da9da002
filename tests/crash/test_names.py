"""Names that are not UTF-8 survive kill -9, and every reader of the server can show them."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import redis

from millrace.protocols.qless.names import decode_name
from raw_faktory import RawFaktory
from raw_masenko import RawMasenko
from server_process import ServerProcess, running_server

QUEUE = b"q\xff"
TEXT = decode_name(QUEUE)


def qless(server: ServerProcess) -> redis.Redis:
    return redis.Redis(port=server.ports["qless"])


def put(client: redis.Redis, jid: bytes, *options: object) -> None:
    data = b'{"text":"\xe9"}'
    client.execute_command("QLESS.PUT", 1, QUEUE, jid, b"k\xfd", data, 1, 0, *options)


def read(server: ServerProcess, path: str) -> bytes:
    request = Request(f"http://127.0.0.1:{server.ports['web']}{path}")
    with urlopen(request, timeout=30) as reply:
        assert reply.status == 200
        body: bytes = reply.read()
    return body


def read_json(server: ServerProcess, path: str) -> Any:
    return json.loads(read(server, path))


def test_every_name_survives_a_crash(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        client = qless(server)
        put(client, b"\xff", "tags", b'["t\xfb"]')
        put(client, b"\xfe", "depends", b'["\xff"]')
        client.execute_command("QLESS.TRACK", 0, "track", b"\xff", 2)
        client.execute_command("QLESS.SETCONFIG", 0, b"o\xff", b"v\xfe")
        client.execute_command(
            "QLESS.RECUR", 0, "on", QUEUE, b"r\xff", "k", "{}", 1, "interval", 60, 60
        )
        client.execute_command("QLESS.PAUSE", 0, QUEUE)
        jobs = {jid: client.execute_command("QLESS.GET", 0, jid) for jid in (b"\xff", b"\xfe")}
        recurring = client.execute_command("QLESS.RECUR", 0, "get", b"r\xff")
        assert b'"jid":"\xff"' in jobs[b"\xff"]
        assert b'"dependencies":["\xff"]' in jobs[b"\xfe"]
        server.restart()
        client = qless(server)
        assert {jid: client.execute_command("QLESS.GET", 0, jid) for jid in jobs} == jobs
        assert client.execute_command("QLESS.RECUR", 0, "get", b"r\xff") == recurring
        assert client.execute_command("QLESS.GETCONFIG", 0, b"o\xff") == b"v\xfe"
        assert client.smembers("ql:paused_queues") == {QUEUE}
        assert client.execute_command("QLESS.CONSISTENCYCHECK", 0).startswith(b'{"consistent":true')


def test_every_reader_shows_such_a_job(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", MILLRACE_LAKE_SHIP_EVERY="100ms") as server:
        client = qless(server)
        put(client, b"\xff", "tags", b'["t\xfb"]')
        put(client, b"\xfe", "depends", b'["\xff"]')
        put(client, b"\xfd")
        [popped] = client.execute_command("QLESS.POP", 1, QUEUE, b"w\xfc", 1, 2)
        assert b'"jid":"\xff"' in popped
        client.execute_command("QLESS.FAIL", 0, b"\xff", b"w\xfc", b"g\xfb", b"m\xfa", 3)

        jid, api = quote(decode_name(b"\xff")), "/api/v1"
        assert read_json(server, f"{api}/jobs/{jid}")["job"]["queue"] == TEXT
        assert read(server, f"{api}/jobs/{jid}/payload") == b'{"text":"\xe9"}'
        assert read_json(server, f"{api}/jobs/{jid}/events")["events"]
        assert len(read_json(server, f"{api}/jobs?q={quote('queue:' + TEXT)}")["jobs"]) == 3
        assert [row["name"] for row in read_json(server, f"{api}/queues")["queues"]] == [TEXT]
        for path in ("overview", "failures", "workers", "tags", "tracked", "recurring"):
            read_json(server, f"{api}/{path}")
        blocked = quote(decode_name(b"\xfe"))
        assert read_json(server, f"{api}/jobs/{blocked}")
        for path in ("/", "/queues", "/failed", "/workers", "/tags", "/metrics", f"/jobs/{jid}"):
            read(server, path)
        read(server, f"/queues/{quote(TEXT)}")
        read(server, f"/jobs?q={quote('tag:' + decode_name(b't' + bytes([0xFB])))}")

        with RawFaktory(server.port) as faktory:
            page = faktory.command("MILLRACE", {"read": {"most": 10}})
            assert page is not None
            job = faktory.fetch(TEXT)
            assert job is not None
            assert job["jid"] == decode_name(b"\xfd")
            faktory.ack(job["jid"])
        put(client, b"\xfc")
        with RawMasenko(server.ports["masenko"]) as masenko:
            assert masenko.fetch(TEXT) is not None
            masenko.info()
        assert server.alive
