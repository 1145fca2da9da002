"""Unix domain sockets: every protocol over a file with configurable permissions."""

import socket
import stat
from pathlib import Path

import pytest

from raw_faktory import line
from server_process import DidNotStartError, running_server, server_process

PROTOCOLS = ("faktory", "workq", "masenko", "goqueue", "qless")
#: One request of each protocol, and the prefix of its reply.
CONVERSATIONS = {
    "workq": (b"inspect server\r\n", b"+OK"),
    "masenko": (b"PING {}\n", b"PONG"),
    "qless": (b"PING\r\n", b"+PONG"),
}


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {f"MILLRACE_{name.upper()}_SOCKET": str(folder / name) for name in PROTOCOLS} | more


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    client.connect(str(path))
    return client


def test_every_protocol_is_served_on_its_socket(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", **environment(tmp_path)) as server:
        for name, (request, reply) in CONVERSATIONS.items():
            with connect(tmp_path / name) as client:
                client.sendall(request)
                assert client.recv(4096).startswith(reply), name
        with connect(tmp_path / "faktory") as client:
            assert client.recv(100).startswith(b"+HI ")
        with connect(tmp_path / "goqueue"):
            pass
        for name in PROTOCOLS:
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        assert server.ports.keys() >= set(PROTOCOLS)
        assert server.stop() == 0
        assert not [name for name in PROTOCOLS if (tmp_path / name).exists()]


def test_a_socket_can_replace_the_port_and_have_other_permissions(tmp_path: Path) -> None:
    more = {"MILLRACE_WORKQ_PORT": "off", "MILLRACE_WORKQ_SOCKET_MODE": "0660"}
    with running_server(tmp_path / "data", **environment(tmp_path, **more)) as server:
        assert "workq" not in server.ports
        assert stat.S_IMODE((tmp_path / "workq").stat().st_mode) == 0o660
        with connect(tmp_path / "workq") as client:
            client.sendall(b"inspect server\r\n")
            assert client.recv(100).startswith(b"+OK")


def test_a_password_is_required_on_a_socket(tmp_path: Path) -> None:
    more = {"MILLRACE_FAKTORY_PASSWORD": "secret"}
    with running_server(tmp_path / "data", **environment(tmp_path, **more)):
        for _ in range(3):
            with connect(tmp_path / "faktory") as client:
                assert b'"s":' in client.recv(200)
                client.sendall(line("HELLO", {"v": 2, "pwdhash": "wrong"}))
                assert client.recv(200).startswith(b"-ERR Invalid password")


def test_a_socket_of_a_killed_server_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    with (
        running_server(tmp_path / "data", **environment(tmp_path)) as server,
        server_process(tmp_path / "other", **environment(tmp_path)) as other,
    ):
        with pytest.raises(DidNotStartError):
            other.start()
        path = tmp_path / "faktory"
        assert f"Cannot listen on {path} (faktory.socket): Address already in use." in other.stderr
        server.restart()
        with connect(path) as client:
            assert client.recv(100).startswith(b"+HI ")
