"""Large payloads live in the store: they survive kill -9 and reach workers of every protocol."""

import socket
import time
from pathlib import Path
from uuid import uuid4

import pytest

from raw_faktory import RawFaktory
from server_process import ServerProcess, running_server
from speakers import ALL_SPEAKERS, Held, Leased, Work

#: A payload that all protocols show unchanged.
PAYLOAD = b'["' + b"0123456789abcdef" * 8192 + b'"]'
PROTOCOLS = ("faktory", "goqueue", "masenko", "qless", "workq")


class Client:
    """A speaker over a real connection."""

    def __init__(self, server: ServerProcess, protocol: str) -> None:
        self.speaker = ALL_SPEAKERS[protocol]("worker")
        self._socket = socket.create_connection(("127.0.0.1", server.ports[protocol]), timeout=60)
        if protocol == "faktory":
            self._wait_for(b"+HI")
        if hello := self.speaker.hello():
            self.ask(hello)

    def _wait_for(self, start: bytes) -> None:
        assert self._socket.recv(1 << 16, socket.MSG_PEEK).startswith(start)

    def ask(self, data: bytes) -> object:
        self._socket.sendall(data)
        while True:
            received = self._socket.recv(1 << 20)
            assert received, "the server has closed the connection"
            if answers := self.speaker.receive(received):
                return answers[-1]

    def push(self, queue: str) -> None:
        work = Work(id=str(uuid4()), queue=queue, payload=PAYLOAD)
        self.ask(self.speaker.push(work, time.time_ns() // 1000))

    def lease(self, queue: str) -> Held:
        answer = self.ask(self.speaker.lease(queue, time.time_ns() // 1000))
        assert isinstance(answer, Leased), answer
        return answer.held

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("pusher", PROTOCOLS)
def test_a_killed_server_has_every_acknowledged_payload(pusher: str, tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        client = Client(server, pusher)
        for worker in PROTOCOLS:
            client.push(f"for-{worker}")
        client.close()
        server.restart()
        for worker in PROTOCOLS:
            client = Client(server, worker)
            assert client.lease(f"for-{worker}").payload == PAYLOAD
            client.close()


def test_waiting_jobs_with_large_payloads_need_little_memory(tmp_path: Path) -> None:
    size, count = 1 << 20, 150
    with running_server(tmp_path / "data") as server:
        with RawFaktory(server.port) as faktory:
            unit = {"jobtype": "large", "queue": "large", "args": ["x" * size]}
            for number in range(count):
                faktory.push({**unit, "jid": f"job-{number:08d}"})
            pushed = memory_of(server)
        server.restart()
        restarted = memory_of(server)
        with RawFaktory(server.port, wid="worker") as faktory:
            fetched = faktory.fetch("large")
            assert fetched is not None
            assert fetched["args"] == ["x" * size]
            info = faktory.info()
        assert info["faktory"]["total_enqueued"] == count - 1
    assert max(pushed, restarted) < 120, "megabytes; the payloads alone are 150"


def memory_of(server: ServerProcess) -> int:
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) >> 10
    raise AssertionError("no memory in /proc")
