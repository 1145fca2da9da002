"""Workq over real sockets: restarts, concurrent clients, half-closed connections, kills."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from raw_workq import RawWorkq
from server_process import running_server

MEMORY = {"MILLRACE_SERVER_DURABILITY": "memory"}


def uid(number: int) -> bytes:
    return b"6ba7b810-9dad-41d1-80b4-%012x" % number


@pytest.fixture
def workq(server):
    with RawWorkq(server.ports["workq"]) as connection:
        yield connection


def test_the_ready_line_names_the_port(server):
    assert {"faktory", "workq"} <= set(server.ports)


def test_off_disables_the_protocol(tmp_path):
    with running_server(tmp_path / "data", MILLRACE_WORKQ_PORT="off") as server:
        assert "workq" not in server.ports


def test_the_original_dialect(tmp_path):
    original = running_server(tmp_path / "data", MILLRACE_WORKQ_DIALECT="original")
    with original as server, RawWorkq(server.ports["workq"]) as client:
        client.add(uid(1), "vv", b"pong", ttr=1000)
        client.send(b"lease vv 100\r\n")
        assert (client.line(), client.line(), client.block(4)) == (
            b"+OK 1",
            uid(1) + b" vv 1000 4",
            b"pong",
        )


def test_a_job_over_a_socket(workq):
    workq.add(uid(1), "ping", b"\r\n" * 1000)
    assert workq.lease("pong", "ping", wait=1000) == (uid(1), b"\r\n" * 1000)
    assert workq.complete(uid(1), b"done") == b"+OK"
    assert workq.result(uid(1)) == (b"1", b"done")


# Restarts


def test_all_jobs_survive_a_kill_with_their_original_deadlines(tmp_path):
    # Long enough for a restart on a busy machine; the job is due after its server is back.
    soon = (datetime.now(UTC) + timedelta(seconds=7)).replace(microsecond=0)
    with running_server(tmp_path / "data") as server:
        with RawWorkq(server.ports["workq"]) as client:
            client.add(
                uid(1), "kept", b"payload", flags="-priority=-7 -max-attempts=5 -max-fails=3"
            )
            client.add(uid(2), "leased", ttr=6000)
            client.add(uid(3), "short", ttl=6000)
            client.add(uid(4), "done")
            client.add(uid(5), "failed", flags="-max-fails=1")
            client.add(uid(6), "fails", flags="-max-fails=2")
            schedule = b"schedule %b later 1000 60000 %b 0\r\n\r\n"
            assert (
                client.ask(schedule % (uid(7), soon.strftime("%Y-%m-%dT%H:%M:%SZ").encode()))
                == b"+OK"
            )
            leased_at = time.monotonic()
            assert client.lease("leased") == (uid(2), b"")
            assert client.complete(uid(4), b"the result") == b"+OK"
            assert client.fail(uid(5), b"the reason") == b"+OK"
            assert client.lease("fails") == (uid(6), b"")
            assert client.fail(uid(6), b"once") == b"+OK"
            before = [client.inspect(uid(number)) for number in range(1, 8)]
            with RawWorkq(server.ports["workq"]) as one, RawWorkq(server.ports["workq"]) as two:
                one.send(b"run %b run 60000 60000 3\r\nrun\r\n" % uid(8))
                assert client.lease("run", wait=1000) == (uid(8), b"run")
                two.send(b"run %b run 60000 60000 3\r\nrun\r\n" % uid(9))
                while client.inspect(uid(9)) is None:
                    time.sleep(0.01)
                # Leases and runs do not wait for a commit: make sure that they are on the disk.
                client.add(uid(10), "last")
                server.kill()
        time.sleep(2)
        server.start()
        up = time.monotonic()
        with RawWorkq(server.ports["workq"]) as client:
            assert [client.inspect(uid(number)) for number in range(1, 8)] == before
            assert client.inspect(uid(8)) is None, "a run survived the end of the server"
            assert client.inspect(uid(9)) is None, "a run survived the end of the server"
            assert client.result(uid(4)) == (b"1", b"the result")
            assert client.result(uid(5)) == (b"0", b"the reason")
            assert client.result(uid(6)) == b"-TIMEOUT"
            assert (
                client.ask(b"add %b kept 1 1 0\r\n\r\n" % uid(4)) == b"-CLIENT-ERROR Duplicate job"
            )
            assert client.lease("leased", wait=20_000) == (uid(2), b"")
            # A lease that restarted its period would end six seconds after the start.
            assert leased_at + 5.9 < time.monotonic() < up + 5.9
            assert client.inspect(uid(3)) is None, "the time to live restarted"
            assert client.server()["evicted-jobs"] == "1"
            assert client.lease("later", wait=10_000) == (uid(7), b"")
            assert datetime.now(UTC) >= soon


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_completed_job_returns(tmp_path, number):
    # Of 3000 completed jobs the original delivered 5 again after a kill.
    with running_server(tmp_path / "data") as server:
        with RawWorkq(server.ports["workq"]) as client:
            many = range(500)
            client.send(b"".join(b"add %b q 60000 600000 1\r\nx\r\n" % uid(n) for n in many))
            assert {client.line() for _ in many} == {b"+OK"}
            client.send(b"".join(b"complete %b 2\r\nok\r\n" % uid(n) for n in many))
            assert {client.line() for _ in many} == {b"+OK"}
        server.signal(number)
        server.wait()
        server.start()
        with RawWorkq(server.ports["workq"]) as client:
            assert client.lease("q") is None
            assert {client.result(uid(n)) for n in many} == {(b"1", b"ok")}


def test_a_torn_record_at_the_end_of_the_log_does_not_prevent_startup(tmp_path):
    """An unsynced, so unacknowledged record: half of a copy of the bytes before it."""
    data = tmp_path / "data"
    with running_server(data) as server:
        with RawWorkq(server.ports["workq"]) as client:
            for number in range(20):
                client.add(uid(number), "q")
        server.kill()
        log = data / "millrace.db-wal"
        with log.open("r+b") as file:
            file.seek(-4120, os.SEEK_END)
            torn = file.read(2000)
            file.seek(0, os.SEEK_END)
            file.write(torn)
        server.start()
        with RawWorkq(server.ports["workq"]) as client:
            assert client.lease("q") == (uid(0), b"")


def test_jobs_cross_protocols_and_back(server, faktory, workq):
    workq.add(uid(1), "shared", b'{"n":1}')
    unit = faktory.fetch("shared")
    assert (unit["jid"], unit["jobtype"], unit["args"]) == (uid(1).decode(), "shared", [{"n": 1}])
    faktory.ack(uid(1).decode())
    assert workq.result(uid(1), wait=1000) == (b"1", b"")
    workq.add(uid(2), "shared", b"\xff\xfe", flags="-max-fails=1")
    unit = faktory.fetch("shared")
    assert (unit["args"], unit["custom"]) == (["//4="], {"encoding": "base64"})
    faktory.fail(uid(2).decode(), message="broken")
    assert workq.result(uid(2), wait=1000) == (b"0", b"broken")
    faktory.push({"jid": "a-faktory-job", "jobtype": "T", "args": [1, 2], "queue": "shared"})
    jid, payload = workq.lease("shared", wait=1000)
    assert payload == b"[1,2]"
    assert workq.complete(jid) == b"+OK"


# Connections


def test_half_close_is_honoured(workq):
    workq.send(
        b"add %b q 1000 60000 1\r\nx\r\nlease q 0\r\nnonsense\r\nadd %b q 1 1 9\r\nxx"
        % (uid(1), uid(2))
    )
    workq.socket.shutdown(socket.SHUT_WR)
    received = [workq.line() for _ in range(6)]
    assert received == [
        b"+OK",
        b"+OK 1",
        uid(1) + b" q 1",
        b"x",
        b"-CLIENT-ERROR Unknown command",
        b"-CLIENT-ERROR Invalid payload size",
    ]
    assert workq.at_end()


def test_half_close_while_waiting_for_a_result(server, workq):
    with RawWorkq(server.ports["workq"]) as worker:
        workq.add(uid(1), "q")
        workq.send(b"result %b 10000\r\n" % uid(1))
        workq.socket.shutdown(socket.SHUT_WR)
        time.sleep(0.1)
        assert worker.complete(uid(1), b"ok") == b"+OK"
        assert [workq.line() for _ in range(3)] == [b"+OK 1", uid(1) + b" 1 2", b"ok"]
        assert workq.at_end()


@pytest.mark.parametrize("how", ["close", "reset", "half-close and close"])
def test_a_job_for_a_closed_connection_is_returned(server, workq, how):
    closed = RawWorkq(server.ports["workq"])
    closed.send(b"lease q other 60000\r\n")
    while int(workq.server()["active-clients"]) < 2:
        time.sleep(0.01)
    time.sleep(0.05)
    if how == "reset":
        closed.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif how != "close":
        closed.socket.shutdown(socket.SHUT_WR)
        time.sleep(0.05)
    closed.socket.close()
    time.sleep(0.05)
    workq.add(uid(1), "q", b"x")
    assert workq.lease("q", wait=5000) == (uid(1), b"x")
    assert workq.inspect(uid(1))["attempts"] == "1"
    assert int(workq.server()["active-clients"]) == 1


def test_a_half_closed_client_waits_for_its_lease(server, workq):
    with RawWorkq(server.ports["workq"]) as half:
        half.send(b"lease q 60000\r\nlease q 60000\r\n")
        half.socket.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        for number in (1, 2):
            workq.add(uid(number), "q", b"x")
            assert (half.line(), half.line(), half.block(1)) == (
                b"+OK 1",
                uid(number) + b" q 1",
                b"x",
            )
        assert half.at_end()
    time.sleep(0.05)
    assert [workq.inspect(uid(n))["attempts"] for n in (1, 2)] == ["1", "1"]
    assert [workq.inspect(uid(n))["state"] for n in (1, 2)] == ["4", "4"]  # leased


def test_a_half_closed_client_waits_for_its_run(server, workq):
    with RawWorkq(server.ports["workq"]) as half:
        half.send(b"run %b q 60000 60000 1\r\nx\r\n" % uid(1))
        half.socket.shutdown(socket.SHUT_WR)
        assert workq.lease("q", wait=5000) == (uid(1), b"x")
        assert workq.complete(uid(1), b"done") == b"+OK"
        assert [half.line() for _ in range(3)] == [b"+OK 1", uid(1) + b" 1 4", b"done"]
        assert half.at_end()


def test_a_reset_ends_a_wait_after_a_half_close(server, workq):
    closed = RawWorkq(server.ports["workq"])
    closed.send(b"lease q 60000\r\n")
    closed.socket.shutdown(socket.SHUT_WR)
    time.sleep(0.1)
    closed.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    closed.socket.close()
    deadline = time.monotonic() + 10
    while int(workq.server()["active-clients"]) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_stop_answers_waiting_clients(server):
    with RawWorkq(server.ports["workq"]) as client, RawWorkq(server.ports["workq"]) as other:
        client.send(b"lease q 60000\r\n")
        other.send(b"run %b q 60000 60000 1\r\nx\r\n" % uid(1))
        assert client.line() == b"+OK 1"  # the job of the run
        assert (client.line(), client.block(1)) == (uid(1) + b" q 1", b"x")
        client.send(b"lease q 60000\r\n")
        time.sleep(0.1)
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 10
        assert (client.line(), other.line()) == (b"-TIMEOUT", b"-TIMEOUT")


def test_a_run_ends_with_its_client(server, workq):
    closed = RawWorkq(server.ports["workq"])
    closed.send(b"run %b q 60000 60000 1\r\nx\r\n" % uid(1))
    while workq.inspect(uid(1)) is None:
        time.sleep(0.01)
    closed.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    closed.socket.close()
    deadline = time.monotonic() + 5
    while workq.inspect(uid(1)) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_deleting_a_waiting_run_does_not_crash_the_server(server, workq):
    with RawWorkq(server.ports["workq"]) as runner:
        runner.send(b"run %b q 60000 3000 1\r\nx\r\n" % uid(1))
        while workq.inspect(uid(1)) is None:
            time.sleep(0.01)
        assert workq.ask(b"delete %b\r\n" % uid(1)) == b"+OK"
        assert runner.line() == b"-TIMEOUT"
    assert server.alive


@pytest.mark.parametrize("said", [b"lease q 10\n", b"\n", b"x" * 1_058_600])
def test_closed_without_a_reply(workq, said):
    workq.send(said)
    with contextlib.suppress(ConnectionResetError):  # otherwise bytes would be unread
        assert workq.socket.recv(100) == b""


def test_a_refused_payload_of_two_megabytes_is_skipped(workq):
    workq.send(b"add %b q 1 1 2000000\r\n" % uid(1) + b"delete x\r\n" * 200_000 + b"\r\n")
    assert workq.line() == b"-CLIENT-ERROR Invalid payload size"
    assert workq.lease("q") is None


def test_single_bytes(workq):
    for byte in b"add %b q 1000 60000 4\r\nabcd\r\nlease q 0\r\n" % uid(1):
        workq.send(bytes([byte]))
    assert [workq.line() for _ in range(4)] == [b"+OK", b"+OK 1", uid(1) + b" q 4", b"abcd"]


def test_a_hundred_large_jobs_can_be_inspected(workq):
    for number in range(80):
        workq.add(uid(number), "q", b"x" * (1 << 20))
    workq.send(b"inspect jobs q 0 100\r\n")
    assert workq.line() == b"+OK 80"
    for number in range(80):
        assert workq.line() == uid(number) + b" 12"
        for _ in range(4):
            workq.line()
        assert workq.block((1 << 20) + 8)[:9] == b"payload x"
        for _ in range(7):
            workq.line()


def test_timers_are_accurate_to_a_few_milliseconds(workq):
    """No timer is early. On a busy machine some are late, but not all."""
    workq.add(uid(1), "q", ttr=200)
    assert workq.lease("q") is not None
    expiries, timeouts = [], []
    while len(expiries) < 50 and (not expiries or min(expiries) >= 0.3 or min(timeouts) >= 0.2):
        started = time.monotonic()
        assert workq.lease("q", wait=5000) is not None
        expiries.append(time.monotonic() - started)
        started = time.monotonic()
        assert workq.lease("nothing", wait=100) is None
        timeouts.append(time.monotonic() - started)
    assert expiries[0] > 0.198
    assert min(timeouts) >= 0.1
    assert min(expiries) < 0.3
    assert min(timeouts) < 0.2


# Concurrent workers


JOBS = 10_000
WORKERS = 64
NAMES = [f"name-{n}" for n in range(16)]


@pytest.mark.parametrize("durability", ["fsync", "memory"])
def test_64_workers_with_overlapping_names_receive_every_job_once(tmp_path, durability):
    with running_server(tmp_path / "data", MILLRACE_SERVER_DURABILITY=durability) as server:
        started = time.monotonic()
        taken = asyncio.run(crowd(server.ports["workq"]))
        print(
            f"\n{durability}: {JOBS} jobs through {WORKERS} blocked workers in {time.monotonic() - started:.1f} s"
        )
        assert len(taken) == JOBS
        assert sorted(taken) == [uid(n) for n in range(JOBS)]
        with RawWorkq(server.ports["workq"]) as client:
            assert client.lease(*NAMES) is None


async def crowd(port: int) -> list[bytes]:
    taken: list[bytes] = []
    blocked = asyncio.Semaphore(0)

    async def work(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        names = [NAMES[(number * 7 + k * k) % len(NAMES)] for k in range(1 + number % 5)]
        names.append(NAMES[number % len(NAMES)])  # every name has a worker
        # The wait is much longer than the test: a lost wake-up would hang the test.
        lease = f"lease {' '.join(names)} 3600000\r\n".encode()
        writer.write(lease)
        blocked.release()
        while len(taken) < JOBS:
            assert await reader.readline() == b"+OK 1\r\n"
            jid, _, size = (await reader.readline()).split()
            await reader.readexactly(int(size) + 2)
            taken.append(jid)
            writer.write(b"complete %b 0\r\n\r\n" % jid)
            assert await reader.readline() == b"+OK\r\n"
            writer.write(lease)

    async def produce(first: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(first, JOBS, 4):
            payload = b"x" * (number % 50)
            writer.write(
                b"add %b %b 600000 6000000 %d -priority=%d\r\n%b\r\n"
                % (uid(number), NAMES[number % 16].encode(), len(payload), number % 3, payload)
            )
            if number % 100 < 4:
                await writer.drain()
                await asyncio.sleep(0.001)  # now and then all workers are idle
        for _ in range(first, JOBS, 4):
            assert await reader.readline() == b"+OK\r\n"
        writer.close()

    workers = [asyncio.create_task(work(number)) for number in range(WORKERS)]
    for _ in range(WORKERS):
        await blocked.acquire()
    await asyncio.gather(*(produce(first) for first in range(4)))
    while len(taken) < JOBS:
        await asyncio.sleep(0.01)
        failed = [worker for worker in workers if worker.done() and worker.exception()]
        assert not failed, failed[0].exception()
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    return taken


def test_50_clients_wait_for_one_result(server, workq):
    workq.add(uid(1), "q")
    waiters = [RawWorkq(server.ports["workq"]) for _ in range(50)]
    for waiter in waiters:
        waiter.send(b"result %b 60000\r\n" % uid(1))
    time.sleep(0.1)
    assert workq.complete(uid(1), b"ok") == b"+OK"
    for waiter in waiters:
        assert [waiter.line() for _ in range(3)] == [b"+OK 1", uid(1) + b" 1 2", b"ok"]
        waiter.socket.close()


def test_the_choice_of_a_name_is_uniform(server, workq):
    many = 900
    for number in range(many):
        workq.add(uid(number), f"n{number % 3}", b"%d" % (number % 3))
    counts = [0, 0, 0]
    for _ in range(300):
        counts[int(workq.lease("n0", "n1", "n2")[1])] += 1
    assert min(counts) > 60, counts


def test_random_bytes_disturb_no_client(server, workq):
    def noise() -> None:
        with socket.create_connection(("127.0.0.1", server.ports["workq"])) as other:
            other.settimeout(5)
            try:
                other.sendall(os.urandom(100_000))
                other.shutdown(socket.SHUT_WR)
                while other.recv(65_536):
                    pass
            except OSError:
                pass

    threads = [threading.Thread(target=noise) for _ in range(8)]
    for thread in threads:
        thread.start()
    for number in range(50):
        workq.add(uid(number), "q")
    for thread in threads:
        thread.join()
    assert server.alive
    assert "A command failed" not in server.stderr
