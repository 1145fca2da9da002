"""The counts of the benchmarks equal the counters of the servers."""

import importlib.util
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from struct import pack

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from faktory_client import FaktoryClient  # noqa: E402
from load import Load, Outcome, run  # noqa: E402
from modes import (  # noqa: E402
    PAYLOAD_SIZE,
    Beanstalkd,
    Faktory,
    Goqueue,
    Masenko,
    Mode,
    Qless,
    QlessScript,
    Redis,
    RefusedError,
    Workq,
    connect,
    fill,
    read_line,
)
from servers import NotInstalledError, Running, choose, running, scratch  # noqa: E402

SECONDS = 0.5
PRELOAD = 20


def millrace_is_installed() -> bool:
    try:
        return importlib.util.find_spec("millrace.server.app") is not None
    except ModuleNotFoundError:
        return False


needs_millrace = pytest.mark.skipif(
    not millrace_is_installed(), reason="there is no server to start"
)


def start(name: str, folder: Path):
    """Start a server. Skips the test and names the package if the server is not installed."""
    server = choose(name)[0]
    try:
        server.find()
    except NotInstalledError as missing:
        pytest.skip(str(missing))
    return running(server, folder)


def run_short_load(mode: type[Mode], server: Running) -> Outcome:
    load = Load(
        mode,
        server.port,
        connections=9,  # more in one process than in the other
        processes=2,
        seconds=SECONDS,
        warmup=0.1,
        preload=PRELOAD,
    )
    return run(load, server.cpu_seconds)


def assert_plausible(outcome: Outcome, commands: tuple[str, ...]) -> None:
    """These checks do not depend on the speed of the machine or its disk."""
    assert 0 < outcome.cycles < outcome.total
    assert outcome.rate > 0
    assert outcome.generator_cpu > 0
    assert tuple(outcome.commands) == commands
    assert any(latency.samples for latency in outcome.commands.values())
    for latency in (*outcome.commands.values(), outcome.cycle):
        assert 0 <= latency.p50 <= latency.p99


@pytest.mark.parametrize("name", ["beanstalkd-memory", "beanstalkd-f0"])
def test_beanstalkd_deleted_as_many_jobs_as_cycles_were_counted(name, tmp_path):
    with start(name, tmp_path) as server:
        outcome = run_short_load(Beanstalkd, server)
        stats = beanstalkd_stats(server.port)
    assert_plausible(outcome, ("put", "reserve", "delete"))
    assert stats["cmd-delete"] == outcome.total
    assert stats["cmd-put"] == outcome.total + PRELOAD
    assert stats["current-jobs-ready"] == PRELOAD
    assert stats["current-jobs-reserved"] == 0


def beanstalkd_stats(port: int) -> dict[str, int]:
    with connect(port) as sock:
        sock.sendall(b"stats\r\n")
        text = read_line(sock)
        while not text.endswith(b"\n\r\n"):
            text += read_line(sock)
    pairs = (line.split(": ") for line in text.decode().splitlines() if ": " in line)
    return {name: int(value) for name, value in pairs if value.isdigit()}


@pytest.mark.parametrize("name", ["redis-memory", "redis-always"])
def test_redis_keeps_only_the_jobs_it_was_filled_with(name, tmp_path):
    with start(name, tmp_path) as server:
        outcome = run_short_load(Redis, server)
        with connect(server.port) as sock:
            sock.sendall(b"LLEN jobs\r\n")
            assert read_line(sock) == b":%d\r\n" % PRELOAD
            sock.sendall(b"DBSIZE\r\n")  # empty lists of the workers do not exist
            assert read_line(sock) == b":1\r\n"
    assert_plausible(outcome, ("LPUSH", "BRPOPLPUSH", "LREM"))


