"""Failure, retry, dead queue, disconnect (section 4 of the sheet) and blocked_by (section 5)."""

from typing import Any

import pytest
from conversation import SECOND, START
from masenko_conversation import EMPTY, OK, Masenko, MasenkoClient

from millrace.engine.job import ensure_history
from millrace.engine.states import BLOCKED, LEASED, READY, SCHEDULED

#: failures^4, in seconds
BACK_OFF = [1, 16, 81, 256, 625, 1296, 2401, 4096, 6561, 10_000]


def fails(client: MasenkoClient, *queues: str) -> int:
    """Fetch the next task, and fail it."""
    task: int = client.fetches(*queues)["id"]
    client.nacks(task)
    return task


# Retries


def test_the_delay_is_failures_to_the_fourth_and_ends_at_a_whole_second():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        talk.advance(0.75)
        for count, seconds in enumerate(BACK_OFF, 1):
            task = client.fetches()
            assert task.get("failures", 0) == count - 1
            client.nacks(1)
            job = talk.job(1)
            assert job.due_at == (talk.now // SECOND + seconds) * SECOND
            assert client.queues() == {"default": (0, 1, 0)}
            client.says("QUIT").hears(OK)
            talk.advance((job.due_at - talk.now) / SECOND - 0.01)
            client = talk.connect().finds_nothing()
            talk.advance(0.009)


def test_the_first_delay_ends_at_a_whole_second():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        talk.advance(0.75)
        fails(client)
        client.asks(timeout="10s")
        talk.advance(0.249999)
        client.hears_nothing()
        talk.advance(0.000001)
        assert client.hears_task()["failures"] == 1


@pytest.mark.parametrize("retry", [0, 1, 2, 3])
def test_a_task_has_one_more_attempt_than_retries(retry):
    with Masenko() as talk:
        client = talk.connect()
        client.pushes(retry=retry)
        for seconds in BACK_OFF[:retry]:
            fails(client)
            client.says("QUIT").hears(OK)
            talk.advance(seconds)
            client = talk.connect()
        fails(client)
        client.finds_nothing()
        assert client.queues() == {}
        assert talk.dead == [1]
        assert talk.job(1).failures == retry + 1


def test_the_last_of_255_retries_is_the_last():
    # The original counts them in eight bits, and never stops.
    with Masenko() as talk:
        client = talk.connect()
        client.pushes(retry=255)
        talk.acts(lambda world: setattr(ensure_history(world.engine.jobs[1]), "failures", 254))
        fails(client)
        assert talk.job(1).state == SCHEDULED
        talk.acts(lambda world: world.engine.retry_now(world.engine.jobs[1], world.now))
        assert client.fetches()["failures"] == 255
        client.nacks(1)
        assert talk.dead == [1]


def test_due_retries_precede_undelayed_tasks():
    with Masenko() as talk:
        client = talk.connect()
        for _ in range(3):
            client.pushes()
        assert [fails(client), fails(client)] == [1, 2]
        client.pushes()
        talk.advance(1)
        assert client.queues() == {"default": (2, 2, 0)}
        assert [client.fetches()["id"] for _ in range(4)] == [1, 2, 3, 4]


# Dead queues


def test_a_task_starts_over_in_its_dead_queue():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes("a", queue="q", deadqueue="dead", retry=1, payload=[1])
        fails(client, "q")
        talk.advance(1)
        fails(client, "q")
        assert client.queues() == {"dead": (1, 0, 0)}
        client.says('FETCH {"queues":["dead"]}')
        client.hears(b'OK {"id":1,"queue":"dead","name":"a","payload":[1]}\n')
        client.nacks(1)
        talk.advance(1)
        assert client.fetches("dead") == {
            "id": 1, "queue": "dead", "name": "a", "payload": [1], "failures": 1
        }  # fmt: skip
        client.nacks(1).finds_nothing("dead", "q")
        assert client.queues() == {}
        assert talk.dead == [1]


def test_the_dead_queue_can_be_the_queue_of_the_task():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes(deadqueue="default", retry=0)
        fails(client)
        assert fails(client) == 1
        assert talk.dead == [1]


def test_a_delayed_task_has_no_delay_in_its_dead_queue():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes(deadqueue="dead", retry=0, execute_at="2026-11-15T19:43:50Z")
        client.pushes(queue="dead")
        talk.advance(0.001)
        fails(client)
        assert client.queues() == {"dead": (2, 0, 0)}
        assert [client.fetches("dead")["id"] for _ in range(2)] == [2, 1]


def test_a_task_in_the_dead_queue_is_delivered_to_a_waiter():
    with Masenko() as talk:
        client, other = talk.connect(), talk.connect()
        other.asks("dead", timeout="10s")
        client.pushes(deadqueue="dead", retry=0)
        fails(client)
        assert other.hears_task()["queue"] == "dead"


# The end of a connection


Ending = Any


def hangs_up(client: MasenkoClient) -> None:
    client.hangs_up()


def says_no_more(client: MasenkoClient) -> None:
    client.says_no_more().hears_the_end()


def quits(client: MasenkoClient) -> None:
    client.says("QUIT").hears(OK).hears_the_end()


def breaks_off(client: MasenkoClient) -> None:
    client.says(b"x" * 1001).hears_error("line longer than 1000 bytes").hears_the_end()


ENDINGS = pytest.mark.parametrize("end", [hangs_up, says_no_more, quits, breaks_off])


@ENDINGS
def test_every_task_of_a_closed_connection_fails(end):
    with Masenko(max_line=1000) as talk:
        client, other = talk.connect(), talk.connect()
        for retry in (0, 1, 20, 0):
            other.pushes(retry=retry, **({"deadqueue": "dead"} if retry == 0 else {}))
        other.pushes(queue="last", retry=0)
        for _ in range(4):
            client.fetches()
        client.fetches("last")
        client.acks(4)
        end(client)
        assert other.queues() == {"default": (0, 2, 0), "dead": (1, 0, 0)}
        assert talk.dead == [5]
        assert other.fetches("dead") == {"id": 1, "queue": "dead", "name": "a"}
        talk.advance(1)
        assert [other.fetches()["failures"] for _ in range(2)] == [1, 1]


@ENDINGS
def test_the_failure_has_its_reason(end):
    with Masenko(max_line=1000) as talk:
        client = talk.connect()
        client.pushes()
        client.fetches()
        end(client)
        failure = talk.job(1).failure
        assert failure.group == "ConnectionLost"
        assert failure.message == f"the connection masenko-{START:x}-1 was closed"


def test_a_task_with_an_unwritten_reply_has_not_failed():
    with Masenko() as talk:
        leaving, client = talk.connect(), talk.connect()
        client.pushes()
        client.pushes()
        assert leaving.fetches()["id"] == 1
        leaving.stops_reading()
        assert leaving.fetches()["id"] == 2
        leaving.hangs_up()
        assert (talk.job(1).failures, talk.job(1).state) == (1, SCHEDULED)
        assert (talk.job(2).failures, talk.job(2).attempt, talk.job(2).state) == (0, 0, READY)
        assert client.fetches()["id"] == 2


def test_a_client_that_disconnects_while_waiting_receives_no_task():
    with Masenko() as talk:
        leaving, client = talk.connect(), talk.connect()
        leaving.asks(timeout="20s").hangs_up()
        client.pushes()
        assert client.fetches() == {"id": 1, "queue": "default", "name": "a"}


def test_a_half_closed_client_continues_to_wait():
    with Masenko() as talk:
        half, client = talk.connect(), talk.connect()
        half.says('FETCH {"timeout":"20s"}\nPING\nFETCH {"timeout":"20s"}\nPING').says_no_more()
        half.hears_nothing()
        talk.advance(20)
        half.hears(EMPTY, b"PONG {}\n")
        client.pushes(retry=1)
        half.hears(b'OK {"id":1,"queue":"default","name":"a"}\n', b"PONG {}\n").hears_the_end()
        talk.advance(1)
        assert client.fetches()["failures"] == 1  # it could not acknowledge the task


def test_commands_before_the_end_are_answered():
    with Masenko() as talk:
        client = talk.connect()
        client.says('PUSH {"name":"a"}\nFETCH\nACK {"id":1}\nPING').says_no_more()
        client.hears(
            b'OK {"id":1}\n', b'OK {"id":1,"queue":"default","name":"a"}\n', OK, b"PONG {}\n"
        )
        client.hears_the_end()
        assert talk.engine.jobs == {}


def test_a_stopping_server_delivers_no_task_and_keeps_leases():
    with Masenko() as talk:
        client, other, third = talk.connect(), talk.connect(), talk.connect()
        for _ in range(2):
            client.pushes()
        client.fetches()
        other.fetches()
        third.asks(timeout="1s")
        talk.acts(lambda world: world.hub.stop())
        client.pushes()
        other.finds_nothing().acks(2).hangs_up()
        talk.advance(1)
        third.hears(EMPTY)
        client.hangs_up()
        assert (talk.job(1).state, talk.job(1).failures) == (LEASED, 0)
        assert talk.job(3).state == READY


def test_no_other_client_can_end_a_fetched_task():
    with Masenko() as talk:
        client, other = talk.connect(), talk.connect()
        client.pushes()
        client.fetches()
        talk.advance(40)
        client.says("PING").hears(b"PONG {}\n")
        talk.advance(40)
        client.says("PING").hears(b"PONG {}\n")
        talk.connect().finds_nothing()
        client.acks(1)
        assert other.wire.closed
        other.hears_error("no heartbeat")


# blocked_by


def test_blocked_until_every_blocker_is_acknowledged():
    with Masenko() as talk:
        client = talk.connect()
        first, second = client.pushes(queue="a"), client.pushes(queue="b")
        third = client.pushes(queue="c", blocked_by=[first, second, first])
        fourth = client.pushes(queue="c")
        client.fetches("a")
        client.fetches("b")
        client.acks(first)
        assert client.fetches("c")["id"] == fourth
        client.finds_nothing("c").acks(second)
        assert client.fetches("c")["id"] == third


@pytest.mark.parametrize("number", [1, 4_294_967_297])
def test_a_new_task_does_not_block_itself(number):
    with Masenko() as talk:
        client = talk.connect()
        client.pushes(blocked_by=[number])
        assert client.fetches()["id"] == 1


def test_a_new_task_of_a_transaction_does_not_block_itself():
    with Masenko() as talk:
        client = talk.connect()
        client.commits('PUSH {"name":"a"}', 'PUSH {"name":"b","blocked_by":[2]}')
        client.hears(b'OK {"ids":[1,2]}\n')
        assert [client.fetches()["id"] for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(
    "blocker", [1, 3, 99, 4_294_967_295, 4_294_967_296, 4_294_967_297, 2**63 - 1]
)
def test_unknown_tasks_do_not_block(blocker):
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.fetches()
        client.acks(1).pushes(blocked_by=[blocker])
        assert client.fetches()["id"] == 2


def test_numbers_beyond_32_bits_are_truncated():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.pushes(blocked_by=[4_294_967_297])
        assert talk.job(2).extra.blockers == [1]


def test_a_blocked_and_delayed_task():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.pushes(blocked_by=[1], execute_at="2026-11-15T19:43:56Z")
        client.pushes(blocked_by=[1], execute_at="2026-11-15T19:43:51Z")
        client.fetches()
        assert client.queues() == {"default": (0, 0, 1)}
        talk.advance(3)
        client.acks(1)
        assert client.queues() == {"default": (0, 2, 0)}
        assert client.fetches()["id"] == 3
        client.finds_nothing()
        talk.advance(2)
        assert client.fetches()["id"] == 2


def test_a_failure_with_retries_left_keeps_dependents_blocked():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes(retry=1)
        client.pushes(blocked_by=[1])
        fails(client)
        assert talk.job(2).state == BLOCKED
        talk.advance(1)
        assert client.fetches()["failures"] == 1
        client.acks(1)
        assert client.fetches()["id"] == 2


@ENDINGS
def test_all_dependents_fail_with_a_permanently_failed_task(end):
    with Masenko(max_line=1000) as talk:
        client, other = talk.connect(), talk.connect()
        other.pushes("root", retry=0, deadqueue="dead")
        other.pushes("other blocker", queue="other")
        other.pushes("b", blocked_by=[1, 2], deadqueue="dead")
        other.pushes("b1", blocked_by=[3], deadqueue="dead")
        other.pushes("c", blocked_by=[1])
        other.pushes("c1", blocked_by=[5], deadqueue="elsewhere")
        other.pushes("d", blocked_by=[1, 4], deadqueue="dead")
        other.pushes("free", queue="other", blocked_by=[2])
        client.fetches()
        end(client)
        assert talk.dead == [5]
        assert other.queues() == {
            "other": (1, 0, 0),
            "dead": (4, 0, 0),
            "elsewhere": (1, 0, 0),
        }
        names = [other.fetches("dead") for _ in range(4)]
        assert [task["name"] for task in names] == ["root", "b", "b1", "d"]
        assert all("failures" not in task for task in names)
        assert talk.job(8).state == BLOCKED


def test_dependents_fail_depth_first():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes("root", retry=0, deadqueue="dead")
        client.pushes("b", blocked_by=[1], deadqueue="dead")
        client.pushes("c", blocked_by=[1], deadqueue="dead")
        client.pushes("b1", blocked_by=[2], deadqueue="dead")
        fails(client)
        names = [client.fetches("dead")["name"] for _ in range(4)]
        assert names == ["root", "b", "b1", "c"]


def test_a_blocker_in_its_dead_queue_blocks_later_tasks():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes(retry=0, deadqueue="dead")
        fails(client)
        client.pushes(blocked_by=[1])
        client.finds_nothing()
        client.fetches("dead")
        client.acks(1)
        assert client.fetches()["id"] == 2


def test_a_dead_task_does_not_block():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes(retry=0)
        fails(client)
        client.pushes(blocked_by=[1])
        assert client.fetches()["id"] == 2


def test_a_blocker_of_another_protocol():
    from scene import unit

    with Masenko() as talk:
        talk.acts(lambda world: world.engine.push(unit("some-jid", "q", retries=-1), world.now))
        client = talk.connect()
        client.pushes(blocked_by=[1])
        client.finds_nothing()
        fails(client, "q")
        assert talk.dead == [1, 2]


def test_tasks_due_at_the_same_time_are_in_the_order_of_their_pushes():
    with Masenko() as talk:
        client = talk.connect()
        for seconds in (2, 1, 2, 1):
            client.pushes(execute_at=f"2026-11-15T19:43:5{1 + seconds}Z")
        client.pushes()
        talk.advance(2)
        assert [client.fetches()["id"] for _ in range(5)] == [2, 4, 1, 3, 5]


def test_a_due_time_in_the_past_precedes_all_ready_tasks():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.pushes(execute_at="2020-01-01T00:00:00Z")
        client.pushes(execute_at="1999-01-01T00:00:00Z")
        assert client.queues() == {"default": (1, 2, 0)}
        assert [client.fetches()["id"] for _ in range(3)] == [3, 2, 1]


def test_a_task_is_not_delivered_before_its_due_time():
    with Masenko() as talk:
        client = talk.connect()
        assert START % SECOND == 0
        client.pushes(execute_at="2026-11-15T19:43:52Z")
        client.asks(timeout="2s")
        talk.advance(0.999999)
        client.hears_nothing()
        talk.advance(0.000001)
        assert client.hears_task()["id"] == 1
