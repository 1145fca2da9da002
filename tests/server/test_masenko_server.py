"""Masenko over real sockets: restarts, concurrent clients, ends of connections, kills."""

import json
import signal
import socket
import struct
import threading
import time

import pytest

from raw_masenko import RawMasenko
from server_process import ServerProcess, running_server

MEMORY = {"MILLRACE_SERVER_DURABILITY": "memory"}
CHAINED = 'PUSH {"name":"a","blocked_by":[-1]}'
PUSH = 'PUSH {"name":"a"}'


def connect(server: ServerProcess) -> RawMasenko:
    return RawMasenko(server.ports["masenko"])


@pytest.fixture
def masenko(server):
    with connect(server) as connection:
        yield connection


def test_off_disables_the_protocol(tmp_path):
    with running_server(tmp_path / "data", MILLRACE_MASENKO_PORT="off", **MEMORY) as server:
        assert "masenko" not in server.ports


def test_a_task_over_a_socket(masenko):
    task = masenko.push("register-user", queue="q", payload={"name": "Jörg"})
    assert masenko.fetch("q") == {
        "id": task,
        "queue": "q",
        "name": "register-user",
        "payload": {"name": "Jörg"},
    }
    assert masenko.ack(task) == b"OK {}"
    assert masenko.ack(task) == b'ERR {"msg":"task not acquired"}'
    assert masenko.ask("QUIT") == b"OK {}"
    assert masenko.at_end()


# Restarts


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_all_tasks_survive_a_stop_or_kill_of_the_server(tmp_path, end):
    with running_server(tmp_path / "data") as server:
        with connect(server) as client:
            for number in range(1, 6):
                assert client.push(f"n{number}", retry=2, payload=[number]) == number
            assert client.commit(PUSH, CHAINED, CHAINED) == b'OK {"ids":[6,7,8]}'
            assert [client.fetch()["id"] for _ in range(4)] == [1, 2, 3, 4]
            assert client.nack(3) == b"OK {}"
            assert client.ack(4) == b"OK {}"
            server.signal(end)
            server.wait()
        server.start()
        with connect(server) as client:
            assert client.push() == 9
            ready = [client.fetch(timeout="1s") for _ in range(6)]
            # Acquired tasks are ready again without a failure. Failed tasks stay failed.
            assert sorted(task["id"] for task in ready) == [1, 2, 3, 5, 6, 9]
            assert {task["id"]: task.get("failures", 0) for task in ready} == {
                1: 0, 2: 0, 3: 1, 5: 0, 6: 0, 9: 0,
            }  # fmt: skip
            assert client.fetch() is None
            assert client.ack(6) == b"OK {}"
            assert client.fetch()["id"] == 7


def test_a_stopped_server_ends_immediately_despite_waiting_clients(tmp_path):
    serving = running_server(tmp_path / "data", MILLRACE_SERVER_STOP_GRACE="10s")
    with serving as server, connect(server) as client, connect(server) as waiter:
        client.push()
        client.fetch()
        waiter.send(b'FETCH {"queues":["none"],"timeout":"40s"}\n')
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 5


def test_no_acknowledged_task_returns_and_none_is_lost(tmp_path):
    with running_server(tmp_path / "data") as server:
        pushed: set[int] = set()
        tried: set[int] = set()
        acked: set[int] = set()
        for _ in range(3):
            workers = [
                threading.Thread(target=_work, args=(server, pushed, tried, acked))
                for _ in range(4)
            ]
            for worker in workers:
                worker.start()
            time.sleep(0.4)
            server.kill()
            for worker in workers:
                worker.join()
            server.start()
        assert len(acked) > 20
        with connect(server) as client:
            left = set()
            while (task := client.fetch(timeout="50ms")) is not None:
                left.add(task["id"])
                assert client.ack(task["id"]) == b"OK {}"
            assert not left & acked, "acknowledged tasks returned"
            assert pushed <= tried | left, "pushed tasks are lost"


def _work(server: ServerProcess, pushed: set[int], tried: set[int], acked: set[int]) -> None:
    """Push and work until the server dies, possibly between a change and its reply."""
    try:
        with connect(server) as client:
            while True:
                pushed.add(client.push())
                task = client.fetch()
                if task is not None:
                    tried.add(task["id"])
                    assert client.ack(task["id"]) == b"OK {}"
                    acked.add(task["id"])
    except OSError:
        pass


# The end of a connection


def soon(value, wanted) -> None:
    """The server may notice the end of a connection with a delay."""
    deadline = time.monotonic() + 10
    while (found := value()) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.005)


