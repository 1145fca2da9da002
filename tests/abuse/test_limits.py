"""The limits for all clients together: open files, buffers, and disk time."""

import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import commands
import pytest
from crowd import HOST, PROTOCOLS, connect, is_open, read_until_closed
from stage import cpu_seconds, descriptors, resident

from raw_faktory import RawFaktory
from raw_workq import RawWorkq
from server_process import ServerProcess, running_server, server_process

MEMORY = {"MILLRACE_SERVER_DURABILITY": "memory"}
#: The smallest permitted limits.
SMALL = {
    "MILLRACE_SERVER_MAX_LINE": "64KiB",
    "MILLRACE_SERVER_MAX_OUTPUT": "64KiB",
    "MILLRACE_SERVER_MAX_BUFFERED": "64KiB",
}
UNIT = {"jid": "abuse-unit", "jobtype": "x", "args": []}


def limit_files(server: ServerProcess, most: int) -> None:
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (most, most))


def lines_about(server: ServerProcess, words: str) -> list[str]:
    return [r["message"] for r in server.log_records() if words in r["message"]]


# Files


@pytest.fixture
def few_files(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that may open 256 files: 64 are reserved, 32 are for clients before a handshake."""
    with server_process(tmp_path / "data") as server:
        server.spawn()
        limit_files(server, 256)  # long before Python runs our code
        server.wait_ready()
        yield server


def test_a_low_file_limit_lowers_the_connection_limit_and_is_logged(few_files):
    (line,) = lines_about(few_files, "may open only")
    assert "only 256 files. It serves 160 connections" in line
    served = [RawWorkq(few_files.ports["workq"]) for _ in range(160)]
    for client in served:
        assert client.ask(b"inspect server\r\n") == b"+OK 1"
    for _ in range(20):
        with RawWorkq(few_files.ports["workq"]) as late:
            assert late.line() == b"-SERVER-ERROR too many connections"
            assert late.at_end()
    for client in served:
        client.socket.close()
    _wait_until_served(few_files)


def test_connected_clients_are_served_when_files_run_out(tmp_path):
    with running_server(tmp_path / "data") as server:
        client = RawFaktory(server.port)
        limit_files(server, descriptors(server.pid) + 20)
        crowd = [socket.create_connection((HOST, server.ports["workq"]), 10) for _ in range(200)]
        client.push(UNIT)
        deadline = time.monotonic() + 60
        while sum(is_open(each) for each in crowd) > 20:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        used = cpu_seconds(server.pid)
        time.sleep(0.5)  # a server that retries continuously would use all of this time
        assert cpu_seconds(server.pid) - used < 0.25
        assert client.info()["faktory"]["queues"] == {"default": 1}
        job = client.fetch("default")
        assert job is not None
        client.ack(job["jid"])
        for each in crowd:
            each.close()
        _wait_until_served(server)
        assert len(server.log_records()) <= 3


def _wait_until_served(server: ServerProcess) -> None:
    deadline = time.monotonic() + 60
    while True:
        with RawWorkq(server.ports["workq"]) as again:
            try:
                if again.ask(b"inspect server\r\n") == b"+OK 1":
                    return
            except ConnectionError:
                pass
        assert time.monotonic() < deadline, "the server accepts no more connections"
        time.sleep(0.01)


# Buffers

REFUSED = {
    "faktory": b"-ERR too many bytes of unfinished commands",
    "workq": b"-SERVER-ERROR too many bytes of unfinished commands",
    "masenko": b'ERR {"msg":"too many bytes of unfinished commands',
    "goqueue": b"ERROR\0too many bytes of unfinished commands",
    "qless": b"-MISCONF too many bytes of unfinished commands",
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_the_client_with_the_largest_buffer_is_disconnected(tmp_path, protocol):
    with running_server(tmp_path / "data", **SMALL, **MEMORY) as server:
        modest, greedy = connect(server.ports, "masenko"), connect(server.ports, protocol)
        modest.sendall(b'PUSH {"name":"x","payload":"' + b"x" * 30_000)
        _settle(server)
        begun = commands.BEGUN[protocol]
        if protocol == "workq":
            begun = begun.replace(b"1048576", b"60000")
        elif protocol == "goqueue":
            begun = begun.replace(struct.pack("<I", 16 << 20), struct.pack("<I", 60_000))
        elif protocol == "qless":
            begun = begun.replace(b"60000000", b"60000")
        greedy.sendall(begun + b"x" * 40_000)
        assert read_until_closed(greedy, 10).startswith(REFUSED[protocol])
        modest.sendall(b'"}\n')
        assert modest.recv(100) == b'OK {"id":1}\n'
        assert len(lines_about(server, "max_buffered")) == 1


def _settle(server: ServerProcess) -> None:
    """Wait until the server has read all earlier data."""
    with RawFaktory(server.port) as client:
        client.info()


def test_unread_replies_count_and_the_largest_client_is_disconnected(tmp_path):
    limits = {**SMALL, "MILLRACE_SERVER_MAX_LINE": "1MiB", "MILLRACE_SERVER_MAX_OUTPUT": "4MiB",
              "MILLRACE_SERVER_MAX_BUFFERED": "4MiB"}  # fmt: skip
    with running_server(tmp_path / "data", **limits, **MEMORY) as server:
        writer = connect(server.ports, "qless")
        writer.sendall(commands.qless("RPUSH", "k", b"x" * 1_000_000))
        assert writer.recv(100) == b":1\r\n"
        before = resident(server.pid)
        deaf = [connect(server.ports, "qless", receive_buffer=4096) for _ in range(40)]
        for each in deaf:
            # More than the kernel's buffers can hold.
            each.sendall(commands.qless("LRANGE", "k", 0, -1) * 50)
        deadline = time.monotonic() + 20
        while not lines_about(server, "max_buffered") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert resident(server.pid) - before < 32
        assert len(lines_about(server, "max_buffered")) == 1
        writer.sendall(commands.qless("PING"))
        assert writer.recv(100) == b"+PONG\r\n"


def test_a_large_request_behind_small_ones_is_accepted(tmp_path):
    """Before the fix, its claimed size counted as if it had arrived, and the server stopped
    reading.
    """
    with running_server(tmp_path / "data", **MEMORY) as server:
        client = connect(server.ports, "qless")
        request = b"PING\r\n" * 200 + commands.qless("ECHO", b"x" * 3_000_000)
        client.sendall(request)
        received = 0
        while received < 200 * 7 + 3_000_000:
            piece = client.recv(1 << 20)
            assert piece
            received += len(piece)


# TLS


def test_plain_text_on_a_tls_port_delays_no_client(tmp_path, certificates):
    with running_server(tmp_path / "data", **certificates.environment, **MEMORY) as server:
        for port in server.ports.values():
            for request in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PING\r\n" * 1000, bytes(300)):
                with socket.create_connection((HOST, port), 10) as plain:
                    plain.sendall(request)
                    read_until_closed(plain, 5)
        with RawFaktory(server.port, ca=certificates.ca) as client:
            client.push(UNIT)
        assert [r for r in server.log_records() if r["level"] == "error"] == []


def test_waits_on_unknown_queues_count_for_the_client(tmp_path):
    """A thousand invented names need a few kilobytes on the wire, and megabytes in memory."""
    limits = {**SMALL, "MILLRACE_SERVER_MAX_BUFFERED": "16MiB"}
    with running_server(tmp_path / "data", **limits, **MEMORY) as server:
        before = resident(server.pid)
        crowd = [connect(server.ports, "masenko") for _ in range(100)]
        for number, each in enumerate(crowd):
            names = ",".join(f'"{number}-{n}"' for n in range(1000))
            each.sendall(b'FETCH {"queues":[%b],"timeout":"40s"}\n' % names.encode())
        deadline = time.monotonic() + 20
        while sum(is_open(each) for each in crowd) != 8:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert resident(server.pid) - before < 32
        # Existing queues are not counted.
        busy = connect(server.ports, "masenko")
        for each in crowd:
            each.close()
        names = [f"known-{number}" for number in range(1000)]
        for name in names:
            busy.sendall(b'PUSH {"name":"x","queue":"%b"}\n' % name.encode())
            busy.recv(100)
            busy.sendall(b'FETCH {"queues":["%b"]}\n' % name.encode())
            busy.recv(200)
        workers = [connect(server.ports, "masenko") for _ in range(20)]
        wanted = ",".join(f'"{name}"' for name in names).encode()
        for each in workers:
            each.sendall(b'FETCH {"queues":[%b],"timeout":"40s"}\n' % wanted)
        _settle(server)
        assert all(is_open(each) for each in workers)
