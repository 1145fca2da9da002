"""Failing stores, reverted changes and restarts: clients keep their tasks, and no task is lost."""

import pytest
from conversation import SECOND
from masenko_conversation import EMPTY, PONG, MasenkoClient, error
from masenko_house import FailingMasenkoServer, leased

from millrace.engine.states import LEASED, READY, SCHEDULED

pytestmark = pytest.mark.sources_only("it replaces Engine.take_batch")

FULL = error("disk full: nothing was changed, try again later")
PUSH = 'PUSH {"name":"a"}'


@pytest.fixture
def house() -> FailingMasenkoServer:
    return FailingMasenkoServer()


# While the store fails


def test_changes_are_refused_and_other_commands_continue(house):
    client = house.client()
    client.pushes()
    client.pushes()
    client.fetches()
    house.sync()
    house.engine.unavailable_reason = "disk full"
    for line in (PUSH, 'ACK {"id":1}', 'NACK {"id":1}', "PUSH x", f"ATOMIC\n{PUSH}\nDONE"):
        client.says(line).hears(FULL)
    client.says("PING").hears(PONG)
    assert client.queues() == {"default": (1, 0, 1)}
    client.asks(timeout="1s").hears_nothing()
    house.advance(SECOND)
    client.hears(EMPTY)
    assert not house.engine.change_set


def test_work_continues_after_the_store_recovered(house):
    client, worker = house.client(), house.client()
    client.pushes()
    client.fetches()
    client.pushes()
    house.sync()
    house.engine.unavailable_reason = "disk full"
    worker.asks(timeout="10s").hears_nothing()
    client.says('ACK {"id":1}').hears(FULL)
    house.resume()
    assert worker.hears_task()["id"] == 2
    client.acks(1).says('ACK {"id":1}').hears_error("task not acquired")


def test_the_reply_to_a_refused_change(house):
    house.client()
    assert house.clients[0].connection.unavailable_reply("disk full") == FULL


# Reverted changes


@pytest.fixture(params=["the lease is durable", "the lease is undone as well"])
def held(
    request: pytest.FixtureRequest, house: FailingMasenkoServer
) -> tuple[FailingMasenkoServer, MasenkoClient]:
    """A client that holds the tasks 1 and 2."""
    client = house.client()
    client.pushes()
    client.pushes()
    house.sync()
    client.fetches()
    client.fetches()
    if request.param == "the lease is durable":
        house.sync()
    return house, client


@pytest.mark.parametrize("verb", ["ACK", "NACK"])
def test_a_reverted_end_can_be_repeated(held, verb):
    house, client = held
    client.says(f'{verb} {{"id":1}}').hears_ok()
    house.fail()
    client.says(f'{verb} {{"id":1}}').hears(FULL)
    house.resume()
    client.says(f'{verb} {{"id":1}}').hears_ok()
    client.acks(2)
    house.sync()
    client.says(f'{verb} {{"id":1}}').hears_error("task not acquired")
    assert leased(house.engine) == []


def test_a_reverted_transaction_can_be_repeated(held):
    house, client = held
    lines = ('ACK {"id":1}', PUSH, 'ACK {"id":2}')
    client.commits(*lines)._line()
    house.fail()
    client.commits(*lines).hears(FULL)
    house.resume()
    client.commits(*lines)._line()
    house.sync()
    assert [job.state for job in house.engine.jobs.values()] == [READY]


def test_two_turns_can_be_reverted_together(held):
    house, client = held
    client.acks(1)
    house.begin()
    client.acks(2)
    house.finish(fails=True)
    house.resume()
    client.acks(1).acks(2)
    house.sync()
    assert house.engine.jobs == {}


def test_a_client_that_disconnects_after_a_reverted_end_fails_its_tasks(held):
    house, client = held
    client.acks(1)
    house.begin()
    client.acks(2)
    house.finish(fails=True)
    house.resume()
    client.says("PING").hears(PONG).hangs_up()
    assert leased(house.engine) == []
    assert set(house.engine.jobs) == {1, 2}
    states = {job.state for job in house.engine.jobs.values()}
    assert states in ({SCHEDULED}, {READY})  # a reverted lease is no failure


def test_a_durable_end_cannot_be_repeated_after_another_change_was_reverted(house):
    client, other = house.client(), house.client()
    client.pushes()
    client.fetches()
    house.sync()
    client.acks(1)
    house.sync()
    other.pushes()
    house.fail()
    house.resume()
    client.says('ACK {"id":1}').hears_error("task not acquired")
    holder = house.clients[0].connection.caller.holder
    assert house.engine.leases.of_holder(holder) == []


def test_a_task_since_fetched_by_another_client_keeps_its_lease(house):
    client, other = house.client(), house.client()
    client.pushes()
    house.sync()
    client.fetches()
    client.acks(1)
    house.fail()
    house.resume()
    assert other.fetches()["id"] == 1
    client.says('ACK {"id":1}').hears_error("task not acquired")
    other.acks(1)


def test_the_record_of_ended_tasks_is_bounded(house):
    client = house.client()
    for task in range(1, 300):
        client.pushes()
        client.fetches()
        client.acks(task)
        house.sync()
    leases = house.engine.leases
    remembered = (leases.by_holder, leases._undone, house.engine.change_set.ended_leases)
    assert sum(map(len, remembered)) <= 2


