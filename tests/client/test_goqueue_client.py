"""GoJobQueue with a real server, and with invalid servers."""

import contextlib
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.client import (
    AlreadyDeleted,
    BadReply,
    ConnectionLost,
    GoJobQueue,
    MillraceError,
    NotConnected,
    RequestRefused,
    ReservedJob,
    TimedOut,
)
from server_process import running_server

MAX_UINT32 = 2**32 - 1


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server that these tests share; each test uses its own queues."""
    with running_server(tmp_path_factory.mktemp("goqueue") / "data") as server:
        yield server.ports["goqueue"]


@pytest.fixture
def client(port: int) -> Iterator[GoJobQueue]:
    with GoJobQueue(port=port) as connected:
        yield connected


# A real server


def test_a_job_from_add_to_delete(client):
    job = client.add("life", b"\0\xff data", priority=7, ttp=30)
    assert client.reserve("life", 1) == ReservedJob(job, 7, 30, "reserved", b"\0\xff data")
    client.delete(job)
    assert client.reserve("life", 1) is None


def test_a_reserved_job_can_be_passed_to_delete(client):
    client.add("handed", b"x")
    job = client.reserve("handed")
    client.delete(job)
    with pytest.raises(AlreadyDeleted, match=f"^Job {job.id} already deleted$"):
        client.delete(job)
    assert client.connected


def test_lower_priorities_first_then_by_age(client):
    jobs = [client.add("order", b"", priority=priority) for priority in (2, 1, 4, 1, 2, 3)]
    got = [client.reserve("order", 1).id for _ in jobs]
    assert [jobs.index(job) + 1 for job in got] == [2, 4, 1, 5, 6, 3]


def test_a_reserve_waits_for_a_job_of_another_client(port, client):
    def add_soon() -> None:
        with GoJobQueue(port=port) as producer:
            time.sleep(0.2)
            producer.add("soon", b"here")

    thread = threading.Thread(target=add_soon)
    thread.start()
    assert client.reserve("soon").data == b"here"
    thread.join()


def test_a_reserve_times_out(client):
    started = time.monotonic()
    assert client.reserve("never", 1) is None
    assert 0.9 < time.monotonic() - started < 5


def test_a_job_returns_after_its_ttp(client):
    job = client.add("again", b"x", ttp=1)
    assert client.reserve("again").id == job
    assert client.reserve("again", 5).id == job


def test_a_wait_may_be_longer_than_the_timeout(port):
    with GoJobQueue(port=port, timeout=1.5) as client:
        assert client.reserve("never", 2) is None


@pytest.mark.parametrize("size", [0, 1, 65_536, 16 << 20])
def test_data_of_any_size(client, size):
    job = client.add(f"size-{size}", b"x" * size)
    found = client.reserve(f"size-{size}")
    assert (found.id, found.data) == (job, b"x" * size)
    client.delete(found)


@pytest.mark.parametrize("queue", ["żółw 🐢", "q" * 255])
def test_any_queue_name(client, queue):
    client.add(queue, b"x")
    assert client.reserve(queue, 1).data == b"x"


def test_the_largest_numbers(client):
    client.add("large", b"", priority=MAX_UINT32, ttp=MAX_UINT32)
    assert client.reserve("large", 1)[1:3] == (MAX_UINT32, MAX_UINT32)


def test_data_above_the_limit_of_the_server_is_refused_with_its_message(client):
    with pytest.raises(RequestRefused, match="the data is larger than 16777216 bytes"):
        client.add("refused", b"x" * ((16 << 20) + 1))


def test_after_a_refusal_the_caller_connects_again(client):
    with pytest.raises(RequestRefused):
        client.add("refused", b"x" * (17 << 20))
    with contextlib.suppress(ConnectionLost):
        client.reserve("refused", 1)
    client.connect()
    client.add("refused", b"small")
    assert client.reserve("refused", 1).data == b"small"


def test_a_new_connection_keeps_reserved_jobs(client):
    job = client.add("anew", b"x")
    client.reserve("anew", 1)
    client.connect()
    assert client.reserve("anew", 1) is None
    client.delete(job)


def test_acknowledged_jobs_survive_kill_9(tmp_path):
    with running_server(tmp_path / "data") as server:
        client = GoJobQueue(port=server.ports["goqueue"]).connect()
        done, kept = client.add("q", b"done"), client.add("q", b"kept")
        client.delete(client.reserve("q"))
        server.restart()
        with pytest.raises(ConnectionLost):
            client.add("q", b"nobody there")
        assert not client.connected
        client.port = server.ports["goqueue"]
        client.connect()
        assert client.reserve("q", 1)[::4] == (kept, b"kept")
        with pytest.raises(AlreadyDeleted):
            client.delete(done)
        assert client.add("q", b"new") > kept
        client.close()


def test_a_limit_of_deliveries(tmp_path):
    limited = running_server(tmp_path / "data", MILLRACE_GOQUEUE_MAX_DELIVERIES="1")
    with limited as server, GoJobQueue(port=server.ports["goqueue"]) as client:
        job = client.add("poison", b"x", ttp=1)
        assert client.reserve("poison").id == job
        assert client.reserve("poison", 2) is None
        client.delete(job)


def test_a_limit_of_connections(tmp_path):
    limited = running_server(tmp_path / "data", MILLRACE_SERVER_MAX_CONNECTIONS="1")
    with limited as server, GoJobQueue(port=server.ports["goqueue"]):
        second = GoJobQueue(port=server.ports["goqueue"])
        with pytest.raises(RequestRefused, match="Too many connections"):
            second.connect()
        assert not second.connected


def test_tls(tmp_path, certificates):
    trusting = ssl.create_default_context(cafile=str(certificates.ca))
    with running_server(tmp_path / "data", **certificates.environment) as server:
        port = server.ports["goqueue"]
        with GoJobQueue("localhost", port, tls=trusting, timeout=5) as client:
            job = client.add("q", b"x" * 100_000)
            assert client.reserve("q", 1)[::4] == (job, b"x" * 100_000)
            assert client.reserve("q", 1) is None
        with pytest.raises(ConnectionLost, match="certificate verify failed"):
            GoJobQueue("localhost", port, tls=ssl.create_default_context()).connect()
        with pytest.raises((ConnectionLost, TimedOut)):
            GoJobQueue("localhost", port, timeout=5).connect()


# Invalid arguments


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda c: c.add("", b""), "queue must be 1 to 255 bytes"),
        (lambda c: c.add("ż" * 128, b""), "queue must be 1 to 255 bytes"),
        (lambda c: c.add("a\0b", b""), "without NUL"),
        (
            lambda c: c.add("q", b"", priority=-1),
            f"priority must be from 0 to {MAX_UINT32}, not -1",
        ),
        (lambda c: c.add("q", b"", priority=2**32), "priority must be"),
        (lambda c: c.add("q", b"", ttp=2**32), "ttp must be"),
        (lambda c: c.reserve("q", 0), "at least 1"),
        (lambda c: c.reserve("q", -1), "wait must be"),
        (lambda c: c.reserve("", 1), "queue must be"),
        (lambda c: c.delete(-1), "id must be"),
        (lambda c: c.delete(2**64), "id must be"),
    ],
)
def test_invalid_arguments_are_not_sent(call: Callable[[GoJobQueue], Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        call(GoJobQueue())


# Without a connection


def test_commands_need_a_connection():
    client = GoJobQueue()
    assert not client.connected
    for call in (
        lambda: client.add("q", b""),
        lambda: client.reserve("q", 1),
        lambda: client.delete(1),
    ):
        with pytest.raises(NotConnected, match="connect"):
            call()
    client.close()


def test_a_refused_connection():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        client = GoJobQueue(port=closed.getsockname()[1])
        with pytest.raises(ConnectionLost, match=r"no connection to 127\.0\.0\.1:"):
            client.connect()
    assert not client.connected


def test_a_silent_server_times_out():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TimedOut, match="did not answer in time"):
            GoJobQueue(port=port, timeout=0.2).connect()
        context = ssl.create_default_context()
        with pytest.raises(TimedOut, match="no connection to 127"):
            GoJobQueue(port=port, timeout=0.2, tls=context).connect()


def test_every_error_is_a_millrace_error_and_network_errors_have_python_types():
    for kind in (NotConnected, ConnectionLost, TimedOut, BadReply, RequestRefused, AlreadyDeleted):
        assert issubclass(kind, MillraceError)
    assert issubclass(ConnectionLost, ConnectionError)
    assert issubclass(TimedOut, TimeoutError)
    assert issubclass(AlreadyDeleted, RequestRefused)


# Invalid servers


@contextlib.contextmanager
def peer(
    *replies: bytes | float, hangs_up: bool = True, timeout: float = 10.0
) -> Iterator[GoJobQueue]:
    """A client with a server that answers CONNECT, and sends these replies to the next command. A
    number is a pause in seconds.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        wire, _ = listening.accept()
        with wire:
            wire.recv(100)
            wire.sendall(b"OK\0")
            wire.recv(100)
            for reply in replies:
                if isinstance(reply, float):
                    over.wait(reply)
                else:
                    wire.sendall(reply)
                    time.sleep(0.01)
            if not hangs_up:
                over.wait(20)

    thread = threading.Thread(target=serve)
    thread.start()
    client = GoJobQueue(port=listening.getsockname()[1], timeout=timeout)
    try:
        yield client.connect()
    finally:
        over.set()
        client.close()
        thread.join()
        listening.close()


