"""A limit on a queue binds the workers of every protocol."""

import pytest
from pairs import PROTOCOLS, work

from millrace.engine.limits import QUEUE_KEY_PREFIX
from speakers import Leased

LIMIT = 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_as_many_workers_as_the_limit_get_a_job(house, protocol):
    pusher = house.client(protocol, "pusher")
    for number in range(3):
        pusher.push(work(id=f"00000000-0000-4000-9000-00000000000{number}"))
    house.engine.set_limit(QUEUE_KEY_PREFIX + "q", LIMIT, 0, house.now)
    workers = [house.client(protocol, f"worker-{number}") for number in range(3)]
    first, second = workers[0].lease("q"), workers[1].lease("q")
    assert first.id != second.id
    workers[2].finds_nothing("q")
    workers[0].complete(first)
    third = workers[2].asks("lease", "q")
    assert isinstance(third, Leased)
    assert third.held.id not in {first.id, second.id}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_jobs_of_one_protocol_are_limited_for_the_workers_of_another(house, protocol):
    pusher = house.client("faktory", "pusher")
    for number in range(2):
        pusher.push(work(id=f"00000000-0000-4000-9000-00000000000{number}"))
    house.engine.set_limit(QUEUE_KEY_PREFIX + "q", 1, 0, house.now)
    held = house.client("faktory").lease("q")
    worker = house.client(protocol, "other")
    worker.finds_nothing("q")
    house.client("faktory", "third").complete(held)
    assert isinstance(worker.asks("lease", "q"), Leased)
