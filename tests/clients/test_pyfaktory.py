"""pyfaktory, as published on PyPI."""

import contextlib
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyfaktory
import pytest
from client_suite import Client, ClientSuite, Endpoint, WorkerLoop
from pyfaktory.util.enums import State

from raw_faktory import RawFaktory

pytestmark = pytest.mark.filterwarnings("ignore:ssl:DeprecationWarning")

LOOP = Path(__file__).with_name("pyfaktory_loop.py")
STATES = {State.IDENTIFIED: "running", State.QUIET: "quiet", State.TERMINATING: "terminate"}


def new_client(endpoint: Endpoint, wid: str) -> pyfaktory.Client:
    # The beating thread outlives the connection by one period, hence a short one.
    return pyfaktory.Client(endpoint.url, role="both", worker_id=wid, beat_period=1)


class Pyfaktory(Client):
    def __init__(self, client: pyfaktory.Client) -> None:
        self.library = client
        self.producer = pyfaktory.Producer(client)

    def push(self, jid, queue, jobtype, args, at):
        job = pyfaktory.Job(
            jid=jid,
            queue=queue,
            jobtype=jobtype,
            args=args,
            at=at.isoformat() if at else "",
        )
        assert self.producer.push(job)

    def fetch(self, queue):
        return self.library._fetch([queue])

    def ack(self, jid):
        assert self.library._ack(jid)

    def fail(self, jid, message):
        assert self.library._fail(jid, errtype="Stumble", message=message, backtrace=["a", "b"])
        return "Stumble"

    def beat(self):
        with (
            self.library.rlock
        ):  # its own thread sends heartbeats, too, and may have received the state already
            if self.library.state != State.TERMINATING:
                assert self.library._beat(rss_kb=1234)
            return STATES[self.library.state]


class TestPyfaktory(ClientSuite):
    refusals = (pyfaktory.FaktroyWorkProtocolError,)
    quiet_line = "not fetching further jobs"

    @contextlib.contextmanager
    def connect(self, endpoint: Endpoint, wid: str) -> Iterator[Client]:
        with new_client(endpoint, wid) as client:
            yield Pyfaktory(client)

    def work(self, endpoint: Endpoint, queue: str, wid: str) -> WorkerLoop:
        return WorkerLoop([sys.executable, LOOP, endpoint.url, queue, wid])

    @pytest.fixture
    def library(self, client: Pyfaktory) -> pyfaktory.Client:
        return client.library

    def test_push_bulk_returns_the_refused_jobs(
        self, client: Pyfaktory, raw: RawFaktory, queue: str
    ) -> None:
        good = [pyfaktory.Job(jobtype="echo", args=[n], queue=queue) for n in range(3)]
        bad = pyfaktory.Job(jid="short", jobtype="echo", args=[], queue=queue)
        assert client.producer.push_bulk(good) == {}
        refused = client.producer.push_bulk([bad])
        assert refused == {"short": "jobs must have a reasonable jid parameter"}
        for job in good:
            assert client.fetch(queue)["jid"] == job.jid
            client.ack(job.jid)

    def test_info(self, library: pyfaktory.Client) -> None:
        info = library.info()
        assert info["server"]["faktory_version"].startswith("1.")
        assert info["faktory"]["sets"].keys() == {"scheduled", "retries", "dead", "working"}

    def test_mutate(self, client: Pyfaktory, raw: RawFaktory, queue: str) -> None:
        jid = uuid.uuid4().hex
        client.push(jid, queue, "echo", [], None)
        client.fetch(queue)
        client.fail(jid, "once")
        only_this = pyfaktory.JobFilter(jids=[jid], regexp=None, jobtype=None)
        dead = raw.set_size("dead")
        client.library.mutate(
            pyfaktory.MutateOperation(cmd="kill", target="retries", filter=only_this)
        )
        assert raw.set_size("dead") == dead + 1
        client.library.mutate(
            pyfaktory.MutateOperation(cmd="requeue", target="dead", filter=only_this)
        )
        assert client.fetch(queue)["jid"] == jid
        client.ack(jid)

    def test_pausing_resuming_and_removing_a_queue(
        self, client: Pyfaktory, raw: RawFaktory, queue: str
    ) -> None:
        client.push(uuid.uuid4().hex, queue, "echo", [], None)
        assert client.library.queue_pause([queue])
        assert client.fetch(queue) is None
        assert client.library.queue_unpause([queue])
        assert client.fetch(queue) is not None
        client.push(uuid.uuid4().hex, queue, "echo", [], None)
        assert client.library.queue_remove([queue])
        assert queue not in raw.info()["faktory"]["queues"]
