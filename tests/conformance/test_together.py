"""All protocols fill one queue and workers of all protocols empty it: every job is done exactly
once, and the counts are correct. Without sockets in an order that a seed determines, and over
sockets.
"""

import socket
import time
from collections import Counter
from random import Random

import pytest
from pairs import PROTOCOLS, able, fail_attempt, uid, work

from house import Client, House
from millrace.engine.states import DONE
from millrace.server.control_socket import control_socket_path, short_address
from server_process import ServerProcess
from speakers import ALL_SPEAKERS, Accepted, Answer, Leased, Nothing, Result, Speaker
from wires import SECOND

EACH = 20


def marked(number: int) -> bytes:
    """A payload that every protocol can push and every worker can decode."""
    return b'["job %d"]' % number


def number_in(payload: bytes) -> int:
    return int(payload.removeprefix(b'["job ').removesuffix(b'"]'))


@pytest.mark.parametrize("seed", range(5))
def test_every_job_is_done_once(seed):
    house, random = House(), Random(seed)
    pushers = {protocol: house.client(protocol, f"{protocol}-pusher") for protocol in PROTOCOLS}
    workers = [house.client(protocol, f"{protocol}-{n}") for protocol in PROTOCOLS for n in (1, 2)]
    todo = [(protocol, number) for number, protocol in enumerate(PROTOCOLS * EACH)]
    random.shuffle(todo)
    done: Counter[int] = Counter()
    by: Counter[str] = Counter()
    held: list[tuple[Client, Leased]] = []
    while sum(done.values()) < len(PROTOCOLS) * EACH:
        if todo and random.random() < 0.5:
            protocol, number = todo.pop()
            pushers[protocol].push(
                work(number, payload=marked(number), **random_options(house, random))
            )
        house.advance(random.randrange(SECOND if todo else 10 * SECOND))
        worker = random.choice(workers)
        if not worker.wire.waits:
            worker.says(worker.speaker.lease("q", house.now))
        for each in workers:
            held += [(each, answer) for answer in each.hears() if isinstance(answer, Leased)]
        if held and random.random() < 0.9:
            worker, answer = held.pop(random.randrange(len(held)))
            if worker.wire.waits:
                held.append((worker, answer))  # it sends no further request before its next job
            elif random.random() < 0.1 and "fail" in worker.speaker.can:
                fail_attempt(worker, answer.held)
            else:
                worker.complete(answer.held)
                done[number_in(answer.held.payload)] += 1
                by[worker.speaker.protocol] += 1
    assert done == Counter(range(len(PROTOCOLS) * EACH))
    assert set(by) == set(PROTOCOLS)
    assert_all_completed(house, len(done))


def random_options(house: House, random: Random) -> dict[str, int]:
    """Some jobs have another priority or a due time; all have unlimited retries."""
    due = house.now + random.randrange(10 * SECOND) if random.random() < 0.2 else 0
    return {"due": due, "rank": -random.randrange(3), "retries": 100, "ttr": 3600}


def assert_all_completed(house: House, count: int) -> None:
    """Only completed jobs are left, in protocols that keep them."""
    engine = house.engine
    assert all(job.state == DONE for job in engine.jobs.values())
    kept = Counter(job.origin for job in engine.jobs.values())
    assert set(kept.values()) == {EACH}, "Workq and Qless keep all of theirs"
    counts = engine.queues["q"].counts
    assert counts == [0, 0, 0, 0, 2 * EACH, 0]
    assert engine.totals.processed - engine.totals.failures == count


# Over sockets


