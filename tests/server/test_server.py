"""A real server process and real sockets: behaviour that tests without I/O cannot show."""

import contextlib
import json
import os
import random
import re
import select
import signal
import socket
import ssl
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import server_process as processes
from raw_faktory import HOST, ClosedError, RawFaktory, RefusedError, line
from server_process import ServerProcess, running_server, server_process

MEMORY = {"MILLRACE_SERVER_DURABILITY": "memory"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests that restore its state."""
    with running_server(tmp_path_factory.mktemp("shared") / "data") as running:
        yield running


@pytest.fixture
def client(shared: ServerProcess) -> Iterator[RawFaktory]:
    with RawFaktory(shared.port) as connection:
        connection.command("FLUSH")
        yield connection


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> object:
    """Poll `condition` until it is true, for a limited time, and return its value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.005)
    return found


def unit(jid: str, **fields: object) -> dict[str, object]:
    return {"jid": jid, "jobtype": "SomeJob", "args": [1], **fields}


def plain(port: int, timeout: float = 10.0) -> socket.socket:
    connection = socket.create_connection((HOST, port), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def hello(port: int, **fields: object) -> socket.socket:
    """A plain socket after the HELLO handshake."""
    connection = plain(port)
    assert connection.recv(100) == b'+HI {"v":2}\r\n'
    connection.sendall(line("HELLO", {"v": 2, **fields}))
    assert connection.recv(100) == b"+OK\r\n"
    return connection


def reset(connection: socket.socket) -> None:
    """Close with an RST, as a process that crashed with unread data does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def until_closed(connection: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            received += chunk
    return received


def resident(server: ServerProcess) -> int:
    """The server's resident memory in MiB."""
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


# The order of replies


def test_replies_are_in_order_when_some_wait_for_a_commit_or_a_job(
    client,
):
    expected: list[str] = []
    sent = b""
    for number in range(50):
        jid = f"order-{number:04}"
        sent += line("PUSH", unit(jid, queue="order")) + line("INFO") + line("NOPE")
        sent += line("FETCH order") + line("ACK", {"jid": jid})
        expected += ["OK", "info", "error", jid, "OK"]
        if number == 25:
            sent += line("FETCH order")
            expected += ["nothing"]
    client.send(sent)
    assert [_kind(client) for _ in expected] == expected


def _kind(client: RawFaktory) -> str:
    try:
        reply = client.reply()
    except RefusedError:
        return "error"
    if reply is None:
        return "nothing"
    if isinstance(reply, str):
        return reply
    value = json.loads(reply)
    return "info" if "server" in value else value["jid"]


def test_replies_are_in_order_on_concurrent_connections(shared, client):
    choices = random.Random(7)
    sessions: list[tuple[RawFaktory, list[str]]] = []
    with contextlib.ExitStack() as stack:
        for number in range(20):
            connection = stack.enter_context(RawFaktory(shared.port))
            queue = f"many-{number}"
            expected, sent = [], b""
            waiting: list[str] = []
            for step in range(100):
                picked = choices.choice(["push", "push", "fetch", "info", "nope"])
                jid = f"job-{number:03}-{step:03}"
                if picked == "push":
                    sent += line("PUSH", unit(jid, queue=queue))
                    waiting.append(jid)
                    expected.append("OK")
                elif picked == "fetch" and waiting:
                    sent += line(f"FETCH {queue}")
                    expected.append(waiting.pop(0))
                elif picked == "info":
                    sent += line("INFO")
                    expected.append("info")
                else:
                    sent += line("NOPE")
                    expected.append("error")
            sessions.append((connection, expected))
            connection.send(sent)
        for connection, expected in sessions:
            assert [_kind(connection) for _ in expected] == expected


# FETCH and time


def test_a_waiting_fetch_ends_after_two_seconds_and_blocks_no_other_client(shared, client):
    with RawFaktory(shared.port) as waiting:
        started = time.monotonic()
        waiting.send(line("FETCH nowhere") + line("INFO"))
        client.push(unit("beside-it-all"))
        is_over, _, _ = select.select([waiting._socket], [], [], 0)
        assert not is_over or time.monotonic() - started > 1.9, "the push waited for the FETCH"
        assert waiting.reply() is None
        took = time.monotonic() - started
        assert json.loads(waiting.reply())["server"]["connections"] == 2
    print(f"\nFETCH from an empty queue took {took:.3f} s")
    # Tests with a virtual clock assert the exact time; here the machine may be busy.
    assert 1.99 <= took < 20


def test_a_waiting_fetch_is_answered_immediately(shared, client):
    took = []
    with RawFaktory(shared.port) as worker:
        for number in range(5):
            worker.send(line("FETCH empty wake"))
            worker._socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                worker.reply()  # it waits
            worker._socket.settimeout(10)
            started = time.monotonic()
            client.push(unit(f"wake-{number:04}", queue="wake"))
            assert json.loads(worker.reply())["jid"] == f"wake-{number:04}"
            took.append(time.monotonic() - started)
    print(f"\na waiting FETCH woke within {min(took) * 1000:.1f} ms")
    assert min(took) < 0.25


@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["close", "reset"])
def test_a_waiting_client_that_disconnects_receives_no_job(shared, client, leave):
    names = [f"leave-{number:04}" for number in range(5)]
    leaving = [hello(shared.port, wid=f"gone-{name}") for name in names]
    for name, each in zip(names, leaving, strict=True):
        each.sendall(line(f"FETCH {name}"))
    eventually(lambda: client.info()["server"]["connections"] == 6)
    for each in leaving:  # a closed client waits until the end of its FETCH
        leave(each)
    eventually(lambda: client.info()["server"]["connections"] == 1)
    for name in names:
        client.push(unit(name, queue=name))
        assert client.set_size("working") == 0
        fetched = client.fetch(name)
        assert fetched is not None
        client.ack(fetched["jid"])


