"""The listening sockets: retries, messages, and connections before the server is ready."""

import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from millrace.server import sockets
from raw_faktory import RawFaktory
from server_process import DidNotStartError, server_process


def test_every_address_of_a_host_has_the_same_port():
    opened = sockets.open_port("localhost", 0, "faktory")
    assert len({each.getsockname()[1] for each in opened}) == 1
    for each in opened:
        each.close()


def test_a_port_in_use_is_retried_until_it_is_free(caplog: pytest.LogCaptureFixture):
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    threading.Timer(0.3, taken.close).start()
    (opened,) = sockets.open_port("127.0.0.1", port, "faktory")
    assert opened.getsockname()[1] == port
    opened.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"Port {port} (faktory) is in use. Retrying for 5 s."
    ]


def test_a_port_that_stays_in_use_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sockets, "BIND_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(sockets.PortUnavailable) as caught:
            sockets.open_port("127.0.0.1", port, "workq")
    assert str(caught.value) == (
        f"Cannot listen on 127.0.0.1, port {port} (workq): Address already in use. Stop the "
        "process that uses the port, or set workq.port to another one."
    )


def test_another_error_is_not_retried():
    began = time.monotonic()
    with pytest.raises(sockets.PortUnavailable, match=r"Cannot listen on 192\.0\.2\.1, port 0"):
        sockets.open_port("192.0.2.1", 0, "workq")
    assert time.monotonic() - began < sockets.BIND_TIMEOUT


def test_a_second_server_on_the_same_folder_reports_the_folder(tmp_path: Path):
    with server_process(tmp_path / "data") as first, server_process(tmp_path / "data") as second:
        first.start()
        began = time.monotonic()
        with pytest.raises(DidNotStartError):
            second.start(MILLRACE_FAKTORY_PORT=str(first.port))
        assert time.monotonic() - began < sockets.BIND_TIMEOUT
        (line,) = [r["message"] for r in second.log_records() if r["level"] == "error"]
        assert f"is in use by process {first.pid}" in line


def test_a_connection_waits_while_the_server_starts(tmp_path: Path):
    """The process is stopped right after it opened its ports, before it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with server_process(tmp_path / "data") as server:
        server.spawn(MILLRACE_FAKTORY_PORT=str(port))
        while True:
            try:
                early = socket.create_connection(("127.0.0.1", port), 10)
                break
            except ConnectionRefusedError:
                assert server.alive
        server.signal(signal.SIGSTOP)
        loaded = Path(f"/proc/{server.pid}/maps").read_text()
        assert "uvloop" not in loaded, "the port opened only after the imports"
        server.signal(signal.SIGCONT)
        server.wait_ready()
        assert early.recv(100).startswith(b"+HI ")
        early.close()
        with RawFaktory(server.port) as client:
            client.info()