@needs_millrace
@pytest.mark.parametrize("name", ["millrace-memory", "millrace-fsync"])
def test_millrace_acknowledged_as_many_jobs_as_cycles_were_counted(name, tmp_path):
    with start(name, tmp_path) as server:
        outcome = run_short_load(Faktory, server)
        client = FaktoryClient(server.port)
        info = client.info()
        client.close()
    assert_plausible(outcome, ("PUSH", "FETCH", "ACK"))
    assert info["total_processed"] == outcome.total
    assert info["total_failures"] == 0
    assert info["queues"] == {"default": PRELOAD}
    assert info["sets"]["working"] == 0


@needs_millrace
@pytest.mark.parametrize("name", ["workq-memory", "workq-fsync"])
def test_workq_completed_as_many_jobs_as_cycles_were_counted(name, tmp_path):
    with start(name, tmp_path) as server:
        outcome = run_short_load(Workq, server)
        with connect(server.port) as sock:
            sock.sendall(b"inspect queue bench\r\n")
            reply = b""
            while b"scheduled-len" not in reply:
                reply += read_line(sock)
            assert b"\r\nready-len %d\r\n" % PRELOAD in reply
    assert_plausible(outcome, ("add", "lease", "complete"))


@needs_millrace
@pytest.mark.parametrize("name", ["masenko-memory", "masenko-fsync"])
def test_masenko_acknowledged_as_many_tasks_as_cycles_were_counted(name, tmp_path):
    with start(name, tmp_path) as server:
        outcome = run_short_load(Masenko, server)
        with connect(server.port) as sock:
            sock.sendall(b"INFO {}\n")
            info = sock.makefile("rb").readline()
            sock.sendall(b'PUSH {"name":"last"}\n')
            pushed = sock.makefile("rb").readline()
    assert_plausible(outcome, ("PUSH", "FETCH", "ACK"))
    (queue,) = json.loads(info.partition(b" ")[2])["queues"]
    assert (queue["ready"], queue["to_ack"]) == (PRELOAD, 0)
    assert pushed == b'OK {"id":%d}\n' % (PRELOAD + outcome.total + 1)


@needs_millrace
@pytest.mark.parametrize("name", ["goqueue-memory", "goqueue-fsync"])
def test_goqueue_deleted_as_many_jobs_as_cycles_were_counted(name, tmp_path):
    """Only the jobs from the initial fill remain, and the next id shows the total number of
    jobs.
    """
    with start(name, tmp_path) as server:
        outcome = run_short_load(Goqueue, server)
        with connect(server.port) as sock, sock.makefile("rb") as replies:
            for _ in range(PRELOAD):
                sock.sendall(Goqueue.RESERVE)
                assert replies.read(38 + PAYLOAD_SIZE).startswith(b"RESERVED\0")
            sock.sendall(b"RESERVE\0bench\0" + pack("<I", 1))
            assert replies.read(8) == b"TIMEOUT\0"
            sock.sendall(Goqueue.ADD)
            assert replies.read(14) == b"ADDED\0" + pack("<Q", PRELOAD + outcome.total + 1)
    assert_plausible(outcome, ("ADD", "RESERVE", "DELETE"))


@pytest.mark.parametrize("name", ["qless-redis", "qless-redis-always"])
def test_a_script_in_redis_completed_as_many_jobs_as_cycles_were_counted(name, tmp_path):
    with start(name, tmp_path) as server:
        assert_completed_by_qless(server, QlessScript)


@needs_millrace
@pytest.mark.parametrize("name", ["qless-memory", "qless-fsync"])
def test_qless_completed_as_many_jobs_as_cycles_were_counted(name, tmp_path):
    with start(name, tmp_path) as server:
        assert_completed_by_qless(server, Qless)


def assert_completed_by_qless(server: Running, mode: type[Qless]) -> None:
    """Both keep this number of completed jobs and have the same keys."""
    outcome = run_short_load(mode, server)
    with connect(server.port) as sock:
        for key, count in (
            (b"ql:completed", outcome.total),
            (b"ql:q:bench-work", PRELOAD),
            (b"ql:q:bench-locks", 0),
        ):
            sock.sendall(b"ZCARD " + key + b"\r\n")
            assert read_line(sock) == b":%d\r\n" % count
    assert_plausible(outcome, ("put", "pop", "complete"))


