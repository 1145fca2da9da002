"""A Qless worker that loses its job frees the capacity of a limit for one client, not for two."""

from house import House
from millrace.engine.states import LEASED
from speakers import Held, Leased, Work

GRACE = 10


def work(number: int) -> Work:
    jid = f"00000000-0000-4000-8000-{number:012}"
    return Work(id=jid, queue="q", payload=b'["%d"]' % number, retries=5)


def lease(client, wait: float = 0) -> Held | None:
    client.says(client.speaker.lease("q", client.house.now, wait))
    answers = client.hears()
    return answers[0].held if answers and isinstance(answers[0], Leased) else None


def leased(house: House) -> int:
    return sum(job.state == LEASED for job in house.engine.jobs.values())


def test_a_waiting_client_uses_the_capacity_of_a_lost_job():
    house = House()
    producer, first, second = (house.client("qless", name) for name in ("p", "first", "second"))
    for number in range(3):
        producer.push(work(number))
    assert lease(first) is not None
    house.engine.set_limit("ql:q:q", 1, 0, house.now)
    waiting = house.client("goqueue")
    assert lease(waiting, wait=1000) is None
    house.pass_time(61)
    assert lease(second) is None  # the lost job is in its grace period
    house.pass_time(GRACE + 1)
    lease(second)
    assert leased(house) == 1


def test_a_job_leased_to_waiting_clients_is_not_leased_again():
    house = House()
    producer, first, second = (house.client("qless", name) for name in ("p", "first", "second"))
    for number in range(2):
        producer.push(work(number))
        assert lease(first) is not None
    house.engine.set_limit("ql:q:q", 2, 0, house.now)
    waiting = [house.client("goqueue") for _ in range(2)]
    for client in waiting:
        assert lease(client, wait=1000) is None
    house.pass_time(61)
    second.says(second.speaker._call("lease", "", "pop", house.now, "q", "second", 2))
    second.hears()
    house.pass_time(GRACE + 1)
    second.says(second.speaker._call("lease", "", "pop", house.now, "q", "second", 2))
    second.hears()
    assert leased(house) == 2


def test_without_a_waiting_client_the_lost_job_keeps_its_capacity():
    house = House()
    producer, first, second = (house.client("qless", name) for name in ("p", "first", "second"))
    producer.push(work(1))
    held = lease(first)
    house.engine.set_limit("ql:q:q", 1, 0, house.now)
    house.pass_time(61)
    lease(second)
    house.pass_time(GRACE + 1)
    again = lease(second)
    assert held is not None
    assert again is not None
    assert again.id == held.id
