"""Jobs that are removed while a command in slices lists them: their payloads cannot be read."""

import json
import re
from random import Random

import pytest

from millrace.engine.engine import Engine
from millrace.engine.job import NewJob
from millrace.engine.payloads import MAX_DIRECT_READ, PayloadRead
from millrace.protocols.connection import Connection
from millrace.protocols.faktory.connection import FaktoryConnection
from millrace.protocols.faktory.hub import FaktoryHub
from millrace.protocols.registry import FAKTORY, WORKQ
from millrace.protocols.spec import protocol_rules
from millrace.protocols.workq import inspection
from millrace.protocols.workq.connection import WorkqConnection
from millrace.protocols.workq.hub import WorkqHub
from payload_store import PayloadStore
from scene import commit
from wires import data_of

NOW = 1_700_000_000_000_000
COUNT = 10


class Room:
    """Ten ready jobs whose payloads are in the store."""

    def __init__(self, size: int, protocol: int) -> None:
        self.store = PayloadStore()
        self.engine = engine = Engine(Random(1), protocol_rules())
        engine.payloads.reader = self.store
        #: Reads by another thread that have not ended.
        self.reads: list[PayloadRead] = []
        payload = b'["' + b"x" * (size - 4) + b'"]'
        for number in range(COUNT):
            jid = f"6ba7b810-9dad-41d1-80b4-{number:012}"
            engine.push(NewJob(jid, "k", payload, protocol, "q", 3, 1_800_000_000), NOW)
        self.commit()
        assert all(job.stored_size == size for job in engine.jobs.values())

    def commit(self) -> None:
        commit(self.engine, self.store)

    def remove(self, *seqs: int) -> None:
        for seq in seqs:
            self.engine.cancel(self.engine.jobs[seq], NOW)
        self.commit()
        for seq in seqs:
            self.store.payloads.pop(seq, None)

    def end_reads(self) -> None:
        for read in self.reads:
            read.payloads = {seq: self.store.read(seq) for seq in read.seqs}
        self.reads.clear()

    def finish(self, client: Connection) -> bytes:
        for _ in range(100):
            self.end_reads()
            if not client.run(NOW, 1):
                break
        return b"".join(data_of(client))


def workq(room: Room) -> WorkqConnection:
    return WorkqConnection(WorkqHub(room.engine, started_at=NOW))


def sizes(reply: bytes) -> list[int]:
    return [int(size) for size in re.findall(rb"payload-size (\d+)", reply)]


@pytest.mark.parametrize("command", [b"inspect jobs q 0 10\r\n", b"inspect jobs q 2 100\r\n"])
def test_inspect_omits_removed_jobs(command: bytes) -> None:
    room = Room(100_000, WORKQ)
    client = workq(room)
    client.receive(command, NOW, 1)
    room.remove(8, 10)
    reply = room.finish(client)
    left = 8 if command.endswith(b"10\r\n") else 6
    assert reply.startswith(b"+OK %d\r\n" % left)
    assert sizes(reply) == [100_000] * left


@pytest.mark.sources_only("it replaces MAX_HELD_BYTES")
def test_inspect_ends_a_reply_that_cannot_be_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that is too large to be held began with a number of jobs."""
    monkeypatch.setattr(inspection, "MAX_HELD_BYTES", 250_000)
    room = Room(100_000, WORKQ)
    client = workq(room)
    client.receive(b"inspect jobs q 0 10\r\n", NOW, 1)
    while not client.replies:
        client.run(NOW, 1)
    room.remove(8)
    reply = room.finish(client)
    assert reply.startswith(b"+OK 10\r\n")
    assert sizes(reply) == [100_000] * 7
    assert client.closing


def test_inspect_does_not_find_a_job_that_is_removed_during_the_read() -> None:
    room = Room(MAX_DIRECT_READ + 1, WORKQ)
    room.engine.payloads.fetcher = room.reads.append
    client = workq(room)
    client.receive(b"inspect job 6ba7b810-9dad-41d1-80b4-000000000003\r\n", NOW, 1)
    assert room.reads
    room.remove(4)
    assert room.finish(client) == b"-NOT-FOUND\r\n"
    assert not client.closing
    assert room.engine.payloads.fetched == {}


def test_a_page_of_a_read_omits_a_job_that_is_removed_during_the_read() -> None:
    room = Room(MAX_DIRECT_READ + 1, FAKTORY)
    room.engine.payloads.fetcher = room.reads.append
    hub = FaktoryHub(room.engine, started_at=NOW, challenge=lambda: (1, ""), memory_mb=lambda: 7)
    client = FaktoryConnection(hub)
    client.receive(b'HELLO {"v":2}\r\n', NOW, 10)
    client.replies.clear()
    client.receive(b'MILLRACE {"read":{}}\r\n', NOW, 1)
    while not room.reads:
        client.run(NOW, 1)
    (waits,) = room.reads[0].seqs
    room.remove(waits)
    _, _, line = room.finish(client).partition(b"\r\n")
    jobs = json.loads(line)["jobs"]
    assert [job["seq"] for job in jobs] == [2, 3, 4, 5]  # a full page
    assert all(job["payload"] for job in jobs)
    assert room.engine.payloads.fetched == {}
