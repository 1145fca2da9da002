"""Go Job Queue over real sockets: behaviour that depends on client, kernel and server together."""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from goqueue_conversation import OK, TIMEOUT, add, added, delete, error, reserve, reserved

from server_process import ServerProcess, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("goqueue") / "data") as running:
        yield running


class Raw:
    def __init__(self, server: ServerProcess) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.ports["goqueue"]), 20)
        self._replies = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._replies.close()
        self.socket.close()

    def asks(self, *commands: bytes) -> Self:
        self.socket.sendall(b"".join(commands))
        return self

    def hears(self, *replies: bytes) -> Self:
        wanted = b"".join(replies)
        assert self._replies.read(len(wanted)) == wanted
        return self

    def hears_the_end(self) -> None:
        assert self._replies.read() == b""

    def adds(self, data: bytes, queue: str) -> int:
        head = self.asks(add(data, queue))._replies.read(14)
        assert head[:6] == b"ADDED\0", head
        return struct.unpack("<Q", head[6:])[0]

    def resets(self) -> None:
        """Disconnect with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._replies.close()
        self.socket.close()


def test_a_job_in_one_packet(server):
    with Raw(server) as client:
        seq = client.adds(b"first", "packet")
        client.asks(reserve("packet"), delete(seq), delete(seq), b"CONNECT\0").hears(
            reserved(seq, b"first"), OK, error(f"Job {seq} already deleted"), OK
        )


def test_a_half_closed_client_waits_and_is_answered(server):
    with Raw(server) as client, Raw(server) as other:
        client.asks(reserve("half", 0), reserve("half", 1), b"CONNECT\0ADD\0half")
        client.socket.shutdown(socket.SHUT_WR)
        seq = other.adds(b"x", "half")
        client.hears(reserved(seq, b"x"), TIMEOUT, OK)
        client.hears(error("Malformed ADD command: it is not complete")).hears_the_end()


@pytest.mark.parametrize("waits", [True, False], ids=["while it waits", "with its job unread"])
def test_after_a_half_close_a_reset_returns_the_job(server, waits):
    """The client neither received the job nor keeps its place in the queue."""
    queue = f"reset-{waits}"
    with Raw(server) as other:
        half = Raw(server).asks(b"CONNECT\0", reserve(queue, 0)).hears(OK)
        half.socket.shutdown(socket.SHUT_WR)
        if waits:
            half.resets()
            seq = other.adds(b"x", queue)
        else:
            half.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            seq = other.adds(b"x" * (8 << 20), queue)
            half.resets()
        data = b"x" if waits else b"x" * (8 << 20)
        other.asks(reserve(queue, 15)).hears(reserved(seq, data))
        other.asks(delete(seq)).hears(OK)


def test_the_error_about_oversize_data_arrives(server):
    """The client sends all of its data before it reads; a reset would lose the error."""
    size = (16 << 20) + 1
    with Raw(server) as client:
        client.asks(add(b"x" * size))
        client.hears(error("Malformed ADD command: the data is larger than 16777216 bytes"))
        client.hears_the_end()


@pytest.mark.parametrize("going", ["closes", "resets"])
def test_a_client_that_disconnected_while_waiting_receives_no_job(server, going):
    queue = f"left-{going}"
    waiter = Raw(server).asks(b"CONNECT\0", reserve(queue, 0)).hears(OK)
    waiter.resets() if going == "resets" else waiter.__exit__()
    with Raw(server) as client:
        seq = client.adds(b"x", queue)
        client.asks(reserve(queue, 5)).hears(reserved(seq, b"x"))


def test_an_invalid_command_and_an_invalid_length_close_the_connection(server):
    with Raw(server) as client:
        client.asks(b"get\r\n\r\n").hears_the_end()
    with Raw(server) as client:
        client.asks(add(b"", size=2**32 - 1))
        client.hears(error("Malformed ADD command: the data is larger than 16777216 bytes"))
        client.hears_the_end()


def test_input_of_a_waiting_client_is_limited(server):
    with Raw(server) as flooder, Raw(server) as client:
        flooder.asks(reserve("flood", 0))
        flooder.socket.settimeout(1)
        before, sent = memory(server.pid), 0
        with contextlib.suppress(TimeoutError):
            while sent < 100 << 20:
                sent += flooder.socket.send(b"CONNECT\0" * 8192)
        assert sent < 50 << 20, "the client was not throttled"
        assert memory(server.pid) - before < 20 << 20
        flooder.socket.settimeout(20)
        seq = client.adds(b"x", "flood")
        flooder.hears(reserved(seq, b"x"), OK * (sent // 8))


def test_large_data_behind_a_wait_is_read_after_the_wait(server):
    """While the client waits, the server reads no further; it must continue with an incomplete
    command.
    """
    data = b"x" * (16 << 20)
    with Raw(server) as client:
        client.asks(reserve("behind", 1), add(data, "behind"), reserve("behind", 5)).hears(TIMEOUT)
        reply = client._replies.read(14)
        assert reply[:6] == b"ADDED\0"
        client.hears(reserved(struct.unpack("<Q", reply[6:])[0], data))


def test_waiters_are_served_in_order(server):
    with contextlib.ExitStack() as stack:
        waiters = [stack.enter_context(Raw(server)) for _ in range(20)]
        for waiter in waiters:
            waiter.asks(b"CONNECT\0", reserve("line", 0)).hears(OK)
        client = stack.enter_context(Raw(server))
        for number, waiter in enumerate(waiters):
            data = b"%d" % number
            waiter.hears(reserved(client.adds(data, "line"), data))


def test_jobs_ids_and_reservations_survive_kill_9(tmp_path):
    with running_server(tmp_path / "data") as server:
        with Raw(server) as client:
            client.asks(add(b"held", ttp=4), add(b"free", "q2"), add(b"done", "q3"))
            client.hears(added(1), added(2), added(3))
            client.asks(reserve(), delete(3)).hears(reserved(1, b"held", ttp=4), OK)
            since = time.monotonic()
        server.restart()
        with Raw(server) as client:
            client.asks(reserve("q2")).hears(reserved(2, b"free"))
            client.asks(delete(3)).hears(error("Job 3 already deleted"))
            client.asks(add(b"new", "q4")).hears(added(4))
            client.asks(reserve(timeout=20)).hears(reserved(1, b"held", ttp=4))
            assert 3.5 < time.monotonic() - since < 15


def memory(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