LEASED = b"+OK 1\r\n6ba7b810-9dad-11d1-80b4-00c04fd430c4 bench 5\r\na\r\nbc\r\n"
JOB = b'{"jid":"process0-00001-00000007","queue":"default","args":[1]}'
TASK = b'OK {"id":71,"queue":"default","name":"bench","payload":"a,b"}\n'
POPPED = b'$38\r\n[{"spawned_from_jid":"k","jid":"j-7"}]\r\n'
ADDED = b"ADDED\0" + pack("<Q", 12)
RESERVED = (
    b"RESERVED\0" + pack("<QII", 2**40 + 7, 0, 120) + b"reserved\0" + pack("<I", 5) + b"a\r\n\0c"
)
CONVERSATIONS = [
    (
        Faktory,
        [
            (b"+OK\r\n", b"FETCH default\r\n"),
            (b"$%d\r\n%s\r\n" % (len(JOB), JOB), b'ACK {"jid":"process0-00001-00000007"}\r\n'),
            (b"+OK\r\n", b"PUSH "),
        ],
    ),
    (
        Workq,
        [
            (b"+OK\r\n", b"lease bench 60000\r\n"),
            (LEASED, b"complete 6ba7b810-9dad-11d1-80b4-00c04fd430c4 0\r\n\r\n"),
            (b"+OK\r\n", b"add "),
        ],
    ),
    (
        Masenko,
        [
            (b'OK {"id":12}\n', b'FETCH {"queues":["default"]}\n'),
            (TASK, b'ACK {"id":71}\n'),
            (b"OK {}\n", b"PUSH "),
        ],
    ),
    (
        Qless,
        [
            (b"$7\r\nj-00001\r\n", b"*8\r\n$7\r\nEVALSHA\r\n"),
            (POPPED, b"*9\r\n$7\r\nEVALSHA\r\n"),
            (b"$8\r\ncomplete\r\n", b"*11\r\n$7\r\nEVALSHA\r\n"),
        ],
    ),
    (
        Goqueue,
        [
            (ADDED, b"RESERVE\0bench\0" + pack("<I", 60)),
            (RESERVED, b"DELETE\0" + pack("<Q", 2**40 + 7)),
            (b"OK\0", b"ADD\0"),
        ],
    ),
    (
        Beanstalkd,
        [
            (b"INSERTED 12\r\n", b"reserve\r\n"),
            (b"RESERVED 7 5\r\na\r\nbc\r\n", b"delete 7\r\n"),
            (b"DELETED\r\n", b"put "),
        ],
    ),
    (
        Redis,
        [
            (
                b":21\r\n",
                b"*4\r\n$10\r\nBRPOPLPUSH\r\n$4\r\njobs\r\n$11\r\nworking:w-1\r\n$1\r\n0\r\n",
            ),
            (
                b"$5\r\na\r\nbc\r\n",
                b"*4\r\n$4\r\nLREM\r\n$11\r\nworking:w-1\r\n$1\r\n1\r\n$5\r\na\r\nbc\r\n",
            ),
            (b":1\r\n", b"*3\r\n$5\r\nLPUSH\r\n"),
        ],
    ),
]


@pytest.mark.parametrize(("kind", "replies"), CONVERSATIONS)
@pytest.mark.parametrize("pieces", ["whole", "byte by byte"])
def test_a_mode_continues_only_after_a_complete_reply(kind, replies, pieces):
    mode = kind("w-1")
    assert len(mode.first()) > PAYLOAD_SIZE
    for number, (reply, request) in enumerate(replies):
        assert mode.step == number
        if pieces == "byte by byte":
            for end in range(1, len(reply)):
                assert mode.next(reply[:end]) is None
        assert mode.next(reply).startswith(request)
    assert mode.step == 0


@pytest.mark.parametrize("kind", [Faktory, Redis, Workq, Qless])
def test_all_jobs_differ(kind):
    modes = [kind("process0-00001"), kind("process1-00002")]
    requests = [mode.first() for _ in range(3) for mode in modes]
    assert len(set(requests)) == len(requests)


