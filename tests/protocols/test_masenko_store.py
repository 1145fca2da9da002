"""When nothing can be written, when what was done is undone, and over restarts: what a client has, it
still has, and what it had is lost to nobody.
"""

import pytest
from conversation import SECOND
from masenko_conversation import EMPTY, PONG, MasenkoClient, error
from masenko_house import House, leased

from millrace.engine.states import LEASED, READY, SCHEDULED

FULL = error("disk full: nothing was changed, try again later")
PUSH = 'PUSH {"name":"a"}'


@pytest.fixture
def house() -> House:
    return House()


# While nothing can be written


def test_what_would_change_something_is_refused_and_the_rest_goes_on(house):
    client = house.client()
    client.pushes()
    client.pushes()
    client.fetches()
    house.sync()
    house.engine.halted = "disk full"
    for line in (PUSH, 'ACK {"id":1}', 'NACK {"id":1}', "PUSH x", f"ATOMIC\n{PUSH}\nDONE"):
        client.says(line).hears(FULL)
    client.says("PING").hears(PONG)
    assert client.queues() == {"default": (1, 0, 1)}
    client.asks(timeout="1s").hears_nothing()
    house.advance(SECOND)
    client.hears(EMPTY)
    assert not house.engine.batch


def test_afterwards_everything_goes_on(house):
    client, worker = house.client(), house.client()
    client.pushes()
    client.fetches()
    client.pushes()
    house.sync()
    house.engine.halted = "disk full"
    worker.asks(timeout="10s").hears_nothing()
    client.says('ACK {"id":1}').hears(FULL)
    house.resume()
    assert worker.hears_task()["id"] == 2
    client.acks(1).says('ACK {"id":1}').hears_error("task not acquired")


def test_the_reply_to_what_could_not_be_made_durable(house):
    house.client()
    assert house.clients[0].connection.refusal("disk full") == FULL


# Undone


@pytest.fixture(params=["the lease is durable", "the lease is undone as well"])
def held(request: pytest.FixtureRequest, house: House) -> tuple[House, MasenkoClient]:
    """A client that has the tasks 1 and 2."""
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
def test_an_end_that_was_undone_can_be_said_again(held, verb):
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


def test_a_transaction_that_was_undone_can_be_said_again(held):
    house, client = held
    lines = ('ACK {"id":1}', PUSH, 'ACK {"id":2}')
    client.commits(*lines)._line()
    house.fail()
    client.commits(*lines).hears(FULL)
    house.resume()
    client.commits(*lines)._line()
    house.sync()
    assert [job.state for job in house.engine.jobs.values()] == [READY]


def test_two_turns_can_be_undone_at_once(held):
    house, client = held
    client.acks(1)
    house.begin()
    client.acks(2)
    house.finish(fails=True)
    house.resume()
    client.acks(1).acks(2)
    house.sync()
    assert house.engine.jobs == {}


def test_whoever_leaves_after_an_end_was_undone_has_failed(held):
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
    assert states in ({SCHEDULED}, {READY})  # a lease that was undone is nobody's failure


def test_an_end_that_is_durable_cannot_be_said_again_after_others_were_undone(house):
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
    assert list(house.clients[0].connection._held) == []


def test_what_somebody_else_has_fetched_since_is_not_taken_away(house):
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


def test_what_is_remembered_does_not_grow(house):
    client = house.client()
    for task in range(1, 300):
        client.pushes()
        client.fetches()
        client.acks(task)
        house.sync()
    remembered = house.clients[0].connection._held
    assert len(remembered._ended) + len(remembered._before) + len(remembered._tasks) <= 2


# Lost


def test_tasks_lost_while_nothing_can_be_written_fail_later(house):
    client = house.client()
    client.pushes()
    client.fetches()
    house.sync()
    house.engine.halted = "disk full"
    client.hangs_up()
    house.advance(3 * SECOND)
    assert house.engine.jobs[1].state == LEASED
    house.resume()
    house.advance(SECOND)
    assert (house.engine.jobs[1].state, house.engine.jobs[1].failures) == (SCHEDULED, 1)


def test_a_loss_that_was_undone_happens_again(house):
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


def test_a_task_that_was_never_written_while_nothing_can_be_is_not_forgotten(house):
    client = house.client()
    client.pushes()
    house.sync()
    client.stops_reading().fetches()
    house.sync()
    house.engine.halted = "disk full"
    house.clients[0].closed = True  # as the server: what it cannot give back stays leased
    house.clients[0].connection.lost(house.now)
    house.resume()
    house.advance(2 * SECOND)
    assert leased(house.engine) == []


# Restarts


def test_after_an_orderly_stop_tasks_are_ready_and_none_has_failed(house):
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


def test_a_new_connection_is_not_mistaken_for_one_before_the_restart(house):
    client = house.client()
    client.pushes()
    client.fetches()
    house.restart()
    client = house.client().finds_nothing("elsewhere")
    house.fail()  # and with it what the new start has changed
    house.resume()
    house.advance(2 * SECOND)
    assert leased(house.engine) == []
    assert client.fetches()["id"] == 1


def test_after_a_crash_too(house):
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


def test_due_retries_keep_their_place_over_a_crash(house):
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


def test_blocking_outlives_a_crash(house):
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


def test_the_dead_queue_outlives_a_crash(house):
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


def test_names_that_are_no_ascii_outlive_a_crash(house):
    client = house.client()
    client.pushes("żółw-1", queue="ś-2", deadqueue="ę-3", payload="ą")
    house.sync()
    house.crash()
    task = house.client().fetches("ś-2")
    assert task == {"id": 1, "queue": "ś-2", "name": "żółw-1", "payload": "ą"}


def test_a_transaction_that_was_not_durable_leaves_nothing(house):
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
