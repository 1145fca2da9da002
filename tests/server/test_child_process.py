"""The child processes of a server end with it, even if it is killed while it or they are starting.

test_pipeline_runner.py has the test of the pipeline, which needs a long run.
"""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raw_faktory import RawFaktory
from server_process import ServerProcess, server_process

#: Children, with the module that each of them runs.
MODULES = {"web": "millrace.web", "shipper": "millrace.journal"}
#: Delays a child before its first line, or in the import of its module. It runs in every process.
SLOW_START = """
import os, sys, time

if "millrace.server.child_main" in sys.orig_argv:
    class Slow:
        def find_spec(self, name, path=None, target=None):
            if name == os.environ["TEST_MODULE"]:
                open(os.environ["TEST_MARK"], "w").close()
                time.sleep(600)

    sys.meta_path.insert(0, Slow())
    while os.path.exists(os.environ["TEST_MARK"] + ".wait"):
        time.sleep(0.01)
"""


def start_child(server: ServerProcess, kind: str) -> list[socket.socket]:
    """Make the server start a child; return the connections that must stay open."""
    if kind == "web":
        return [socket.create_connection(("127.0.0.1", server.ports["web"]), 20)]
    with RawFaktory(server.port) as client:
        client.push({"jid": os.urandom(8).hex(), "jobtype": "x", "args": []})
    return []


def children(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def command_line(pid: int) -> list[str]:
    """The words of a running process; none if it has ended or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rstrip("\0").split("\0") if text else []


def started_by(pid: int) -> list[int]:
    """The running processes that are to end with the process `pid`, even if that process is no
    longer their parent.
    """
    found = []
    for each in Path("/proc").iterdir():
        words = command_line(int(each.name)) if each.name.isdecimal() else []
        if "millrace.server.child_main" in words and str(pid) in words:
            found.append(int(each.name))
    return found


def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "the condition was not reached"
        time.sleep(0.002)


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("stage", ["before its first line", "in its imports"])
def test_a_child_that_is_starting_ends_with_a_killed_server(
    tmp_path: Path, kind: str, stage: str
) -> None:
    """It cannot read its input yet, whose end would tell it that the server has ended."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_START)
    mark, wait = tmp_path / "importing", tmp_path / "importing.wait"
    if stage == "before its first line":
        wait.touch()
    settings = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        "TEST_MODULE": MODULES[kind],
        "TEST_MARK": str(mark),
        "MILLRACE_LAKE_SHIP_EVERY": "0" if kind == "web" else "50ms",
    }
    with server_process(tmp_path / "data", **settings) as server:
        server.start()
        connections = start_child(server, kind)
        until(lambda: children(server.pid))
        (child,) = children(server.pid)
        if stage == "in its imports":
            until(mark.exists)
        server.kill()
        wait.unlink(missing_ok=True)
        until(lambda: not command_line(child))
        assert mark.exists() == (stage == "in its imports"), "it did not start its module"
        for each in connections:
            each.close()


def test_a_server_that_is_killed_while_it_starts_leaves_no_process_and_no_port(
    tmp_path: Path,
) -> None:
    """A client waits on the web port, so the web process starts as early as possible."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with server_process(tmp_path / "data", MILLRACE_WEB_PORT=str(port)) as server:
        for delay in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5):
            server.spawn()
            began = time.monotonic()
            clients = []
            while time.monotonic() - began < delay:
                try:
                    clients.append(socket.create_connection(("127.0.0.1", port), 20))
                    break
                except ConnectionRefusedError:
                    time.sleep(0.002)
            time.sleep(max(0, began + delay - time.monotonic()))
            server.kill()
            until(lambda: not started_by(server.pid))
            for each in clients:
                each.close()
        server.start()
        assert server.ports["web"] == port
        assert "in use" not in server.stderr