RESERVED = b"RESERVED\0" + bytes([9, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 0, 0]) + b"reserved\0"


def test_a_reply_in_segments():
    reply = RESERVED + b"\5\0\0\0hello"
    with peer(*(reply[n : n + 1] for n in range(len(reply)))) as client:
        assert client.reserve("q") == ReservedJob(2**56 + 9, 2, 3, "reserved", b"hello")


@pytest.mark.parametrize(
    "reply_bytes",
    [b"", b"RESER", RESERVED[:-3], RESERVED + b"\5\0\0\0hell", RESERVED + b"\xff\xff\xff\xff"],
)
def test_the_server_disconnects_within_a_reply(reply_bytes):
    with peer(reply_bytes) as client:
        with pytest.raises(ConnectionLost, match="The server closed the connection"):
            client.reserve("q")
        assert not client.connected


@pytest.mark.parametrize("reply_bytes", [b"", b"TIME", RESERVED + b"\5\0\0\0hell"])
def test_the_server_is_silent(reply_bytes):
    with peer(reply_bytes, hangs_up=False, timeout=0.3) as client:
        started = time.monotonic()
        with pytest.raises(TimedOut, match="did not answer in time"):
            client.delete(1) if not reply_bytes else client.reserve("q", 1)
        assert 0.2 < time.monotonic() - started < 5
        assert not client.connected