def test_the_payload_is_200_bytes():
    push = Faktory("w-1").first().partition(b" ")[2]
    assert len(json.dumps(json.loads(push)["args"])) == PAYLOAD_SIZE
    head, body, end = Beanstalkd("w-1").first().split(b"\r\n")
    assert (int(head.split()[-1]), len(body), end) == (PAYLOAD_SIZE, PAYLOAD_SIZE, b"")
    assert len(Redis("w-1").first().split(b"\r\n")[-2]) == PAYLOAD_SIZE
    head, body, end = Workq("w-1").first().split(b"\r\n")
    assert (int(head.split()[-1]), len(body), end) == (PAYLOAD_SIZE, PAYLOAD_SIZE, b"")
    push = Masenko("w-1").first().partition(b" ")[2]
    assert len(json.dumps(json.loads(push)["payload"])) == PAYLOAD_SIZE
    head, _, body = Goqueue("w-1").first().partition(pack("<I", PAYLOAD_SIZE))
    assert (head[:10], len(body)) == (b"ADD\0bench\0", PAYLOAD_SIZE)
    *_, data, _, delay, _ = Qless("w-1").first().split(b"\r\n")
    assert (len(json.dumps(json.loads(data))), delay) == (PAYLOAD_SIZE, b"0")


@pytest.mark.parametrize(
    ("kind", "answered", "reply"),
    [
        (Faktory, [], b"-ERR no space left\r\n"),
        (Faktory, [b"+OK\r\n"], b"$-1\r\n"),
        (Faktory, [b"+OK\r\n"], b"-ERR shutdown in progress\r\n"),
        (Faktory, [b"+OK\r\n"], b"$2\r\n{}\r\n"),
        (Workq, [], b"-SERVER-ERROR disk full\r\n"),
        (Workq, [b"+OK\r\n"], b"-TIMEOUT\r\n"),
        (Workq, [b"+OK\r\n", LEASED], b"-NOT-FOUND\r\n"),
        (Masenko, [], b'ERR {"msg":"disk full"}\n'),
        (Masenko, [b'OK {"id":1}\n'], b"EMPTY {}\n"),
        (Masenko, [b'OK {"id":1}\n', TASK], b'ERR {"msg":"task not acquired"}\n'),
        (Qless, [], b"-MISCONF disk full\r\n"),
        (Qless, [b"$1\r\nj\r\n"], b"$2\r\n{}\r\n"),
        (Qless, [b"$1\r\nj\r\n", POPPED], b"-ERR user_script:1: Complete(): Job j\r\n"),
        (Qless, [b"$1\r\nj\r\n", POPPED], b"$7\r\nwaiting\r\n"),
        (Goqueue, [], b"ERROR\0disk full\0"),
        (Goqueue, [], b"OK\0"),
        (Goqueue, [ADDED], b"TIMEOUT\0"),
        (Goqueue, [ADDED, RESERVED], b"ERROR\0Job 7 already deleted\0"),
        (Beanstalkd, [], b"OUT_OF_MEMORY\r\n"),
        (Beanstalkd, [b"INSERTED 1\r\n"], b"DEADLINE_SOON\r\n"),
        (Beanstalkd, [b"INSERTED 1\r\n", b"RESERVED 1 1\r\na\r\n"], b"NOT_FOUND\r\n"),
        (Redis, [], b"-OOM command not allowed\r\n"),
        (Redis, [b":1\r\n"], b"*-1\r\n"),
        (Redis, [b":1\r\n", b"$1\r\na\r\n"], b":0\r\n"),
    ],
)
def test_an_error_reply_ends_the_run(kind, answered, reply):
    mode = kind("w-1")
    mode.first()
    for earlier in answered:
        mode.next(earlier)
    with pytest.raises(
        RefusedError, match=mode.commands[len(answered)] if reply[:2] != b"$2" else "jid"
    ):
        mode.next(reply)


