"""Millrace shows the same keys as a real Qless script in a real Redis.

The script is part of the reqless package: it has dialect C, and unlike the script of qless-py it
runs on today's Redis.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import redis
import reqless

from millrace.engine.engine import Engine
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.spec import protocol_rules
from server_process import _die_with_parent

SCRIPT = Path(reqless.__file__).parent / "lua" / "qless.lua"
T = 1352375209
#: Keys that reqless has in addition to Qless, and keys that differ in Millrace: see the reference.
NOT_QLESS = (b"throttles",)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[redis.Redis]:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server here; install the Debian package redis-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    process = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", tmp_path],
        stdout=subprocess.DEVNULL,
        preexec_fn=_die_with_parent,
    )
    client = redis.Redis(port=port, protocol=2)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "redis-server does not listen"
                time.sleep(0.01)
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait(10)


class Both:
    """Sends the same commands to both servers, with the same times."""

    def __init__(self, real: redis.Redis) -> None:
        self.real = real
        self.sha = real.script_load(SCRIPT.read_bytes())
        self.hub = QlessHub(Engine(Random(1), protocol_rules()), started_at=0)
        self.api = QlessApi(self.hub)

    def do(self, command: str, after: float, *args: object) -> None:
        words = [str(word).encode() for word in (T + after, *args)]
        self.real.evalsha(self.sha, 0, command, *words)
        self.api.call("C", command, [], words, T * 1_000_000)

    def theirs(self, key: bytes) -> Any:
        kind = self.real.type(key)
        if kind == b"zset":
            return self.real.zrange(key, 0, -1, withscores=True)
        if kind == b"hash":
            return plain(self.real.hgetall(key))
        if kind == b"list":
            return [decoded(item) for item in self.real.lrange(key, 0, -1)]
        return sorted(self.real.smembers(key))

    def ours(self, key: bytes) -> Any:
        virtual = self.hub.redis_view
        kind = virtual.key_type(key)
        if kind == "zset":
            return virtual.scores(key)
        if kind == "hash":
            fields = dict(virtual.fields(key))
            if key.startswith(b"ql:j:"):  # only the specification has these, not the original
                del fields[b"type"], fields[b"history"]
            return plain(fields)
        if kind == "list":
            return [decoded(item) for item in virtual.items(key)]
        return sorted(virtual.members(key))

    def compare(self) -> None:
        expected = {key for key in self.real.scan_iter() if not key.startswith(b"ql:th:")}
        assert {name for name in self.hub.redis_view.names() if name} == expected
        for key in sorted(expected):
            assert self.ours(key) == self.theirs(key), key


def plain(fields: dict[bytes, bytes]) -> dict[bytes, Any]:
    return {name: decoded(value) for name, value in fields.items() if name not in NOT_QLESS}


def decoded(text: bytes) -> Any:
    """JSON by value: the order of keys may differ."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def test_a_queues_day(real: redis.Redis) -> None:
    both = Both(real)
    both.do("config.set", 0, "grace-period", 5)
    both.do("put", 0, "w0", "q", "a", "K", '{"x":1}', 0, "tags", '["t1","t2"]', "priority", 3)
    both.do("put", 1, "w0", "q", "b", "K", "{}", 0, "tags", '["t1"]')
    both.do("put", 2, "w0", "q", "c", "K", "{}", 100)
    both.do("put", 3, "w0", "q", "d", "K", "{}", 0, "depends", '["a","b"]')
    both.do("put", 4.25, "w0", "q", "e", "K", "{}", 0, "retries", 1)
    both.do("put", 5, "w0", "r", "f", "K", "{}", 0)
    both.compare()
    both.do("recur", 6, "q", "rec", "K", "{}", "interval", 60, 500, "tags", '["t3"]')
    both.do("pop", 10, "q", "w1", 2)
    both.do("pop", 11, "r", "w2", 1)
    both.do("fail", 12, "f", "w2", "group", "message")
    both.do("track", 13, "track", "a")
    both.do("pause", 14, "r")
    both.compare()
    both.do("put", 15, "w0", "z", "g", "K", "{}", 0)
    both.do("pop", 20, "z", "w1", 1)
    both.do("complete", 95, "g", "w1", "z", '{"done":true}')
    both.compare()
    both.do("cancel", 96, "e")
    both.do("complete", 97, "b", "w1", "q", "{}")
    both.do("unpause", 98, "r")
    both.compare()
    real.flushdb()
    for _ in both.hub.flush(T * 1_000_000, b"", all_databases=True):
        pass
    both.compare()


def test_recurring_jobs_are_created(real: redis.Redis) -> None:
    both = Both(real)
    both.do("recur", 0, "q", "rec", "K", '{"n":1}', "interval", 60, 0, "tags", '["t"]')
    both.do("pop", 130, "q", "w", 10)
    both.compare()
