"""Milliseconds: TTR, TTL, wait timeouts and scheduled times, alone and together, on a virtual
clock. Every time is checked from both sides: one millisecond before, there is no effect.
"""

import pytest
from workq_conversation import Workq, WorkqWorld, uid

from millrace.protocols.registry import MASENKO
from millrace.protocols.workq.connection import WorkqConnection
from wires import SECOND, START

SERVER = (
    b"+OK 1\r\nserver 3\r\nactive-clients %d\r\nevicted-jobs %d\r\nstarted 2026-11-15T19:43:51Z\r\n"
)
IN_4_S = "2026-11-15T19:43:55Z"


# Wait timeouts


@pytest.mark.parametrize("wait", [1, 100, 60_000])
def test_a_lease_waits_for_its_timeout(wait):
    with Workq() as talk:
        client = talk.connect().leases("a", "b", wait=wait)
        talk.pass_ms(wait - 1)
        client.hears_nothing()
        talk.pass_ms(1)
        client.hears_timeout()


def test_a_job_in_the_last_millisecond_is_delivered():
    with Workq() as talk:
        worker, client = talk.connect().leases(wait=100), talk.connect()
        talk.pass_ms(99)
        client.adds(1)
        worker.hears_job(1)


def test_a_late_job_stays():
    with Workq() as talk:
        worker, client = talk.connect().leases(wait=100), talk.connect()
        talk.pass_ms(100)
        worker.hears_timeout()
        client.adds(1)
        assert client.state_of(1) == "0"


@pytest.mark.parametrize("wait", [1, 100, 60_000])
def test_a_wait_for_a_result_lasts_for_its_timeout(wait):
    with Workq() as talk:
        client = talk.connect().adds(1, ttl=100_000).asks_result(1, wait=wait)
        talk.pass_ms(wait - 1)
        client.hears_nothing()
        talk.pass_ms(1)
        client.hears_timeout()


def test_waiters_are_served_in_the_order_of_their_arrival():
    with Workq() as talk:
        workers = [talk.connect().leases("x", "ping", wait=1000) for _ in range(5)]
        client = talk.connect()
        talk.pass_ms(10)
        for number, worker in enumerate(workers, 1):
            client.adds(number)
            worker.hears_job(number)


# TTR


def test_ttr_returns_the_job_at_the_exact_millisecond():
    with Workq() as talk:
        client = talk.connect().adds(1, ttr=200).leases().hears_job(1)
        talk.pass_ms(199)
        client.leases().hears_timeout()
        assert client.state_of(1) == "4"
        talk.pass_ms(1)
        assert client.state_of(1) == "3"
        client.leases().hears_job(1)
        assert client.inspects(1)["attempts"] == "2"


def test_ttr_starts_with_each_lease():
    with Workq() as talk:
        client = talk.connect().adds(1, ttr=200)
        talk.pass_ms(5000)
        for _ in range(3):
            client.leases().hears_job(1)
            talk.pass_ms(199)
            client.leases().hears_timeout()
            talk.pass_ms(1)


def test_ttr_delivers_the_job_to_a_waiter():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        client.adds(1, ttr=200).leases().hears_job(1)
        worker.leases(wait=1000)
        talk.pass_ms(199)
        worker.hears_nothing()
        talk.pass_ms(1)
        worker.hears_job(1)


def test_after_ttr_a_job_is_at_its_old_position():
    with Workq() as talk:
        client = (
            talk.connect().adds(1, ttr=200).adds(2).adds(3, "-priority=1").leases().hears_job(3)
        )
        client.leases().hears_job(1)
        talk.pass_ms(10)
        client.adds(4)
        talk.pass_ms(190)
        for number in (1, 2, 4):
            client.leases().hears_job(number)