class Connection:
    """A speaker on a socket."""

    def __init__(self, server: ServerProcess, protocol: str, name: str) -> None:
        self.speaker: Speaker = ALL_SPEAKERS[protocol](name)
        if protocol == "http":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(30)
            with short_address(control_socket_path(server.data)) as path:
                self.socket.connect(path)
        else:
            self.socket = socket.create_connection(("127.0.0.1", server.ports[protocol]), 30)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers: list[Answer] = []
        hello = self.speaker.hello()
        if hello:
            assert isinstance(self.ask(hello), Accepted)

    def ask(self, data: bytes) -> Answer:
        self.socket.sendall(data)
        return self.answer()

    def answer(self) -> Answer:
        while not self._answers:
            data = self.socket.recv(1 << 16)
            assert data, "the server closed the connection"
            self._answers += self.speaker.receive(data)
        return self._answers.pop(0)


@pytest.fixture
def connect(server: ServerProcess):
    """Opens connections to the server of this test."""
    made: list[Connection] = []

    def make(protocol: str, name: str = "worker") -> Connection:
        made.append(Connection(server, protocol, name))
        return made[-1]

    yield make
    for connection in made:
        connection.socket.close()


def clock() -> int:
    return time.time_ns() // 1000


def test_every_job_is_done_once_over_sockets(connect):
    """All push, then all work concurrently until no job is left. Each sends the completion and the
    next lease in one packet.
    """
    count = len(PROTOCOLS) * EACH
    for index, protocol in enumerate(PROTOCOLS):
        pusher = connect(protocol, "pusher")
        numbers = range(index, count, len(PROTOCOLS))
        jobs = [work(n, payload=marked(n)) for n in numbers]
        pusher.socket.sendall(b"".join(pusher.speaker.push(job, clock()) for job in jobs))
        assert all(isinstance(pusher.answer(), Accepted) for _ in jobs)
    workers = [connect(protocol) for protocol in PROTOCOLS]
    done: Counter[int] = Counter()
    by: Counter[str] = Counter()
    for worker in workers:
        worker.socket.sendall(worker.speaker.lease("q", clock()))
    while workers:
        for worker in list(workers):
            answer = worker.answer()
            if isinstance(answer, Nothing):
                workers.remove(worker)
                continue
            assert isinstance(answer, Leased)
            done[number_in(answer.held.payload)] += 1
            by[worker.speaker.protocol] += 1
            speaker = worker.speaker
            worker.socket.sendall(
                speaker.complete(answer.held, clock()) + speaker.lease("q", clock())
            )
            assert isinstance(worker.answer(), Accepted)
    assert done == Counter(range(count))
    assert set(by) == set(PROTOCOLS)


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_a_job_of_each_protocol_over_sockets(connect, worker):
    """A waiting worker receives the job with its payload, and a completed job stays completed."""
    client = connect(worker)
    for number, protocol in enumerate(PROTOCOLS, 1):
        pusher = connect(protocol, "pusher")
        pushed = pusher.speaker.push(work(number, payload=marked(number)), clock())
        if worker in able("wait"):
            client.socket.sendall(client.speaker.lease("q", clock(), 10))
            assert isinstance(pusher.ask(pushed), Accepted)
            answer = client.answer()
        else:
            assert isinstance(pusher.ask(pushed), Accepted)
            answer = client.ask(client.speaker.lease("q", clock()))
        assert isinstance(answer, Leased)
        assert answer.held.payload == marked(number)
        done = client.ask(client.speaker.complete(answer.held, clock()))
        assert done == Accepted("complete", answer.held.id)


def test_a_result_over_sockets(connect):
    """The runner receives the result from a worker of any protocol."""
    runner = connect("workq")
    for number, protocol in enumerate(PROTOCOLS, 1):
        worker = connect(protocol)
        runner.socket.sendall(runner.speaker.run(work(number), clock(), 30))
        answer: Answer = Nothing("lease", "")
        while not isinstance(answer, Leased):  # Qless cannot wait
            answer = worker.ask(worker.speaker.lease("q", clock(), 10))
        worker.ask(worker.speaker.complete(answer.held, clock(), b'"done"'))
        content = b'"done"' if protocol in {"workq", "qless", "http"} else b""
        assert runner.answer() == Result("run", uid(number), True, content)
