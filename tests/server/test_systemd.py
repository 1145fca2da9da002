"""The server notifies systemd when it is ready and when it stops."""

import socket
from pathlib import Path

import pytest

from millrace.server.systemd import notify
from server_process import running_server


def listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(address)
    listener.settimeout(20)
    return listener


def test_ready_and_stopping(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with (
        listen(address) as listener,
        running_server(tmp_path / "data", NOTIFY_SOCKET=address) as server,
    ):
        assert listener.recv(100) == b"READY=1"
        server.stop()
        assert listener.recv(100) == b"STOPPING=1"


def test_an_abstract_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = f"millrace-test-{tmp_path.name}-{id(tmp_path)}"
    with listen("\0" + name) as listener:
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        notify("READY=1")
        assert listener.recv(100) == b"READY=1"


def test_no_service_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent/notify")
    notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")
