"""A queue that several protocols share has one order: rank, then place, then push order. Waiting
clients are served in the order of their requests.
"""

from itertools import cycle

import pytest
from pairs import LONG, PROTOCOLS, able, fail_attempt, pairs, shown, work

from house import Client, House
from speakers import Nothing
from wires import SECOND


def all_clients(house: House) -> dict[str, Client]:
    return {protocol: house.client(protocol, f"{protocol}-1") for protocol in PROTOCOLS}


def order(house: House, queue: str = "q") -> list[int]:
    """The numbers of the jobs in the order in which workers of all protocols lease them."""
    clients, found = cycle(all_clients(house).values()), []
    while house.engine.queues[queue].ready:
        client = next(clients)
        held = client.lease(queue)
        (job,) = [j for j in house.engine.jobs.values() if shown(client, j) == held.id]
        found.append(job.seq)
    return found


def test_first_in_first_out(house):
    clients = all_clients(house)
    for number in range(1, 16):
        clients[PROTOCOLS[number * 5 % 6]].push(work(number))
        house.advance(number % 3)  # some at the same time
    assert order(house) == list(range(1, 16))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_first_in_first_out_for_one_protocol(house, protocol):
    for number, client in enumerate(all_clients(house).values(), 1):
        client.push(work(number))
    worker = house.client(protocol)
    ids = [shown(worker, house.job(number)) for number in range(1, 6)]
    assert [worker.lease("q").id for _ in range(5)] == ids


def test_rank_precedes_push_order(house):
    """Workq and Qless can be above jobs without a priority, Go Job Queue only below."""
    clients = all_clients(house)
    pushed = [
        ("goqueue", -2), ("workq", -1), ("faktory", 0), ("qless", 3), ("masenko", 0),
        ("workq", 5), ("goqueue", -1), ("qless", -2), ("goqueue", 0), ("workq", 3), ("qless", -1),
    ]  # fmt: skip
    for number, (protocol, rank) in enumerate(pushed, 1):
        clients[protocol].push(work(number, rank=rank))
        house.advance(1)
    by_rank = sorted(range(1, len(pushed) + 1), key=lambda number: (-pushed[number - 1][1], number))
    assert order(house) == by_rank


def test_the_order_of_due_jobs(house):
    """Due Masenko jobs are ahead of all waiting jobs, the earliest first, and Workq's behind; jobs
    of Faktory, Qless and HTTP are queued when due.
    """
    clients = all_clients(house)
    soon, later = house.now + 5 * SECOND, house.now + 10 * SECOND
    plain = iter(range(1, 100))
    for client in clients.values():
        client.push(work(next(plain)))  # 1 to 6
    for protocol in ("workq", "masenko", "faktory", "qless", "http"):
        clients[protocol].push(work(next(plain), due=later))  # 7 to 11
    for protocol in ("workq", "masenko", "faktory", "qless", "http"):
        clients[protocol].push(work(next(plain), due=soon))  # 12 to 16
    house.pass_time(20)
    for client in clients.values():
        client.push(work(next(plain)))  # 17 to 22
    arrived = [1, 2, 3, 4, 5, 6, 14, 15, 16, 9, 10, 11, 17, 18, 19, 20, 21, 22]
    assert order(house) == [13, 8, *arrived, 12, 7]


def test_a_rank_is_above_masenkos_due_tasks(house):
    house.client("masenko").push(work(due=house.now + SECOND))
    house.pass_time(2)
    house.client("workq").push(work(2, rank=1))
    house.client("goqueue").push(work(3, rank=-1))
    assert order(house) == [2, 1, 3]


@pairs()
def test_the_place_of_a_returned_job(pair):
    """At its old place, ahead of all, or behind the waiting jobs: its pusher's rule."""
    held = pair.push_and_lease(retries=3)
    other = pair.house.client("faktory", "other")
    other.push(work(2))
    pair.house.pass_time(1)
    fail_attempt(pair.worker, held)
    pair.house.pass_time(LONG)
    other.push(work(3))
    places = {
        "workq": [1, 2, 3],
        "goqueue": [1, 2, 3],
        "masenko": [1, 2, 3],
        "faktory": [2, 1, 3],
        "http": [2, 1, 3],
        # An expired lease, as in Go Job Queue, leaves the job at its old place.
        "qless": [1, 2, 3] if pair.worker.speaker.protocol == "goqueue" else [2, 1, 3],
    }
    assert order(pair.house) == places[pair.pusher.speaker.protocol]


def test_the_longest_waiting_client_is_served_first(house):
    waiting = [house.client(protocol) for protocol in able("wait") for _ in range(2)]
    for client in waiting:
        client.waits("q", 2)
        house.advance(1)
    clients = cycle(all_clients(house).values())
    for number, client in enumerate(waiting, 1):
        next(clients).push(work(number))
        assert client.hears_held().id == shown(client, house.job(number))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_paused_queue_leases_no_job(house, protocol):
    client = house.client(protocol)
    client.push(work())
    house.engine.pause("q", paused=True, now=house.now)
    client.finds_nothing("q")
    house.engine.pause("q", paused=False, now=house.now)
    assert not isinstance(client.asks("lease", "q"), Nothing)


@pytest.mark.parametrize("protocol", able("wait"))
def test_a_client_waiting_on_a_paused_queue_is_woken_at_resume(house, protocol):
    client = house.client(protocol)
    client.push(work())
    house.engine.pause("q", paused=True, now=house.now)
    client.waits("q", 2)
    house.engine.pause("q", paused=False, now=house.now)
    house.tell()
    assert client.hears_held().id == shown(client, house.job())
