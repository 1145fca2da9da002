"""HTTP and TLS clients on the ports of the protocols: the server sends an HTTP error and executes
no command.
"""

import json
import socket
import struct
from collections.abc import Iterator

import pytest

from raw_faktory import RawFaktory
from server_process import ServerProcess

LABELS = {
    "faktory": "Faktory",
    "workq": "Workq",
    "masenko": "Masenko",
    "goqueue": "Go Job Queue",
    "qless": "Qless",
}
#: For each port a request body with valid commands that create jobs.
COMMANDS = {
    "faktory": b'HELLO {"v":2}\r\nPUSH {"jid":"from-a-page","jobtype":"t","args":[]}\r\n',
    "workq": b"add 6ba7b810-9dad-41d1-80b4-000000000001 q 1000 60000 1\r\nx\r\n",
    "masenko": b'PUSH {"name":"from-a-page"}\nATOMIC\nPUSH {"name":"b"}\nDONE\n',
    "goqueue": b"ADD\0q\0" + struct.pack("<III", 1, 1, 1) + b"x",
    "qless": b"SET from-a-page 1\r\n",
}
#: Methods of a page that uses another origin, and of a page on the port's own origin (after DNS
#: rebinding), which may use a protocol command as the method.
METHODS = {
    "faktory": [b"POST", b"GET", b"HELLO", b"PUSH"],
    "workq": [b"POST", b"GET", b"lease", b"delete", b"add"],
    "masenko": [b"POST", b"GET", b"PING", b"ATOMIC", b"PUSH"],
    "goqueue": [b"POST", b"GET", b"OPTIONS"],
    "qless": [b"POST", b"GET", b"SET", b"PING"],
}
TLS_HELLO = bytes.fromhex("16030100a5010000a10303") + bytes(range(256))[:155]
CASES = [(protocol, method) for protocol in LABELS for method in METHODS[protocol]]


def request(protocol: str, method: bytes) -> bytes:
    body = COMMANDS[protocol]
    head = b"%b / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (method, len(body))
    return head + body


def answer(connection: socket.socket) -> bytes:
    received = b""
    while data := connection.recv(65_536):
        received += data
    return received.removeprefix(b'+HI {"v":2}\r\n')


def assert_rejected(received: bytes, protocol: str) -> None:
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n"), received
    assert b"\r\nContent-Length: %d\r\n" % len(body) in head
    assert body.decode() == (
        f"This is a {LABELS[protocol]} port of Millrace. It does not serve HTTP or TLS.\n"
    )


def assert_unchanged(server: ServerProcess) -> None:
    with RawFaktory(server.port) as faktory:
        info = json.loads(faktory.command("INFO"))
    assert info["faktory"]["queues"] in ({}, {"default": 0})
    assert info["faktory"]["total_enqueued"] == 0
    with socket.create_connection(("127.0.0.1", server.ports["qless"]), 30) as redis:
        redis.sendall(b"EXISTS from-a-page\r\n")
        assert redis.recv(100) == b":0\r\n"


@pytest.fixture
def connect(server: ServerProcess) -> Iterator:
    opened: list[socket.socket] = []

    def make(protocol: str) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", server.ports[protocol]), 30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.append(connection)
        return connection

    yield make
    for connection in opened:
        connection.close()


def test_an_http_request_gets_an_http_error(server, connect):
    for protocol, method in CASES:
        connection = connect(protocol)
        connection.sendall(request(protocol, method))
        assert_rejected(answer(connection), protocol)
    assert_unchanged(server)


def test_a_request_in_single_bytes_gets_an_http_error(server, connect):
    for protocol, method in CASES:
        connection = connect(protocol)
        for byte in request(protocol, method):
            connection.sendall(bytes([byte]))
        assert_rejected(answer(connection), protocol)
    assert_unchanged(server)


def test_a_tls_client_gets_an_error_at_its_first_bytes(server, connect):
    for protocol in LABELS:
        for hello in (TLS_HELLO[:1], TLS_HELLO[:6], TLS_HELLO):
            connection = connect(protocol)
            connection.sendall(hello)
            assert_rejected(answer(connection), protocol)


def test_a_request_line_behind_a_command_ends_the_connection(server, connect):
    commands = {"workq": b"inspect server\r\n", "masenko": b"PING\n", "faktory": b'HELLO {"v":2}\n'}
    for protocol, command in commands.items():
        connection = connect(protocol)
        for piece in (command + b"POST / HT", b"TP/1.1\r\nHost: x\r\n\r\n" + COMMANDS[protocol]):
            connection.sendall(piece)
        received = answer(connection)
        assert_rejected(received[received.index(b"HTTP/1.1 400") :], protocol)
    assert_unchanged(server)


def test_the_error_reaches_a_client_that_sends_a_large_body(server, connect):
    for protocol in LABELS:
        connection = connect(protocol)
        body = b"x" * (8 << 20)
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head)
        connection.sendall(body)  # a reset would fail here, or in the recv below
        assert_rejected(answer(connection), protocol)