def test_an_incomplete_reply_times_out_in_a_wait_without_a_limit():
    with (
        peer(0.5, RESERVED, hangs_up=False, timeout=0.3) as client,
        pytest.raises(TimedOut),
    ):
        client.reserve("q")


@pytest.mark.parametrize(
    "reply_bytes", [b"OK\0", b"HTTP/1.1 400 Bad Request\r\n\0", b"\0", b"x" * 70_000]
)
def test_an_invalid_reply_to_a_reserve(reply_bytes):
    with peer(reply_bytes) as client:
        with pytest.raises(BadReply):
            client.reserve("q")
        assert not client.connected


def test_another_protocols_greeting():
    listening = socket.create_server(("127.0.0.1", 0))

    def greet() -> None:
        wire, _ = listening.accept()
        wire.sendall(b'+HI {"v":2}\r\n')
        wire.recv(100)
        wire.sendall(b"-ERR expected HELLO\r\n\0")
        wire.close()

    thread = threading.Thread(target=greet)
    thread.start()
    with pytest.raises(BadReply, match="HI"):
        GoJobQueue(port=listening.getsockname()[1], timeout=2).connect()
    thread.join()
    listening.close()


def test_an_error_has_the_message_of_the_server():
    with peer("ERROR\0zażółć\0".encode(), hangs_up=False) as client:
        with pytest.raises(RequestRefused, match=r"^zażółć$"):
            client.add("q", b"x")
        assert client.connected


def test_another_refusal_of_delete_is_not_taken_for_a_deleted_job():
    with peer(b"ERROR\0disk full: nothing was changed, try again later\0") as client:
        with pytest.raises(RequestRefused, match="disk full") as refused:
            client.delete(1)
        assert type(refused.value) is RequestRefused


def test_an_interrupted_wait_leaves_no_connection_behind():
    """Otherwise its reply would be used for the next command."""

    class Interrupt(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with peer(hangs_up=False) as client:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Interrupt):
                client.reserve("q")
            assert not client.connected
    finally:
        signal.signal(signal.SIGALRM, before)