def test_a_client_that_disconnects_during_a_push_loses_no_job(shared, client):
    for number in range(30):
        leaving_client = hello(shared.port)
        leaving_client.sendall(line("FETCH moment"))
        client.send(line("PUSH", unit(f"moment-{number:04}", queue="moment", reserve_for=60)))
        reset(leaving_client)
        assert client.reply() == "OK"
    eventually(lambda: client.info()["server"]["connections"] == 1)
    assert client.queue_size("moment") + client.set_size("working") == 30


# A reply that cannot be written


def _big_job_client(port: int) -> socket.socket:
    connection = socket.socket()
    connection.settimeout(10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((HOST, port))
    assert connection.recv(100) == b'+HI {"v":2}\r\n'
    connection.sendall(line("HELLO", {"v": 2, "wid": "never-reads"}))
    assert connection.recv(100) == b"+OK\r\n"
    return connection


def test_a_job_with_an_unwritten_reply_returns_without_an_attempt(shared, client):
    client.push(unit("big-job-01", queue="big", args=["x" * 12_000_000], retry=1))
    unread = _big_job_client(shared.port)
    unread.sendall(line("FETCH big"))
    eventually(lambda: client.set_size("working") == 1)
    reset(unread)
    eventually(lambda: client.queue_size("big") == 1)
    assert client.set_size("retries") == 0
    fetched = client.fetch("big")
    assert fetched is not None
    assert (fetched["jid"], fetched["retry"]) == ("big-job-01", 1)
    assert "failure" not in fetched
    assert client.info()["faktory"]["total_processed"] == 0
    client.fail("big-job-01")
    assert client.set_size("retries") == 1, "its first failure, so it has its retry left"


def test_a_job_with_an_unwritten_reply_is_delivered_to_a_waiter(shared, client):
    client.push(unit("big-job-02", queue="big", args=["x" * 12_000_000]))
    unread = _big_job_client(shared.port)
    unread.sendall(line("FETCH big"))
    eventually(lambda: client.set_size("working") == 1)
    with RawFaktory(shared.port) as waiting:
        waiting.send(line("FETCH big"))
        reset(unread)
        assert json.loads(waiting.reply())["jid"] == "big-job-02"


def test_a_large_job_reaches_a_slow_reader_completely(shared, client):
    client.push(unit("big-job-03", queue="big", args=["x" * 5_000_000]))
    slow = _big_job_client(shared.port)
    slow.sendall(line("FETCH big") + line("ACK", {"jid": "big-job-03"}))
    received = b""
    while not received.endswith(b"}\r\n+OK\r\n"):
        received += slow.recv(100_000)
    assert len(received) > 5_000_000
    eventually(lambda: client.set_size("working") == 0)
    slow.close()


# Slow readers and excessive senders


def test_a_client_that_never_reads_is_throttled_and_others_continue(tmp_path):
    with running_server(tmp_path / "data", **MEMORY) as server, RawFaktory(server.port) as other:
        before = resident(server)
        unread = _big_job_client(server.port)
        unread.setblocking(False)
        sent, flood = 0, line("INFO") * 10_000
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and sent < 50_000_000:
            try:
                sent += unread.send(flood)
            except BlockingIOError:
                time.sleep(0.01)
        assert sent < 50_000_000, "the client was never throttled"
        for number in range(50):
            other.push(unit(f"others-{number:02}"))  # a reply has a timeout
        assert resident(server) - before < 100
        unread.close()


def test_a_client_that_does_not_read_for_some_time_is_disconnected(tmp_path, monkeypatch):
    monkeypatch.setattr(
        processes, "MILLRACE", _millrace_with(tmp_path, "millrace.server.output", READ_TIMEOUT=0.5)
    )
    with running_server(tmp_path / "data", **MEMORY) as server, RawFaktory(server.port) as other:
        other.push(unit("unread-01", args=["x" * 12_000_000]))
        unread = _big_job_client(server.port)
        unread.sendall(line("FETCH"))
        eventually(lambda: other.info()["server"]["connections"] == 1)
        assert other.queue_size("default") == 1, "the unread job has returned"
        assert "did not read its replies" in server.stderr
        unread.close()


def test_a_slow_client_that_still_reads_is_not_disconnected(tmp_path, monkeypatch):
    """The client needs several times the timeout for its reply, and reads a little continuously."""
    monkeypatch.setattr(
        processes, "MILLRACE", _millrace_with(tmp_path, "millrace.server.output", READ_TIMEOUT=1.0)
    )
    size = 6_000_000
    with running_server(tmp_path / "data", **MEMORY) as server, RawFaktory(server.port) as other:
        other.push(unit("read-slowly", args=["x" * size]))
        slow = _big_job_client(server.port)
        slow.sendall(line("FETCH"))
        got, began = 0, time.monotonic()
        while got < size:
            data = slow.recv(60_000)
            assert data, f"disconnected after {got} bytes and {time.monotonic() - began:.1f} s"
            got += len(data)
            time.sleep(4 * len(data) / size)  # all of it takes four seconds
        assert time.monotonic() - began > 3
        slow.close()


def _millrace_with(folder: Path, module: str, **constants: float) -> Path:
    """The `millrace` command with a changed constant, to shorten a timeout. Compiled modules contain
    the values of their constants, so the command uses the sources.
    """
    script = folder / "millrace-changed"
    changes = "".join(f"module.{name} = {value!r}\n" for name, value in constants.items())
    script.write_text(
        f"#!{sys.executable}\nimport os\nimport sys\nos.environ['MILLRACE_PURE'] = '1'\n"
        f"import {module} as module\n{changes}"
        "from millrace.cli import main\nsys.exit(main())\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def test_input_of_a_waiting_client_is_bounded(tmp_path):
    limits = {"MILLRACE_SERVER_MAX_LINE": "1MiB", "MILLRACE_SERVER_MAX_OUTPUT": "1MiB"}
    with running_server(tmp_path / "data", **MEMORY, **limits) as server:
        flood = hello(server.port)
        flood.sendall(line("FETCH nowhere") * 10)
        flood.settimeout(0.5)  # the client is throttled if no send succeeds for this time
        job = line("PUSH", unit("flood-01", args=["x" * 1_000_000]))
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 100:
                flood.sendall(job)
                sent += 1
        print(f"\n{sent} lines of 1 MB were taken from a client that waits")
        assert sent < 100
        reset(flood)


def test_a_pipelining_client_does_not_starve_others(shared, client):
    flood = b"".join(line("PUSH", unit(f"flood-{n:05}", queue="flood")) for n in range(20_000))
    latencies: list[float] = []
    began = time.monotonic()
    with RawFaktory(shared.port) as flooder:
        thread = threading.Thread(target=flooder.send, args=(flood,))
        thread.start()
        while client.queue_size("flood") < 20_000:
            started = time.monotonic()
            client.push(unit(f"beside-{len(latencies):06}", queue="beside"))
            latencies.append(time.monotonic() - started)
        thread.join()
        took = time.monotonic() - began
        assert [flooder.reply() for _ in range(20_000)] == ["OK"] * 20_000
    latencies.sort()
    print(f"\nduring 20,000 pipelined PUSHes: {len(latencies)} PUSHes, worst {latencies[-1]:.3f} s")
    assert len(latencies) >= 3, "the other client was starved"
    assert latencies[-1] < max(1.0, took / 2)  # a busy machine delays both clients


def test_a_mutate_of_12000_jobs_does_not_starve_others(shared, client):
    for start in range(0, 12_000, 1000):
        jobs = [unit(f"later-{start + n:06}", at="2099-01-01T00:00:00Z") for n in range(1000)]
        assert client.command("PUSHB", jobs) == b"{}"
    with RawFaktory(shared.port) as other:
        began = time.monotonic()
        client.send(line("MUTATE", {"cmd": "kill", "target": "scheduled", "filter": {"regexp": "*later*"}}))  # fmt: skip
        started = time.monotonic()
        other.push(unit("meanwhile"))
        took = time.monotonic() - started
    assert client.reply() == "OK"
    # A busy machine delays both clients.
    assert took < max(1.0, (time.monotonic() - began) / 2)
    assert client.set_size("dead") == 12_000


def test_info_during_concurrent_pushes_to_new_queues(shared, client):
    stop = threading.Event()

    def push(name: str) -> None:
        with RawFaktory(shared.port) as pusher:
            for number in range(300):
                pusher.push(unit(f"{name}-{number:05}", queue=f"{name}-{number}"))
        stop.set()

    threads = [threading.Thread(target=push, args=(f"new-{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    infos = 0
    while not stop.is_set():
        client.info()
        infos += 1
    for thread in threads:
        thread.join()
    assert infos > 10
    assert client.info()["faktory"]["total_queues"] == 900


def test_retry_never_leaks_between_concurrent_pushers(shared, client):
    def push(number: int) -> None:
        with RawFaktory(shared.port) as pusher:
            for n in range(300):
                given = {} if number == 3 else {"retry": number}
                pusher.push(unit(f"leak-{number}-{n:05}", queue=f"leak-{number}", **given))

    threads = [threading.Thread(target=push, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, retry in enumerate([0, 1, 2, 25]):
        client.send(line(f"FETCH leak-{number}") * 300)
        assert {json.loads(client.reply())["retry"] for _ in range(300)} == {retry}


# Connections


def test_the_connection_limit(tmp_path):
    with running_server(tmp_path / "data", MILLRACE_SERVER_MAX_CONNECTIONS="2", **MEMORY) as server:
        first, second = RawFaktory(server.port), RawFaktory(server.port)
        third = plain(server.port)
        assert third.recv(100) == b'+HI {"v":2}\r\n'
        third.sendall(line("HELLO", {"v": 2}))
        assert until_closed(third) == b"+OK\r\n-ERR too many connections: 3\r\n"
        third.close()
        first.push(unit("still-here"))
        second.close()
        eventually(lambda: first.info()["server"]["connections"] == 1)
        RawFaktory(server.port).close()
        first.close()


def test_a_client_without_hello_is_closed_silently_after_two_seconds(shared, client):
    started = time.monotonic()
    silent, slow = plain(shared.port), plain(shared.port)
    for unknown_client in (silent, slow):
        assert unknown_client.recv(100) == b'+HI {"v":2}\r\n'
    for byte in b"HELLO":
        slow.sendall(bytes([byte]))
        time.sleep(0.02)
    for unknown_client in (silent, slow):
        assert until_closed(unknown_client) == b""
        assert 1.9 < time.monotonic() - started < 15
        unknown_client.close()
    assert client.command("FLUSH") == "OK", "a client after HELLO may be silent for longer"


def test_an_unfinished_tls_handshake_is_closed_in_time(tmp_path, certificates):
    with running_server(tmp_path / "data", **MEMORY, **certificates.environment) as server:
        started = time.monotonic()
        unknown_client = plain(server.port)
        unknown_client.sendall(b"\x16\x03\x01")
        until_closed(unknown_client)
        assert time.monotonic() - started < 15
        unknown_client.close()
        with RawFaktory(server.port, ca=certificates.ca) as other:
            other.push(unit("over-tls-1"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("protocol", "prefix"),
    [
        ("faktory", b'HELLO {"v":2}\r\nPUSH '),
        ("masenko", b"PUSH "),
        ("goqueue", b"ADD\0q\0" + struct.pack("<III", 0, 60, 8 << 20)),
        ("qless", b"*2\r\n$4\r\nECHO\r\n$%d\r\n" % (8 << 20)),
    ],
)
def test_input_of_a_closed_connection_is_freed(tmp_path, protocol, prefix):
    """20 unfinished commands of 5 MiB, one after another."""
    with running_server(tmp_path / "data", **MEMORY) as server:
        for _ in range(20):
            with plain(server.ports[protocol]) as client:
                client.sendall(prefix + b"x" * (5 << 20))
        eventually(lambda: resident(server) < 88)  # the server may still read the last ones


def test_the_connection_limit_covers_all_protocols(tmp_path):
    limit = {"MILLRACE_SERVER_MAX_CONNECTIONS": "2"}
    with (
        running_server(tmp_path / "data", **MEMORY, **limit) as server,
        contextlib.ExitStack() as s,
    ):
        for _ in range(2):
            client = s.enter_context(plain(server.ports["masenko"]))
            client.sendall(b"PING\n")
            assert client.recv(100) == b"PONG {}\n"
        for protocol, expected_reply in (
            ("workq", b"-SERVER-ERROR too many connections\r\n"),
            ("masenko", b'ERR {"msg":"too many connections"}\n'),
            ("goqueue", b"ERROR\0Too many connections\0"),
            ("qless", b"-ERR max number of clients reached\r\n"),
        ):
            with plain(server.ports[protocol]) as other:
                assert until_closed(other) == expected_reply
        with plain(server.port) as other:
            assert other.recv(100) == b'+HI {"v":2}\r\n'
            other.sendall(b'HELLO {"v":2}\r\n')
            assert b"too many connections" in until_closed(other)


@pytest.mark.parametrize(
    ("protocol", "message", "expected_reply"),
    [
        ("faktory", b'HELLO {"v":2}\r\nFETCH q\r\n', b"$-1\r\n"),
        ("faktory", b'HELLO {"v":2,"wid":"w"}\r\nFETCH q\r\n', b"$-1\r\n"),
        ("workq", b"inspect queues 0 1\r\nlease q 60000\r\n", b"-TIMEOUT\r\n"),
        ("masenko", b"PING\nFETCH\n", b"EMPTY {}\n"),
        ("goqueue", b"CONNECT\0RESERVE\0q\0\0\0\0\0", b"TIMEOUT\0"),
        ("qless", b"PING\r\nBRPOP l 0\r\n", b"*-1\r\n"),
    ],
)
def test_a_stopping_server_answers_waiting_clients(
    tmp_path: Path, protocol: str, message: bytes, expected_reply: bytes
) -> None:
    """The first command has a reply, so the second one waits as soon as that reply arrives."""
    settings = {**MEMORY, "MILLRACE_SERVER_STOP_GRACE": "100ms"}
    with running_server(tmp_path / "data", **settings) as server:
        with plain(server.ports[protocol]) as client:
            if protocol == "faktory":
                assert client.recv(100) == b'+HI {"v":2}\r\n'
            client.sendall(message)
            client.recv(100)
            server.signal(signal.SIGTERM)
            assert until_closed(client) == expected_reply
        assert server.wait() == 0


def test_unfinished_handshakes_use_no_connections(tmp_path, certificates):
    """An unfinished handshake must not count as a connection, nor expire as a silent one."""
    limits = {"MILLRACE_SERVER_MAX_CONNECTIONS": "3", "MILLRACE_MASENKO_HEARTBEAT": "500ms"}
    environment = {**MEMORY, **limits, **certificates.environment}
    with running_server(tmp_path / "data", **environment) as server:
        for protocol in ("workq", "masenko", "goqueue", "qless"):
            for _ in range(5):
                plain(server.ports[protocol]).close()
        for protocol, message, expected_reply in (
            ("workq", b"lease x 1\r\n", b"-TIMEOUT\r\n"),
            ("masenko", b"PING\n", b"PONG {}\n"),
            ("goqueue", b"CONNECT\0", b"OK\0"),
            ("qless", b"PING\r\n", b"+PONG\r\n"),
        ):
            raw = plain(server.ports[protocol])
            context = ssl.create_default_context(cafile=certificates.ca)
            with context.wrap_socket(raw, server_hostname="localhost") as client:
                client.sendall(message)
                assert client.recv(100) == expected_reply
        unknown_client = plain(server.ports["masenko"])
        time.sleep(0.7)  # longer than the heartbeat
        unknown_client.close()
        assert "Traceback" not in server.stderr


def test_a_password_over_the_wire(tmp_path):
    with running_server(tmp_path / "data", MILLRACE_FAKTORY_PASSWORD="secret", **MEMORY) as server:
        greetings = set()
        for _ in range(20):
            unknown_client = plain(server.port)
            greetings.add(unknown_client.recv(100))
            unknown_client.close()
        assert len(greetings) == 20
        for greeting in greetings:
            match = re.fullmatch(rb'\+HI \{"v":2,"i":(\d+),"s":"([0-9a-f]+)"\}\r\n', greeting)
            assert match, greeting
            assert 4000 <= int(match[1]) <= 8095
            assert int(match[2], 16) < 1 << 63
        with RawFaktory(server.port, password="secret") as client:
            client.push(unit("secret-01"))
        with pytest.raises(RefusedError, match="ERR Invalid password"):
            RawFaktory(server.port, password="wrong")


def test_800_wrong_passwords_delay_no_other_client(tmp_path):
    with (
        running_server(tmp_path / "data", MILLRACE_FAKTORY_PASSWORD="secret", **MEMORY) as server,
        RawFaktory(server.port, password="secret") as client,
        contextlib.ExitStack() as crowd,
    ):
        unknown_clients = [crowd.enter_context(plain(server.port)) for _ in range(800)]
        for unknown_client in unknown_clients:
            unknown_client.sendall(line("HELLO", {"v": 2, "pwdhash": "0" * 64}))
        started = time.monotonic()
        client.push(unit("beside-them"))
        took = time.monotonic() - started
        print(f"\nduring 800 wrong passwords a PUSH took {took:.3f} s")
        assert took < 5.0  # CPU time that other processes share


def test_a_client_that_half_closes_receives_all_replies(shared, client):
    for turn in range(5):
        half = plain(shared.port)
        jobs = (line("PUSH", unit(f"half-{turn}-{n:04}", queue="half")) for n in range(500))
        half.sendall(line("HELLO", {"v": 2}) + b"".join(jobs) + line("INFO"))
        half.shutdown(socket.SHUT_WR)
        received = until_closed(half)
        assert received.count(b"+OK\r\n") == 501
        assert received.endswith(b"}}\r\n")
        half.close()
    assert client.queue_size("half") == 2500


def test_a_half_closed_client_waits_for_a_job(shared, client):
    half = hello(shared.port)
    half.sendall(line("FETCH half") + line("FETCH none"))
    half.shutdown(socket.SHUT_WR)
    time.sleep(0.2)
    client.push(unit("half-0001", queue="half"))
    received = until_closed(half)
    assert b'"jid":"half-0001"' in received
    assert received.endswith(b"}\r\n$-1\r\n")
    half.close()
    client.ack("half-0001")


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_half_closed_client_that_leaves_receives_no_job(shared, client, how):
    half = hello(shared.port)
    half.sendall(line("FETCH half"))
    half.shutdown(socket.SHUT_WR)
    time.sleep(0.2)
    if how == "reset":
        half.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    half.close()
    client.push(unit(f"half-{how}", queue="half"))
    until = time.monotonic() + 5
    while client.set_size("working") and time.monotonic() < until:
        time.sleep(0.05)
    assert client.set_size("working") == 0
    assert client.fetch("half")["jid"] == f"half-{how}"
    client.ack(f"half-{how}")


def test_end_without_a_newline_then_close(shared, client):
    leaving_client = hello(shared.port)
    leaving_client.sendall(b"END")
    leaving_client.close()
    eventually(lambda: client.info()["server"]["connections"] == 1)


def test_end_is_answered_then_the_socket_is_closed(shared):
    leaving = hello(shared.port)
    leaving.sendall(line("PUSH", unit("before-end")) + line("END") + line("INFO"))
    assert until_closed(leaving) == b"+OK\r\n+OK\r\n"
    leaving.close()


def test_end_behind_500_commands_is_answered_last(shared, client):
    for turn in range(5):
        leaving = hello(shared.port)
        jobs = (line("PUSH", unit(f"end-{turn}-{n:04}", queue="end")) for n in range(500))
        leaving.sendall(b"".join(jobs) + line("END"))
        assert until_closed(leaving) == b"+OK\r\n" * 501
        leaving.close()
    assert client.queue_size("end") == 2500


@pytest.mark.parametrize("noise", [b"\x00" * 1000 + b"\n", b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000) + b"\n", b"\n"], ids=["zeros", "http", "random", "newline"])  # fmt: skip
def test_invalid_input_is_answered_with_an_error_and_closed(shared, client, noise):
    unknown_client = plain(shared.port)
    unknown_client.sendall(noise)
    received = until_closed(unknown_client)
    assert received.startswith(b'+HI {"v":2}\r\n')
    reply = received.removeprefix(b'+HI {"v":2}\r\n')
    assert not reply or reply.startswith((b"-ERR expected HELLO", b"HTTP/1.1 400 Bad Request"))
    unknown_client.close()
    client.push(unit("undisturbed"))


def test_a_line_beyond_the_limit_is_refused_and_not_buffered(tmp_path):
    limits = {"MILLRACE_SERVER_MAX_LINE": "64KiB", "MILLRACE_SERVER_MAX_OUTPUT": "64KiB"}
    with running_server(tmp_path / "data", **MEMORY, **limits) as server:
        with RawFaktory(server.port) as client:
            before = resident(server)
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    client.send(b"x" * 1_000_000)
            with pytest.raises(
                (RefusedError, ConnectionError), match=r"command too long|reset|pipe"
            ):
                client.reply()
            assert resident(server) - before < 20
        with RawFaktory(server.port) as client:
            client.push(unit("after-that", args=["x" * 60_000]))
            with pytest.raises(RefusedError, match="command too long: the limit is 65536 bytes"):
                client.push(unit("too-long-1", args=["x" * 66_000]))


def test_a_million_brackets_disturb_no_other_client(shared, client):
    with RawFaktory(shared.port) as nasty:
        for argument in (b"[" * 1_000_000, b'{"a":' * 1_000_000):
            nasty.send(b'PUSH {"jid":"deep-0001","jobtype":"x","args":' + argument + b"\r\n")
            with pytest.raises(RefusedError, match="ERR invalid JSON: nested too deeply"):
                nasty.reply()
    client.push(unit("undisturbed"))


# One segment per reply


def test_every_reply_arrives_in_one_segment(shared, client):
    """Some clients call recv once per reply."""
    connection = plain(shared.port)
    assert connection.recv(4096) == b'+HI {"v":2}\r\n'
    connection.sendall(line("HELLO", {"v": 2}))
    assert connection.recv(4096) == b"+OK\r\n"
    for number in range(100):
        connection.sendall(
            line("PUSH", unit(f"piece-{number:04}", queue="piece", args=["x" * 3000]))
        )
        assert connection.recv(4096) == b"+OK\r\n"
        connection.sendall(line("FETCH piece"))
        received = connection.recv(4096)
        size, _, body = received.partition(b"\r\n")
        assert len(body) == int(size[1:]) + 2
        connection.sendall(line("INFO"))
        assert connection.recv(4096).endswith(b"}}\r\n")
    connection.close()


def test_every_reply_arrives_in_one_segment_over_tls(tmp_path, certificates):
    context = ssl.create_default_context(cafile=str(certificates.ca))
    with (
        running_server(tmp_path / "data", **MEMORY, **certificates.environment) as server,
        context.wrap_socket(plain(server.port), server_hostname=HOST) as connection,
    ):
        assert connection.recv(4096) == b'+HI {"v":2}\r\n'
        connection.sendall(line("HELLO", {"v": 2}))
        assert connection.recv(4096) == b"+OK\r\n"
        for number in range(50):
            connection.sendall(line("PUSH", unit(f"piece-{number:04}", args=["x" * 3000])))
            assert connection.recv(4096) == b"+OK\r\n"
            connection.sendall(line("FETCH"))
            size, _, body = connection.recv(4096).partition(b"\r\n")
            assert len(body) == int(size[1:]) + 2


@pytest.mark.parametrize(
    ("protocol", "sent", "received"),
    [
        ("workq", b"inspect server\r\n", b"+OK 1\r\n"),
        ("masenko", b"PING\n", b"PONG {}\n"),
        ("goqueue", b"CONNECT\0", b"OK\0"),
    ],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_over_tls_a_client_may_send_first(
    tmp_path, certificates, version, protocol, sent, received
):
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.maximum_version = version
    with (
        running_server(tmp_path / "data", **MEMORY, **certificates.environment) as server,
        context.wrap_socket(plain(server.ports[protocol]), server_hostname=HOST) as connection,
    ):
        connection.sendall(sent)
        assert connection.recv(4096).startswith(received)


# Starting and stopping


def test_the_server_listens_soon_after_its_start(tmp_path):
    """The CPU time counts: on a busy machine the start takes longer."""
    took = []
    with server_process(tmp_path / "data") as server:
        for _ in range(4):
            before = os.times()
            server.start()
            plain(server.port).close()
            server.kill()
            after = os.times()
            took.append(
                after.children_user
                - before.children_user
                + after.children_system
                - before.children_system
            )
    print(f"\nlistening after {min(took):.3f} s of CPU time (best of {len(took)})")
    assert 0 < min(took) < 1.5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_without_consumers_stops_immediately(tmp_path, number):
    with running_server(tmp_path / "data", MILLRACE_SERVER_STOP_GRACE="30s") as server:
        with RawFaktory(server.port) as producer:
            producer.push(unit("kept-0001"))
            started = time.monotonic()
            server.signal(number)
            assert server.wait(25) == 0
            assert time.monotonic() - started < 25  # the grace period is half a minute
        server.start()
        with RawFaktory(server.port) as producer:
            assert producer.queue_size("default") == 1


def test_a_stopping_server_notifies_consumers_and_waits_for_them(tmp_path):
    with running_server(tmp_path / "data", MILLRACE_SERVER_STOP_GRACE="30s") as server:
        port = server.port
        with RawFaktory(port, wid="worker-1") as worker, RawFaktory(port, wid="worker-1") as second:
            worker.push(unit("last-0001"))
            assert worker.fetch() is not None
            second.send(line("FETCH"))
            server.signal(signal.SIGTERM)
            eventually(lambda: _refuses(port))
            assert worker.command("BEAT", {"wid": "worker-1"}) == b'{"state":"terminate"}'
            worker.push(unit("last-0002"))
            assert second.reply() is None, "a stopping server delivers no job"
            worker.ack("last-0001")
            assert server.alive
            assert worker.command("END") == second.command("END") == "OK"
            assert server.wait(10) == 0
        server.start()
        with RawFaktory(server.port) as client:
            assert client.queue_size("default") == 1
            assert client.set_size("working") == 0


def _refuses(port: int) -> bool:
    # A connection in the backlog of the closed listener is reset instead of refused.
    try:
        plain(port).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    return False


def test_a_connected_consumer_is_closed_after_the_grace_period(tmp_path):
    with (
        running_server(tmp_path / "data", MILLRACE_SERVER_STOP_GRACE="500ms") as server,
        RawFaktory(server.port, wid="worker-1") as worker,
    ):
        started = time.monotonic()
        server.signal(signal.SIGTERM)
        with pytest.raises(ClosedError):
            worker.reply()
        assert 0.4 < time.monotonic() - started < 20
        assert server.wait(20) == 0


def test_a_second_signal_stops_the_server_immediately(tmp_path):
    with running_server(tmp_path / "data", MILLRACE_SERVER_STOP_GRACE="60s") as server:
        with RawFaktory(server.port, wid="worker-1") as worker:
            worker.push(unit("kept-0001"))
            server.signal(signal.SIGTERM)
            eventually(lambda: _refuses(server.port))
            assert server.alive
            started = time.monotonic()
            server.signal(signal.SIGINT)
            assert server.wait(30) == 0
            assert time.monotonic() - started < 30  # the grace period is a minute
        server.start()
        with RawFaktory(server.port) as client:
            assert client.queue_size("default") == 1


def test_acknowledged_jobs_survive_a_stop(tmp_path):
    with running_server(tmp_path / "data") as server:
        acknowledged = 0
        with RawFaktory(server.port) as producer, contextlib.suppress(ConnectionError):
            producer.send(b"".join(line("PUSH", unit(f"stop-{n:05}")) for n in range(3000)))
            producer.reply()
            server.signal(signal.SIGTERM)
            acknowledged = 1
            while producer.reply() == "OK":
                acknowledged += 1
                if acknowledged == 3000:
                    break
        assert server.wait(10) == 0
        server.start()
        with RawFaktory(server.port) as client:
            assert client.queue_size("default") >= acknowledged >= 1


# Reloading


def _greeting(port: int) -> bytes:
    with plain(port) as connection:
        return connection.recv(100)


def test_sighup_reloads_password_and_log_level(tmp_path):
    config = tmp_path / "millrace.toml"
    config.write_text('[server]\nlog_level = "info"\n')
    with running_server(tmp_path / "data", **MEMORY) as server:
        assert _greeting(server.port) == b'+HI {"v":2}\r\n'
        old = RawFaktory(server.port)
        config.write_text('[server]\nlog_level = "error"\n[faktory]\npassword = "secret"\n')
        server.signal(signal.SIGHUP)
        eventually(lambda: b'"s":' in _greeting(server.port))
        old.push(unit("let-in-before"))
        with RawFaktory(server.port, password="secret") as new:
            new.push(unit("let-in-after"))
        with pytest.raises(RefusedError, match="Invalid password"):
            RawFaktory(server.port, password="wrong")
        old.close()
        assert server.stop() == 0
        assert "Stopping" not in server.stderr


def test_sighup_with_an_invalid_file_changes_nothing(tmp_path):
    config = tmp_path / "millrace.toml"
    config.write_text('[faktory]\npassword = "secret"\n')
    with running_server(tmp_path / "data", **MEMORY) as server:
        config.write_text("[faktory]\npassword = 5\nnonsense = true\n")
        server.signal(signal.SIGHUP)
        eventually(lambda: "Configuration not reloaded" in server.stderr)
        with RawFaktory(server.port, password="secret") as client:
            client.push(unit("still-here"))


def test_sighup_reports_keys_that_need_a_restart(tmp_path):
    config = tmp_path / "millrace.toml"
    with running_server(tmp_path / "data", **MEMORY) as server:
        config.write_text('[server]\nmax_line = "2MiB"\n')
        server.signal(signal.SIGHUP)
        told = "server.max_line changed. Restart the server to apply the new value."
        eventually(lambda: told in server.stderr)
        assert server.alive
