"""The `faktory` package (by cdrx), as published on PyPI."""

import contextlib
import signal
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import faktory
import pytest
from client_suite import Client, ClientSuite, Endpoint, WorkerLoop

LOOP = Path(__file__).with_name("cdrx_faktory_loop.py")

pytestmark = pytest.mark.filterwarnings("ignore:ssl:DeprecationWarning")


class Cdrx(Client):
    def __init__(self, producer: faktory.Client, worker: faktory.Worker) -> None:
        self.producer = producer
        self.worker = worker

    def push(self, jid, queue, jobtype, args, at):
        assert self.producer.queue(
            jobtype, args, queue=queue, jid=jid, at=at.isoformat() if at else None
        )

    def fetch(self, queue):
        return self.worker.faktory.fetch([queue])

    def ack(self, jid):
        self.worker.faktory.reply("ACK", {"jid": jid})
        assert next(self.worker.faktory.get_message()) == "OK"

    def fail(self, jid, message):
        self.worker._fail(jid, ZeroDivisionError(message))
        return "ZeroDivisionError"

    def beat(self):
        self.worker.heartbeat()
        if self.worker.is_disconnecting:
            return "terminate"
        return "quiet" if self.worker.is_quiet else "running"


class TestCdrxFaktory(ClientSuite):
    refusals = (faktory.FaktoryAuthenticationError,)
    quiet_line = "has quieted this worker"

    @contextlib.contextmanager
    def connect(self, endpoint: Endpoint, wid: str) -> Iterator[Client]:
        skip_without_wrap_socket(endpoint)
        handler = signal.getsignal(signal.SIGTERM)
        try:
            worker = faktory.Worker(endpoint.url, worker_id=wid, use_threads=True)
            producer = faktory.Client(endpoint.url)
        finally:
            signal.signal(
                signal.SIGTERM, handler
            )  # the library sets its own handler in its constructor
        worker.faktory.connect(worker_id=wid)
        with contextlib.closing(worker.faktory.socket), producer:
            yield Cdrx(producer, worker)

    def work(self, endpoint: Endpoint, queue: str, wid: str) -> WorkerLoop:
        skip_without_wrap_socket(endpoint)
        return WorkerLoop([sys.executable, LOOP, endpoint.url, queue, wid])


def skip_without_wrap_socket(endpoint: Endpoint) -> None:
    if endpoint.tls and not hasattr(ssl, "wrap_socket"):
        pytest.skip("faktory 1.0.0 cannot do TLS on Python 3.12 and later: it needs wrap_socket")
