"""The original scripts of Qless in a real redis-server, as a reference for the replies of Millrace."""

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import redis

from millrace.engine.engine import Engine
from millrace.protocols.errors import ClientError
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.spec import protocol_rules
from wires import Dice

SERVER = shutil.which("redis-server")
#: The error of a script, in the forms of Redis 7 and of earlier versions.
_COMPLAINT = re.compile(r"user_script:\d+: (?!user_script)(.*?)(?: script: \w+, on @.*)?$")


Call = tuple[Any, ...]


class Reference:
    """A redis-server and one script."""

    def __init__(self, connection: redis.Redis, script: bytes) -> None:
        self.connection = connection
        self.sha = connection.script_load(script)

    def call(self, command: str, now: float, *args: object) -> Any:
        words = [command, repr(now), *map(word, args)]
        try:
            return plain(self.connection.execute_command("EVALSHA", self.sha, 0, *words))
        except redis.ResponseError as error:
            found = _COMPLAINT.search(str(error))
            return {"error": found[1] if found else str(error)}

    def flush(self) -> None:
        self.connection.flushdb()


class Ours:
    """The commands of Millrace, without a port."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.engine = Engine(Dice(), protocol_rules())
        self.api = QlessApi(QlessHub(self.engine, started_at=0))

    def call(self, command: str, now: float, *args: object) -> Any:
        words = [repr(now).encode(), *(word(arg).encode() for arg in args)]
        try:
            return plain(self.api.call(self.dialect, command, [], words, 0))
        except ClientError as error:
            return {"error": str(error)}


def word(arg: object) -> str:
    return json.dumps(arg) if isinstance(arg, list | dict) else str(arg)


def plain(reply: Any) -> Any:
    """A reply with decoded JSON, except the data of jobs, which is JSON within JSON."""
    if isinstance(reply, list):
        return [each.decode() if isinstance(each, bytes) else each for each in reply]
    if isinstance(reply, bool):
        return int(reply)
    text = reply.decode() if isinstance(reply, bytes) else reply
    if isinstance(text, str) and text[:1] in {"{", "["}:
        return json.loads(text)
    return text


def alike(reply: Any) -> Any:
    """A reply without irrelevant differences: the order of sets, the time to live that
    `throttle.get` reports only under its new name, and additional statistics of Millrace. The
    original leaves a job `throttled` when it waits for a worker again; the lists distinguish the
    two.
    """
    if isinstance(reply, list):
        return [alike(each) for each in reply]
    if not isinstance(reply, dict):
        return reply
    found = {name: alike(value) for name, value in reply.items()}
    for name in ("dependents", "dependencies"):
        if name in found:
            found[name] = sorted(found[name])
    if found.keys() == {"id", "maximum", "ttl"}:
        del found["ttl"]
    if found.get("state") == "throttled" and "history" in found:
        found["state"] = "waiting"
    if "histogram" in found:
        found.pop("total", None)
        found.pop("variance", None)
    return found


@contextlib.contextmanager
def reqless_original() -> Iterator[Reference]:
    """The script in the package reqless."""
    with redis_server() as connection:
        yield Reference(connection, files("reqless").joinpath("lua/qless.lua").read_bytes())


@contextlib.contextmanager
def redis_server() -> Iterator[redis.Redis]:
    """A private redis-server without persistence."""
    assert SERVER is not None
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "redis"
        process = subprocess.Popen(
            [SERVER, "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        connection = redis.Redis(unix_socket_path=str(socket), protocol=2)
        try:
            _wait_for(connection)
            yield connection
        finally:
            connection.close()
            process.terminate()
            process.wait(10)


def _wait_for(connection: redis.Redis) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            connection.ping()
        except redis.ConnectionError:
            assert time.monotonic() < deadline, "redis-server does not start"
            time.sleep(0.01)
        else:
            return
