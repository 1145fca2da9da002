"""Large payloads are read by another thread, also while another client lists large jobs."""

from random import Random

from test_queue_rules import NOW, connect, exchange

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.payloads import MAX_DIRECT_READ, PayloadRead
from millrace.protocols.spec import protocol_rules
from wires import data_of

PAYLOAD = b'["%b"]' % (b"x" * MAX_DIRECT_READ)


def push_stored(engine: Engine, jid: str) -> Job:
    """Push a job whose payload is in the store."""
    unit = b'{"jid":"%b","jobtype":"kind","args":%b}' % (jid.encode(), PAYLOAD)
    assert exchange(connect("faktory", engine), b"PUSH %b\r\n" % unit) == b"+OK\r\n"
    job = engine.find(jid)
    assert job is not None
    engine.payloads.move_out_of_memory(job.seq, job.inline_payload)
    return job


def test_a_job_is_read_by_another_thread_while_another_one_is_listed() -> None:
    engine = Engine(Random(1), protocol_rules())
    reads: list[PayloadRead] = []
    engine.payloads.fetcher = reads.append
    wanted, listed = push_stored(engine, "wanted-job"), push_stored(engine, "listed-job")
    engine.payloads.fetched[listed.seq] = PAYLOAD  # a long command of another client encodes it
    worker = connect("faktory", engine)
    worker.receive(b"FETCH default\r\n", NOW, 1)
    assert [read.seqs for read in reads] == [[wanted.seq]]
    reads[0].payloads = {wanted.seq: PAYLOAD}
    worker.handle_payloads_read(reads[0], NOW)
    assert PAYLOAD in b"".join(data_of(worker))
    assert list(engine.payloads.fetched) == [listed.seq]


def test_a_listed_job_that_is_in_memory_is_delivered_at_once() -> None:
    engine = Engine(Random(1), protocol_rules())
    reads: list[PayloadRead] = []
    engine.payloads.fetcher = reads.append
    job = push_stored(engine, "listed-job")
    engine.payloads.fetched[job.seq] = PAYLOAD
    worker = connect("faktory", engine)
    worker.receive(b"FETCH default\r\n", NOW, 1)
    assert PAYLOAD in b"".join(data_of(worker))
    assert not reads
    assert list(engine.payloads.fetched) == [job.seq]