def test_max_attempts_is_the_exact_number_of_leases():
    with Workq() as talk:
        client = talk.connect().adds(1, "-max-attempts=2", ttr=60)
        for attempt in (1, 2):
            client.leases().hears_job(1)
            seen = client.inspects(1)
            assert (seen["attempts"], seen["state"]) == (str(attempt), "4")
            talk.pass_ms(60)
        seen = client.inspects(1)
        assert (seen["attempts"], seen["fails"], seen["state"]) == ("2", "0", "2")
        client.leases().hears_timeout()
        client.asks_result(1).hears(b"+OK 1\r\n%b 0 0\r\n\r\n" % uid(1))
        client.completes(1).hears_client_error("Duplicate result")


def test_the_last_ttr_notifies_all_waiters_of_the_result():
    with Workq() as talk:
        clients = [talk.connect() for _ in range(3)]
        clients[0].adds(1, "-max-attempts=1", ttr=60).leases().hears_job(1)
        for client in clients:
            client.asks_result(1, wait=1000)
        talk.pass_ms(59)
        clients[0].hears_nothing()
        talk.pass_ms(1)
        for client in clients:
            client.hears_result(1, succeeded=False, result=b"")


def test_max_fails_counts_no_timeouts():
    with Workq() as talk:
        client = talk.connect().adds(1, "-max-fails=2", ttr=60)
        for _ in range(5):
            client.leases().hears_job(1)
            talk.pass_ms(60)
        client.leases().hears_job(1).fails_job(1).hears_ok()
        assert client.inspects(1)["fails"] == "1"
        client.leases().hears_job(1).fails_job(1, b"end").hears_ok()
        client.asks_result(1).hears_result(1, succeeded=False, result=b"end")


def test_max_attempts_and_max_fails_together():
    with Workq() as talk:
        client = talk.connect().adds(1, "-max-fails=2 -max-attempts=3", ttr=60)
        client.leases().hears_job(1).fails_job(1).hears_ok()
        client.leases().hears_job(1)
        talk.pass_ms(60)
        client.leases().hears_job(1)
        talk.pass_ms(60)
        client.asks_result(1).hears_result(1, succeeded=False, result=b"")


def test_complete_stops_ttr():
    with Workq() as talk:
        client = talk.connect().adds(1, "-max-attempts=1", ttr=60).leases().hears_job(1)
        talk.pass_ms(59)
        client.completes(1).hears_ok()
        talk.pass_ms(100)
        client.asks_result(1).hears_result(1)


# TTL


@pytest.mark.parametrize("state", ["0", "1", "2", "3", "4"])
def test_ttl_removes_a_job_in_any_state(state):
    with Workq() as talk:
        client = talk.connect().adds(1, "-max-fails=2", ttr=86_400_000, ttl=500)
        if state in "34":
            client.leases().hears_job(1)
        if state == "3":
            client.fails_job(1).hears_ok()
        if state == "1":
            client.completes(1).hears_ok()
        if state == "2":
            client.fails_job(1).hears_ok().fails_job(1).hears_ok()
        talk.pass_ms(499)
        assert client.state_of(1) == state
        talk.pass_ms(1)
        client.says(b"inspect job %b\r\n" % uid(1)).hears_not_found()
        client.completes(1).hears_not_found().fails_job(1).hears_not_found().asks_result(
            1, wait=99
        ).hears_not_found()
        client.leases().hears_timeout()
        client.says(b"inspect server\r\n").hears(SERVER % (1, state in "034"))
        client.adds(1).leases().hears_job(1)
        assert talk.engine.timers.next() > talk.now


def test_ttl_is_never_renewed():
    with Workq() as talk:
        client = talk.connect().adds(1, ttr=100, ttl=1000)
        for _ in range(9):
            client.leases().hears_job(1)
            talk.pass_ms(100)
        client.leases().hears_job(1).completes(1).hears_ok()
        talk.pass_ms(99)
        client.asks_result(1).hears_result(1)
        talk.pass_ms(1)
        client.asks_result(1).hears_not_found()


def test_ttr_and_ttl_at_the_same_time():
    with Workq() as talk:
        client = talk.connect().adds(1, "-max-attempts=1", ttr=100, ttl=100).leases().hears_job(1)
        talk.pass_ms(100)
        client.asks_result(1).hears_not_found()
        assert len(talk.engine.timers) == 0