def test_the_complete_error_is_reported():
    mode = Goqueue("w-1")
    mode.first()
    refusal = b"ERROR\0disk full\0"
    for end in range(1, len(refusal)):
        assert mode.next(refusal[:end]) is None
    with pytest.raises(RefusedError, match="disk full"):
        mode.next(refusal)


def test_the_queue_is_filled_when_replies_arrive_in_pieces():
    requests = []

    def serve() -> None:
        wire, _ = listening.accept()
        with wire:
            for _ in range(3):
                requests.append(wire.recv(1000))
                wire.sendall(ADDED[:9])
                time.sleep(0.01)
                wire.sendall(ADDED[9:])

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        fill(Goqueue("fill-0"), listening.getsockname()[1], 3)
        thread.join()
    assert requests == [Goqueue.ADD] * 3


def test_a_missing_server_is_named_with_its_package(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(NotInstalledError, match="Debian package redis-server"):
        choose("redis-always")[0].find()


def test_servers_are_chosen_by_name_or_family():
    assert [server.name for server in choose("redis,beanstalkd-f0")] == [
        "beanstalkd-f0",
        "redis-memory",
        "redis-always",
    ]
    with pytest.raises(NotInstalledError, match="'reddis'"):
        choose("reddis")


def test_the_data_folder_is_removed(tmp_path):
    with scratch(str(tmp_path)) as folder:
        (folder / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def run_script(name: str, tmp_path: Path, *options: str) -> tuple[str, dict]:
    record = tmp_path / "record.json"
    command = [sys.executable, BENCH / name, "--dir", tmp_path, "--json", record, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(record.read_text())


def test_make_bench_prints_a_table_and_removes_its_data(tmp_path):
    with start("beanstalkd-memory", tmp_path / "probe"):
        pass
    options = ("--only", "beanstalkd-memory", "--seconds", "0.3", "--repeat", "1")
    shown, record = run_script("cycles.py", tmp_path, *options)
    assert "cycles/CPU-s" in shown
    assert record["runs"]["beanstalkd-memory"][0]["cycles"] > 0
    assert {path.name for path in tmp_path.iterdir()} == {"probe", "record.json"}


@needs_millrace
def test_memory_reports_waiting_jobs_before_and_after_a_restart(tmp_path):
    _, record = run_script("memory.py", tmp_path, "--jobs", "2500")
    assert record["figures"]["waiting"] == 2500
    assert record["figures"]["waiting after the restart"] == 2500


@needs_millrace
@pytest.mark.slow
def test_idle_waits_without_being_answered_early(tmp_path):
    _, record = run_script("idle.py", tmp_path, "--connections", "50", "--seconds", "0.5")
    assert record["figures"]["asking once, a FETCH is held p50"] >= 1.9


def test_shipping_is_measured_with_and_without(tmp_path):
    options = ("--seconds", "1.5", "--repeat", "1", "--connections", "4", "--events", "50")
    shown, record = run_script("shipper.py", tmp_path, *options)
    assert "cycles/s with shipping over without: " in shown
    (on,), (off,) = record["runs"]["on"], record["runs"]["off"]
    assert on["files"] > 0
    assert (off["files"], off["shipped"]) == (0, 0)
    assert record["ratio"] == on["outcome"]["rate"] / off["outcome"]["rate"]


@needs_millrace
def test_the_sdk_comparison_counts_the_jobs_that_the_server_completed(tmp_path):
    out = tmp_path / "figures.json"
    command = [sys.executable, BENCH / "sdk_comparison.py", "--only", "millrace threads"]
    sizes = ["--jobs", "500", "--pushes", "5", "--repeat", "1", "--workers", "2"]
    subprocess.run([*command, *sizes, "--dir", tmp_path, "--json", out], check=True, timeout=120)
    (figures,) = json.loads(out.read_text())["figures"]
    assert figures["completed"] == 4 * 500 + 2 * 5 + 3  # three of them connect the producers
    assert min(figures[name] for name in ("jobs_per_second", "memory_mb", "push_per_second")) > 0