def test_undone_leases_of_removed_tasks_are_forgotten(house):
    """The connection stays open, so its end does not remove them."""
    client = house.client()
    for task in range(1, 20):
        client.pushes()
        house.sync()
        assert client.fetches()["id"] == task
        house.fail()
        house.resume()
        assert house.engine.leases.of_holder(house.clients[0].connection.caller.holder)[-1] == task
        house.engine.cancel(house.engine.jobs[task], house.now)
        house.sync()
    assert len(house.engine.leases._undone) <= 1


# Lost connections


def test_tasks_lost_while_the_store_fails_fail_later(house):
    client = house.client()
    client.pushes()
    client.fetches()
    house.sync()
    house.engine.unavailable_reason = "disk full"
    client.hangs_up()
    house.advance(3 * SECOND)
    assert house.engine.jobs[1].state == LEASED
    house.resume()
    house.advance(SECOND)
    assert (house.engine.jobs[1].state, house.engine.jobs[1].failures) == (SCHEDULED, 1)


def test_a_reverted_loss_happens_again(house):
    client = house.client()
    client.pushes()
    client.fetches()
    house.sync()
    client.hangs_up()
    assert house.engine.jobs[1].failures == 1
    house.fail()
    assert house.engine.jobs[1].state == LEASED
    house.resume()
    house.advance(2 * SECOND)
    assert house.engine.jobs[1].failures == 1
    assert leased(house.engine) == []


def test_a_task_with_an_unwritten_reply_is_returned_after_the_store_recovered(house):
    client = house.client()
    client.pushes()
    house.sync()
    client.stops_reading().fetches()
    house.sync()
    house.engine.unavailable_reason = "disk full"
    house.clients[0].closed = True  # as in the server: a lease that cannot be returned stays
    house.clients[0].connection.connection_lost(house.now)
    house.resume()
    house.advance(2 * SECOND)
    assert leased(house.engine) == []


# Restarts


def test_after_an_orderly_stop_tasks_are_ready_without_a_failure(house):
    client = house.client()
    for _ in range(3):
        client.pushes()
    for _ in range(2):
        client.fetches()
    house.restart()
    client = house.client()
    assert [client.fetches() for _ in range(3)] == [
        {"id": n, "queue": "default", "name": "a"} for n in (1, 2, 3)
    ]


def test_a_new_connection_differs_from_those_before_the_restart(house):
    client = house.client()
    client.pushes()
    client.fetches()
    house.restart()
    client = house.client().finds_nothing("elsewhere")
    house.fail()  # this also reverts the changes of the start
    house.resume()
    house.advance(2 * SECOND)
    assert leased(house.engine) == []
    assert client.fetches()["id"] == 1


def test_after_a_crash_tasks_are_ready(house):
    client = house.client()
    for _ in range(5):
        client.pushes()
    for _ in range(3):
        client.fetches()
    client.nacks(3)
    house.sync()
    house.crash()
    client = house.client()
    assert [client.fetches()["id"] for _ in range(4)] == [1, 2, 4, 5]
    house.advance(SECOND)
    assert client.fetches() == {"id": 3, "queue": "default", "name": "a", "failures": 1}
    assert client.pushes() == 6


def test_due_retries_keep_their_position_after_a_crash(house):
    client = house.client()
    for _ in range(2):
        client.pushes()
    client.fetches()
    client.nacks(1)
    client.pushes(execute_at="2020-01-01T00:00:00Z")
    house.sync()
    house.advance(2 * SECOND)
    client.fetches()
    house.sync()
    house.crash()
    client = house.client()
    assert client.queues() == {"default": (1, 2, 0)}
    assert [client.fetches()["id"] for _ in range(3)] == [3, 1, 2]


def test_blocking_survives_a_crash(house):
    client = house.client()
    client.commits(PUSH, *['PUSH {"name":"a","blocked_by":[-1]}'] * 3)._line()
    client.fetches()
    client.acks(1)
    house.sync()
    for task in (2, 3, 4):
        house.crash()
        client = house.client()
        assert client.fetches()["id"] == task
        client.finds_nothing().acks(task)
        house.sync()


def test_the_dead_queue_survives_a_crash(house):
    client = house.client()
    client.pushes(retry=0, deadqueue="dead")
    client.pushes(blocked_by=[1], deadqueue="dead")
    house.sync()
    house.crash()
    client = house.client()
    client.fetches()
    client.nacks(1)
    house.sync()
    house.crash()
    client = house.client()
    assert [client.fetches("dead")["id"] for _ in range(2)] == [1, 2]
    client.nacks(2)
    house.advance(SECOND)
    assert client.fetches("dead")["failures"] == 1


def test_names_beyond_ascii_survive_a_crash(house):
    client = house.client()
    client.pushes("żółw-1", queue="ś-2", deadqueue="ę-3", payload="ą")
    house.sync()
    house.crash()
    task = house.client().fetches("ś-2")
    assert task == {"id": 1, "queue": "ś-2", "name": "żółw-1", "payload": "ą"}


def test_an_uncommitted_transaction_has_no_effect(house):
    client = house.client()
    client.pushes()
    client.fetches()
    house.sync()
    client.commits(PUSH, 'ACK {"id":1}', PUSH)._line()
    house.begin()
    house.crash()
    client = house.client()
    assert client.queues() == {"default": (1, 0, 0)}
    assert client.fetches()["id"] == 1