@pytest.mark.parametrize("how", ["close", "reset", "half-close", "quit"])
def test_tasks_of_a_closed_connection_fail(server, masenko, how):
    masenko.push(retry=1)
    masenko.push(retry=0, deadqueue="dead")
    masenko.push(queue="gone", retry=0)
    other = connect(server)
    assert [other.fetch("default", "gone")["id"] for _ in range(3)] == [1, 2, 3]
    if how == "reset":
        other.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "quit":
        assert other.ask("QUIT") == b"OK {}"
    elif how == "half-close":
        other.socket.shutdown(socket.SHUT_WR)
        assert other.at_end()
    else:
        other.socket.close()
    soon(masenko.queues, {"default": (0, 1, 0), "dead": (1, 0, 0)})
    assert masenko.fetch("default", timeout="3s")["failures"] == 1
    other.socket.close()


@pytest.mark.parametrize("how", ["close", "half-close and close"])
def test_a_task_for_a_closed_connection_is_returned(server, masenko, how):
    other = connect(server)
    other.send(b'PING\nFETCH {"timeout":"20s"}\n')
    soon(lambda: masenko.info()["metrics"]["masenko_requests_total"]["PING"], 1)
    if how != "close":
        other.socket.shutdown(socket.SHUT_WR)
        time.sleep(0.05)
    other.socket.close()
    time.sleep(0.05)
    task = masenko.push()
    assert masenko.fetch(timeout="5s") == {"id": task, "queue": "default", "name": "a"}
    soon(lambda: masenko.info()["metrics"]["masenko_clients_total"], 1)


def test_a_half_closed_client_waits_for_its_task(server, masenko):
    with connect(server) as half:
        half.send(b'FETCH {"timeout":"20s"}\nFETCH {"timeout":"200ms"}\n')
        half.socket.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        task = masenko.push()
        assert half.line() == b'OK {"id":%d,"queue":"default","name":"a"}' % task
        assert half.line() == b"EMPTY {}"
        assert half.at_end()


def test_a_stop_answers_waiting_clients(server):
    with connect(server) as client:
        client.send(b'FETCH {"timeout":"20s"}\n')
        time.sleep(0.2)
        assert server.stop() == 0
        assert client.line() == b"EMPTY {}"


def test_a_client_without_a_heartbeat_is_disconnected(tmp_path):
    beats = {"MILLRACE_MASENKO_HEARTBEAT": "1s"}
    with running_server(tmp_path / "data", **beats, **MEMORY) as server:
        with connect(server) as idle, connect(server) as client:
            client.push()
            client.fetch()
            for _ in range(13):
                time.sleep(0.1)
                spoke = time.monotonic()
                assert client.ask("PING") == b"PONG {}"
            assert idle.line() == b'ERR {"msg":"no heartbeat"}'
            assert idle.at_end()
            assert client.line() == b'ERR {"msg":"no heartbeat"}'
            assert time.monotonic() - spoke >= 1.0
            assert client.at_end()
        with connect(server) as client:
            soon(client.queues, {"default": (0, 1, 0)})


# Waiting


def test_a_waiting_fetch_is_answered_immediately(server, masenko):
    with connect(server) as waiter:
        took = []
        for _ in range(20):
            waiter.send(b'FETCH {"timeout":"20s"}\n')
            time.sleep(0.01)
            started = time.monotonic()
            masenko.push()
            waiter.line()
            took.append(time.monotonic() - started)
        assert sorted(took)[10] < 0.5


def test_concurrent_clients_receive_every_task_once(tmp_path):
    with running_server(tmp_path / "data", **MEMORY) as server:
        seen: list[int] = []
        lock = threading.Lock()

        def work() -> None:
            with connect(server) as client:
                while (task := client.fetch("a", "b", timeout="1s")) is not None:
                    with lock:
                        seen.append(task["id"])
                    assert client.ack(task["id"]) == b"OK {}"

        workers = [threading.Thread(target=work) for _ in range(12)]
        for worker in workers:
            worker.start()
        with connect(server) as client:
            lines = b"".join(
                b'PUSH {"name":"a","queue":"%b"}\n' % queue for queue in (b"a", b"b") * 300
            )
            client.send(lines)
            ids = [json.loads(client.line()[3:])["id"] for _ in range(600)]
        for worker in workers:
            worker.join()
        assert sorted(seen) == ids


def test_a_large_transaction(server, masenko):
    masenko.send(b"ATOMIC\n" + b'PUSH {"name":"a","queue":"q"}\n' * 40_000 + b"DONE\n")
    assert masenko.line() == b"OK {}"
    assert masenko.queues() == {"q": (40_000, 0, 0)}
    server.kill()
    server.start()
    with connect(server) as client:
        assert client.queues() == {"q": (40_000, 0, 0)}


def test_a_flood_of_lines_is_answered_in_order(masenko):
    masenko.send(b"".join(b"PING\nx%d\n" % n for n in range(5000)))
    for number in range(5000):
        assert masenko.line() == b"PONG {}"
        assert masenko.line() == b'ERR {"msg":"unknown verb x%d"}' % number
