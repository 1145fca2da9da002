"""Defects of the original server (section 2 of the sheet), each as a test that it would fail.
tests/server/test_workq_server.py has the tests that need a disk or a socket.
"""

import pytest
from workq_conversation import Workq, uid


def test_deleting_a_waiting_run_has_no_effect_on_others():
    # The process of the original crashed at the timeout of the run.
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        client.runs(1, wait=300)
        other.deletes(1).hears_ok().deletes(1).hears_not_found()
        talk.pass_ms(299)
        client.hears_nothing()
        talk.pass_ms(1)
        client.hears_timeout()
        other.adds(1).leases().hears_job(1)


@pytest.mark.parametrize("late", [False, True])
def test_deleting_a_leased_run_has_no_effect_on_others(late):
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        client.runs(1, ttr=500, wait=300)
        other.leases().hears_job(1)
        talk.pass_ms(400 if late else 100)
        other.deletes(1).hears_ok().completes(1).hears_not_found()
        talk.pass_ms(500)
        client.hears_timeout()


@pytest.mark.parametrize(
    "jid", [b"urn:uuid:", b"urn:uuid:6ba7", b"urn:uuid:6ba7b810-9dad-11d1-80b4-00c04fd430c"]
)
def test_a_truncated_urn_is_an_invalid_id(jid):
    # The process of the original crashed with an index out of range.
    with Workq() as talk:
        client = talk.connect()
        client.says(b"delete %b\r\n" % jid).hears_client_error("Invalid ID")
        client.says(b"inspect job %b\r\n" % jid).hears_client_error("Invalid ID")
        client.says(b"add %b ping 1 1 0\r\n\r\n" % jid).hears_client_error("Invalid ID")
        client.is_still_there()


def test_no_wake_up_is_lost():
    # Workers with overlapping names, more jobs than workers, returning jobs and runs: while a job
    # is ready, no client waits for it.
    with Workq() as talk:
        names = ["a", "b", "c", "d"]
        workers = [talk.connect().leases(*names[n % 4 :], wait=86_400_000) for n in range(12)]
        client = talk.connect()
        for number in range(30):
            client.adds(number, name=names[number % 4], ttr=5)
            if number % 7 == 3:
                talk.pass_ms(5)
            for worker in workers:
                if worker.wire.heard[worker._taken :]:
                    worker.hears(bytes(worker.wire.heard[worker._taken :]))
                    worker.leases(*names, wait=86_400_000)
            ready = {name for name in names if talk.engine.queues[name].counts[2]}
            waiting = {name for w in workers if w.wire.waits for name in w.connection.waiter.queues}
            assert ready.isdisjoint(waiting)
        for worker in workers:
            worker.hears(bytes(worker.wire.heard[worker._taken :])).hangs_up()


@pytest.mark.parametrize("size", [4037, 4096, 4097, 8193])
def test_cr_and_lf_may_be_in_different_segments(size):
    # The original read CR and LF with one Read, and failed at the edge of its buffer.
    with Workq() as talk:
        client = (
            talk.connect().adds(1, payload=b"x" * size).leases().hears_job(1, payload=b"x" * size)
        )
        client.says(b"complete %b 4\r\ndone\r" % uid(1)).hears_nothing().says(b"\n").hears_ok()


def test_a_disconnected_client_receives_no_job():
    with Workq() as talk:
        closed, client = talk.connect(), talk.connect()
        closed.leases("ping", "pong", wait=60_000).hangs_up()
        client.adds(1)
        seen = client.inspects(1)
        assert (seen["attempts"], seen["state"]) == ("0", "0")


def test_a_job_with_an_unwritten_lease_is_returned():
    with Workq() as talk:
        closed, client = talk.connect(), talk.connect()
        closed.leases(wait=60_000).stops_reading()
        client.adds(1)
        closed.hears_job(1).hangs_up()
        assert client.inspects(1)["attempts"] == "0"
        client.leases().hears_job(1)


def test_a_run_ends_with_its_client():
    with Workq() as talk:
        closed, client = talk.connect(), talk.connect()
        closed.runs(1).hangs_up()
        client.leases().hears_timeout().adds(1).deletes(1).hears_ok()
        closed = talk.connect().runs(2)
        client.leases().hears_job(2)
        closed.hangs_up()
        client.completes(2).hears_not_found()


def test_a_run_ends_with_its_client_after_a_half_close():
    with Workq() as talk:
        closed, client = talk.connect(), talk.connect()
        closed.runs(1).says_no_more().hears_nothing().hangs_up()
        client.leases().hears_timeout()


def test_a_refused_size_cannot_inject_commands():
    with Workq() as talk:
        victim, attacker = talk.connect(), talk.connect()
        victim.adds(7)
        attacker.says(b"add %b inj 5000 60000 2000000\r\ndelete %b\r\n" % (uid(1), uid(7)))
        attacker.hears_client_error("Invalid payload size").hears_nothing()
        assert victim.state_of(7) == "0"


def test_max_fails_is_not_ignored():
    with Workq() as talk:
        client = talk.connect().adds(1, "-max-fails=3").leases().hears_job(1)
        client.fails_job(1, b"err").hears_ok().asks_result(1).hears_timeout().leases().hears_job(1)
        assert client.inspects(1)["fails"] == "1"
