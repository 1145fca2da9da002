"""Common parts of hostile clients: sockets in one thread, and the greeting of each protocol."""

import contextlib
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator

HOST = "127.0.0.1"
PROTOCOLS = ("faktory", "workq", "masenko", "goqueue", "qless")
HELLO = b'HELLO {"v":2}\r\n'
GREETING = b'+HI {"v":2}\r\n'


def input_closed(timeout: float = 0.0) -> bool:
    """The parent process closes the input of this process to stop it."""
    return bool(select.select([sys.stdin], [], [], timeout)[0])


def connect(ports: dict[str, int], protocol: str, *, receive_buffer: int = 0) -> socket.socket:
    """A connection that can send commands; for Faktory the HELLO was sent."""
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(30)
    connection.connect((HOST, ports[protocol]))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if protocol == "faktory":
        connection.sendall(HELLO)
        expected = GREETING + b"+OK\r\n"
        received = b""
        while len(received) < len(expected):
            piece = connection.recv(len(expected) - len(received))
            if not piece:
                raise ConnectionError("closed while saying HELLO")
            received += piece
        assert received == expected, received
    return connection


def crowd(ports: dict[str, int], count: int, **options: int) -> list[tuple[str, socket.socket]]:
    """Open `count` connections, distributed over the ports."""
    chosen = (PROTOCOLS[number % len(PROTOCOLS)] for number in range(count))
    return [(protocol, connect(ports, protocol, **options)) for protocol in chosen]


def reset(connection: socket.socket) -> None:
    """Close with an RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_until_closed(connection: socket.socket, seconds: float) -> bytes:
    """The data that arrives until the server closes the connection, or for this number of
    seconds.
    """
    received = b""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            piece = connection.recv(1 << 16)
            if not piece:
                break
            received = (received + piece)[-4096:]
    return received


def is_open(connection: socket.socket) -> bool:
    """Whether the server has not closed it."""
    connection.setblocking(False)
    try:
        while piece := connection.recv(1 << 16):
            assert piece
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            connection.setblocking(True)
    return False


def in_rounds(seconds: float) -> Iterator[int]:
    """Numbers, one every `seconds` seconds, until this process is stopped."""
    number = 0
    while not input_closed(seconds):
        yield number
        number += 1
