"""Workers: known while they are connected or send heartbeats; their state only advances."""

import pytest

from millrace.engine.workers import (
    FORGET_AFTER,
    MAX_DISCONNECTED_WORKERS,
    MAX_WORKER_ID_LENGTH,
    QUIET,
    RUNNING,
    TERMINATE,
    WORKER_STATES,
    Worker,
    WorkerRegistry,
)
from scene import SECOND, START

HOUR = 3600 * SECOND


def test_a_worker_is_known_from_its_first_connection():
    workers = WorkerRegistry()
    worker = workers.connect("w1", START)
    assert workers.known == {"w1": worker}
    assert (worker.wid, worker.state, worker.connections) == ("w1", RUNNING, 1)
    assert (worker.started_at, worker.last_heartbeat_at) == (START, START)


def test_connections_with_one_id_are_one_worker():
    workers = WorkerRegistry()
    worker = workers.connect("w1", START)
    assert workers.connect("w1", START + 1) is worker
    assert workers.connect("w2", START + 1) is not worker
    assert worker.connections == 2
    assert worker.started_at == START
    assert worker.last_heartbeat_at == START + 1


@pytest.mark.parametrize(
    ("state", "to", "moved"),
    [
        (RUNNING, QUIET, True),
        (RUNNING, TERMINATE, True),
        (QUIET, TERMINATE, True),
        (QUIET, QUIET, False),
        (QUIET, RUNNING, False),
        (TERMINATE, QUIET, False),
        (TERMINATE, TERMINATE, False),
        (RUNNING, RUNNING, False),
    ],
)
def test_the_state_of_a_worker_only_advances(state, to, moved):
    worker = Worker("w1", START)
    worker.state = state
    assert worker.advance(to) is moved
    assert worker.state == max(state, to)


def test_states_have_the_names_of_the_heartbeat_reply():
    assert WORKER_STATES[QUIET] == "quiet"
    assert WORKER_STATES[TERMINATE] == "terminate"
    assert WORKER_STATES[RUNNING] == ""


def test_another_connection_does_not_resume_a_quiet_worker():
    workers = WorkerRegistry()
    worker = workers.connect("w1", START)
    worker.advance(QUIET)
    workers.connect("w1", START + 1)
    assert worker.state == QUIET


def test_a_worker_that_reconnects_runs_again():
    workers = WorkerRegistry()
    worker = workers.connect("w1", START)
    worker.advance(TERMINATE)
    workers.disconnect(worker)
    assert workers.connect("w1", START + 5) is worker
    assert worker.state == RUNNING
    assert worker.started_at == START + 5
    assert worker.connections == 1


def test_only_workers_with_a_connection_are_connected():
    workers = WorkerRegistry()
    stays, leaves = workers.connect("here", START), workers.connect("gone", START)
    workers.disconnect(leaves)
    assert workers.connected() == [stays]


def test_a_disconnected_worker_without_heartbeats_is_forgotten_after_a_day():
    workers = WorkerRegistry()
    workers.disconnect(workers.connect("gone", START))
    workers.connect("other", START + FORGET_AFTER - HOUR)
    assert "gone" in workers.known
    workers.connect("other", START + FORGET_AFTER + 2 * HOUR)
    assert "gone" not in workers.known


def test_a_worker_that_beats_is_not_forgotten():
    workers = WorkerRegistry()
    beating = workers.connect("beating", START)
    workers.disconnect(beating)
    beating.last_heartbeat_at = START + FORGET_AFTER
    workers.connect("other", START + FORGET_AFTER + 2 * HOUR)
    assert "beating" in workers.known


def test_a_connected_worker_without_heartbeats_is_not_forgotten():
    workers = WorkerRegistry()
    workers.connect("silent", START)
    workers.connect("other", START + 10 * FORGET_AFTER)
    assert "silent" in workers.known


def test_short_lived_workers_do_not_accumulate():
    workers = WorkerRegistry()
    for n in range(24 * 30):
        workers.disconnect(workers.connect(f"w{n}", START + n * HOUR))
    assert len(workers.known) <= 27


def test_a_limited_number_of_disconnected_workers_is_remembered():
    workers = WorkerRegistry()
    stays = workers.connect("here", START)
    for n in range(MAX_DISCONNECTED_WORKERS + 5):
        workers.disconnect(workers.connect(f"w{n}", START))
    assert len(workers.known) == MAX_DISCONNECTED_WORKERS + 1
    assert workers.known["here"] is stays
    assert "w4" not in workers.known
    assert "w5" in workers.known


def test_a_worker_that_reconnected_is_dropped_last():
    workers = WorkerRegistry()
    workers.disconnect(workers.connect("first", START))
    for n in range(MAX_DISCONNECTED_WORKERS - 1):
        workers.disconnect(workers.connect(f"w{n}", START))
    workers.disconnect(workers.connect("first", START))
    workers.disconnect(workers.connect("last", START))
    assert "first" in workers.known
    assert "w0" not in workers.known


def test_disconnected_workers_do_not_displace_a_connected_worker():
    workers = WorkerRegistry()
    back = workers.connect("back", START)
    workers.disconnect(back)
    workers.connect("back", START)
    for n in range(MAX_DISCONNECTED_WORKERS + 5):
        workers.disconnect(workers.connect(f"w{n}", START))
    assert workers.known["back"] is back


def test_a_worker_with_several_connections_disconnects_with_the_last():
    workers = WorkerRegistry()
    worker = workers.connect("w1", START)
    workers.connect("w1", START)
    workers.disconnect(worker)
    assert workers.connected() == [worker]
    workers.disconnect(worker)
    assert workers.connected() == []


def test_a_disconnected_worker_with_a_very_long_id_is_forgotten():
    workers = WorkerRegistry()
    for length in (MAX_WORKER_ID_LENGTH, MAX_WORKER_ID_LENGTH + 1):
        workers.disconnect(workers.connect("w" * length, START))
    assert [len(wid) for wid in workers.known] == [MAX_WORKER_ID_LENGTH]
