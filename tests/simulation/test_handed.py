"""A connection ends while jobs are on their way to it: it keeps the jobs that were sent."""

from stepped_machine import Machine

from millrace.engine.states import LEASED, READY
from millrace.store import MemoryStore


def test_of_two_pipelined_reserves_only_the_sent_job_stays_leased():
    machine = Machine(MemoryStore())
    producer, _ = machine.call("goqueue")
    worker, recorder = machine.call("goqueue")
    add = b"ADD\0queue\0" + (0).to_bytes(4, "little") + (60).to_bytes(4, "little")
    add += (1).to_bytes(4, "little")
    machine.says(producer, add + b"a")
    machine.says(worker, b"RESERVE\0queue\0\x0a\0\0\0" * 2)
    machine.commits()  # the first push; its lease is in the next turn
    machine.says(producer, add + b"b")
    machine.commits()  # the first lease; the second push and its lease wait
    assert len(recorder.received) == 1
    worker.reset()
    machine.run(0.1)
    machine.commits()
    first, second = machine.engine.jobs.values()
    assert (first.inline_payload, first.state, first.attempt) == (b"a", LEASED, 1)
    assert (second.inline_payload, second.state, second.attempt) == (b"b", READY, 0)


def test_a_lease_that_was_never_sent_is_released():
    machine = Machine(MemoryStore())
    producer, _ = machine.call("workq")
    worker, recorder = machine.call("workq")
    machine.says(worker, b"lease queue 10000\r\n")
    jid = "6ba7b810-9dad-11d1-80b4-00c04fd430c4"
    machine.says(producer, f"add {jid} queue 60000 60000 1\r\na\r\n".encode())
    worker.reset()
    machine.run(0.1)
    machine.commits()
    assert not recorder.received
    assert [job.state for job in machine.engine.jobs.values()] == [READY]