def test_the_end_of_the_ttl_ends_the_wait_for_the_result():
    with Workq() as talk:
        client = talk.connect().adds(1, ttl=100).asks_result(1, wait=300)
        talk.pass_ms(99)
        client.hears_nothing()
        talk.pass_ms(1)
        client.hears_timeout()


def test_delete_notifies_no_waiter_of_the_result():
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        client.adds(1).asks_result(1, wait=300)
        other.deletes(1).hears_ok().adds(1).completes(1).hears_ok()  # another job with this id
        talk.pass_ms(299)
        client.hears_nothing()
        talk.pass_ms(1)
        client.hears_timeout()


def test_evicted_jobs_counts_only_unfinished_jobs():
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        client.adds(1, ttl=100).adds(2, ttl=100).adds(3, ttl=100).adds(4, ttl=100)
        client.leases().hears_job(1).completes(2).hears_ok().fails_job(3).hears_ok().deletes(
            4
        ).hears_ok()
        other.runs(5, wait=50)
        talk.pass_ms(200)
        other.hears_timeout()
        client.says(b"inspect server\r\n").hears(SERVER % (2, 1))


# Scheduled times


def test_a_scheduled_job_wakes_at_its_second():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        client.schedules(1, IN_4_S)
        worker.leases(wait=60_000)
        talk.pass_ms(3999)
        worker.hears_nothing()
        client.says(b"inspect queue ping\r\n").hears(
            b"+OK 1\r\nping 2\r\nready-len 0\r\nscheduled-len 1\r\n"
        )
        talk.pass_ms(1)
        worker.hears_job(1)


def test_a_fraction_of_a_second_counts():
    with Workq() as talk:
        client = talk.connect().schedules(1, "2026-11-15T19:43:55.25Z")
        talk.pass_ms(4249)
        client.leases().hears_timeout()
        talk.pass_ms(1)
        client.leases().hears_job(1)


def test_ttl_of_a_scheduled_job_starts_at_its_time():
    with Workq() as talk:
        client = talk.connect().schedules(1, IN_4_S, ttl=1000)
        talk.pass_ms(4999)
        assert client.state_of(1) == "0"
        talk.pass_ms(1)
        client.says(b"inspect job %b\r\n" % uid(1)).hears_not_found()
        client.says(b"inspect server\r\n").hears(SERVER % (1, 1))


def test_a_past_time_within_the_ttl():
    with Workq() as talk:
        client = talk.connect().schedules(1, "2026-11-15T19:43:50Z", ttl=1001)  # a second ago
        assert client.inspects(1)["time"] == "2026-11-15T19:43:50Z"
        talk.pass_ms(1)
        client.leases().hears_timeout()
        client.says(
            b"schedule %b ping 1 1000 2026-11-15T19:43:50Z 0\r\n\r\n" % uid(2)
        ).hears_client_error("Invalid Time")


def test_a_time_before_1970_does_not_move_the_clock():
    with Workq() as talk:
        client = talk.connect().schedules(1, "0001-01-01T00:00:00Z", ttl=2**64 - 1).adds(2)
        assert client.inspects(1)["time"] == "0001-01-01T00:00:00Z"
        client.leases().hears_job(2).leases().hears_job(1)
        assert talk.engine.positions.last <= talk.now


def test_ttr_of_a_woken_job_and_its_ttl():
    with Workq() as talk:
        client = talk.connect().schedules(1, IN_4_S, ttr=400, ttl=1000)
        talk.pass_ms(4000)
        client.leases().hears_job(1)
        talk.pass_ms(400)
        client.leases().hears_job(1)
        talk.pass_ms(400)
        client.leases().hears_job(1)
        talk.pass_ms(200)
        client.leases().hears_timeout().completes(1).hears_not_found()


