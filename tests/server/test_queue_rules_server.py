"""The key `queues` of a protocol, in a running server."""

import socket
from pathlib import Path

from server_process import running_server


def send_request(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(request)
        return client.recv(4096)


def test_a_rule_limits_only_its_protocol(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", MILLRACE_MASENKO_QUEUES="signup* mail") as server:
        masenko, goqueue = server.ports["masenko"], server.ports["goqueue"]
        assert send_request(masenko, b'PUSH {"name":"x","queue":"signup-1"}\n') == b'OK {"id":1}\n'
        assert send_request(masenko, b'PUSH {"name":"x","queue":"mail"}\n') == b'OK {"id":2}\n'
        refused = send_request(masenko, b'PUSH {"name":"x","queue":"billing"}\n')
        assert b"the queue billing is not allowed on this port" in refused
        add = b"ADD\0billing\0" + (0).to_bytes(4, "little") * 3
        assert send_request(goqueue, add).startswith(b"ADDED\0")
        assert b"billing" not in send_request(masenko, b"INFO\n")