def test_waiting_for_the_result_of_a_scheduled_job():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        client.schedules(1, IN_4_S).asks_result(1, wait=5000)
        worker.leases(wait=5000)
        talk.pass_ms(4000)
        worker.hears_job(1)
        talk.pass_ms(999)
        worker.completes(1).hears_ok()
        client.hears_result(1)


# run: both timeouts


def test_a_run_without_a_worker():
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        client.runs(1, wait=200)
        talk.pass_ms(199)
        client.hears_nothing()
        talk.pass_ms(1)
        client.hears_timeout()
        other.leases().hears_timeout().says(b"inspect job %b\r\n" % uid(1)).hears_not_found()


def test_a_run_leased_in_time_may_end_after_its_wait_timeout():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        client.runs(1, ttr=500, wait=200)
        worker.leases().hears_job(1)
        talk.pass_ms(400)
        client.hears_nothing()
        worker.completes(1).hears_ok()
        client.hears_result(1)


def test_a_run_leased_late_has_its_whole_ttr():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        client.runs(1, ttr=300, wait=500)
        talk.pass_ms(350)
        worker.leases().hears_job(1)
        talk.pass_ms(299)
        client.hears_nothing()
        talk.pass_ms(1)
        client.hears_timeout()
        worker.completes(1).hears_not_found().leases().hears_timeout()


def test_the_end_of_ttr_ends_a_run_before_its_wait_timeout():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        client.runs(1, ttr=100, wait=10_000)
        talk.pass_ms(50)
        worker.leases().hears_job(1)
        talk.pass_ms(99)
        client.hears_nothing()
        talk.pass_ms(1)
        client.hears_timeout()


def test_ttr_and_wait_timeout_at_the_same_time():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        client.runs(1, ttr=100, wait=100)
        worker.leases().hears_job(1)
        talk.pass_ms(100)
        client.hears_timeout()
        assert len(talk.engine.timers) == 0
        assert not talk.engine.jobs


def test_other_clients_can_wait_for_the_result_of_a_run():
    with Workq() as talk:
        client, worker, other = talk.connect(), talk.connect(), talk.connect()
        client.runs(1, wait=1000)
        other.asks_result(1, wait=1000)
        worker.leases().hears_job(1).completes(1).hears_ok()
        client.hears_result(1)
        other.hears_result(1)


def test_commands_behind_a_run_are_executed_after_it():
    with Workq() as talk:
        client = talk.connect()
        client.says(
            b"run %b ping 1 100 0\r\n\r\nlease ping 50\r\nnonsense\r\n" % uid(1)
        ).hears_nothing()
        talk.pass_ms(100)
        client.hears_timeout()
        talk.pass_ms(50)
        client.hears_timeout().hears_client_error("Unknown command")


def test_a_run_ends_after_its_ttr_if_a_worker_without_deadline_has_the_job():
    """A Masenko lease has no deadline: the TTR of the run still limits the wait."""
    with Workq() as talk:
        client = talk.connect().runs(1, ttr=3000, wait=1000)
        talk.acts(lambda world: world.engine.lease(["ping"], "m", MASENKO, world.now))
        talk.pass_ms(2999)
        client.hears_nothing()
        talk.pass_ms(1)
        client.hears_timeout()
        assert not talk.engine.jobs


@pytest.mark.parametrize("waits", [False, True])
def test_the_lease_of_a_long_command_starts_when_the_job_is_taken(waits):
    """A `lease` with many names takes several slices; here each one takes a second."""
    world = WorkqWorld({})
    engine, now = world.engine, START
    connection = WorkqConnection(world.hub)
    if not waits:
        connection.receive(b"add %b q1 5000 60000 1\r\nx\r\n" % uid(1), now, 1)
    names = b" ".join([b"q%d" % number for number in range(1000)])
    connection.feed(b"lease %b 9000\r\n" % names)
    while connection.run(now, 1):
        now += SECOND
    assert now > START + 2 * SECOND
    if waits:
        assert engine.next_timer() == now + 9 * SECOND
    else:
        (job,) = engine.leased.values()
        assert (job.leased_at, job.deadline) == (now, now + 5 * SECOND)
