"""The leasing protocol decides how a lease is held, renewed and lost, for jobs of any protocol: by
time, by its connection, or by the clock of the popping worker.
"""

import pytest
from pairs import GRACE, HEARTBEAT, LONG, PROTOCOLS, lose, pairs, shown, work

from millrace.engine.job import FOREVER
from millrace.engine.states import DONE, LEASED
from speakers import Accepted, Held, Leased, Nothing, Refused
from wires import SECOND

#: Protocols whose leases end after a duration that is set with the job.
TIMED = ("workq", "faktory", "goqueue", "http")
#: The duration for jobs of protocols that cannot set it.
DEFAULT_LEASE = {"masenko": 1800, "qless": 1800}
#: Protocols whose leases only the holder can end.
EXCLUSIVE = ("masenko", "qless", "http")


@pytest.mark.parametrize("worker", TIMED)
@pytest.mark.parametrize("pusher", PROTOCOLS)
def test_a_lease_expires(house, pusher, worker):
    house.client(pusher).push(work(ttr=100))
    house.client(worker).lease("q")
    time = DEFAULT_LEASE.get(pusher, 100)
    assert house.job().deadline == house.now + time * SECOND
    house.advance(time * SECOND - 1)
    assert house.job().state == LEASED
    house.advance(1)
    assert house.job().state != LEASED


@pairs()
def test_a_lease_ends_with_its_connection_only_in_masenko(pair):
    pair.push_and_lease()
    pair.worker.hangs_up()
    assert (pair.job.state == LEASED) == (pair.worker.speaker.protocol != "masenko")


@pytest.mark.parametrize("pusher", PROTOCOLS)
def test_a_masenko_lease_lasts_as_long_as_its_connection(house, pusher):
    house.client(pusher).push(work(ttl=100 * 86_400))
    worker = house.client("masenko")
    held = worker.lease("q")
    assert house.job().deadline == FOREVER
    house.pass_time(30 * 86_400)
    worker.complete(held)


@pytest.mark.parametrize("pusher", PROTOCOLS)
def test_a_qless_lease_ends_at_a_pop_after_its_grace_period(house, pusher):
    house.client(pusher).push(work(retries=3))
    worker, other = house.client("qless", "one"), house.client("qless", "two")
    held = worker.lease("q")
    house.pass_time(LONG)
    assert house.job().state == LEASED  # there was no pop
    assert isinstance(other.asks("lease", "q"), Nothing)
    house.pass_time(GRACE - 1)
    assert isinstance(other.asks("lease", "q"), Nothing)
    assert house.job().state == LEASED
    house.pass_time(1)
    answer = other.asks("lease", "q")
    at_once = pusher in {"workq", "qless", "goqueue"}
    assert isinstance(answer, Leased if at_once else Nothing)
    assert isinstance(worker.asks("complete", held), Refused)


@pytest.mark.parametrize("pusher", PROTOCOLS)
def test_a_qless_worker_can_complete_during_the_grace_period(house, pusher):
    house.client(pusher).push(work())
    worker, other = house.client("qless", "one"), house.client("qless", "two")
    held = worker.lease("q")
    house.pass_time(HEARTBEAT)
    assert isinstance(other.asks("lease", "q"), Nothing)
    worker.complete(held)


# Rights to end a lease


@pytest.mark.parametrize("other", ["workq", "masenko", "faktory", "qless"])
@pairs()
def test_clients_that_can_complete_a_leased_job(pair, other):
    """Any client with the id can end a lease of Workq, Faktory or Go Job Queue, if its protocol
    permits it; only the holder can end a lease of Masenko, Qless or HTTP.
    """
    held = pair.push_and_lease()
    # The same name does not make it the same worker.
    other_client = pair.house.client(other, pair.worker.speaker.name)
    theirs = Held(id=shown(other_client, pair.job), queue="q", kind="", payload=held.payload)
    holder = pair.worker.speaker.protocol
    may = holder not in EXCLUSIVE and other not in EXCLUSIVE
    if (holder, other) == ("qless", "qless"):
        other_client = pair.house.client(other, "another")
    answer = other_client.asks("complete", theirs)
    assert isinstance(answer, Accepted if may or other == "faktory" else Refused)
    over = 1 not in pair.house.engine.jobs or pair.job.state == DONE
    assert over == may
    assert pair.house.engine.totals.processed == may
    if not may:
        pair.worker.complete(held)


@pytest.mark.parametrize("holder", PROTOCOLS)
def test_delete_completes_or_cancels_a_leased_job(house, holder):
    """A client that waits for the result receives success, or an unknown result."""
    pusher = house.client("workq")
    pusher.push(work())
    waiter = house.client("workq")
    waiter.says(waiter.speaker.result(work().id, house.now, 5))
    house.client(holder).lease("q")
    assert isinstance(house.client("goqueue").asks("cancel", "1"), Accepted)
    answers = waiter.hears()
    if holder in EXCLUSIVE:
        assert answers == []
        assert not house.engine.jobs
    else:
        assert answers[0].succeeded


@pytest.mark.parametrize("other", ["workq", "faktory"])
@pytest.mark.parametrize("holder", EXCLUSIVE)
def test_clients_that_can_fail_a_leased_job(house, holder, other):
    house.client("faktory").push(work())
    house.client(holder).lease("q")
    other_client = house.client(other)
    theirs = Held(id=shown(other_client, house.job()), queue="q", kind="", payload=b"")
    assert isinstance(other_client.asks("fail", theirs), Refused)
    assert house.job().state == LEASED


@pairs()
def test_a_former_holder_cannot_end_the_next_lease(pair):
    """If only the holder can end the second lease."""
    held = pair.push_and_lease(retries=5)
    lose(pair.worker, held)
    pair.house.pass_time(LONG)
    holder = pair.house.client("masenko")
    again = holder.lease("q")
    if pair.worker.speaker.protocol != "masenko":  # its connection is closed
        answer = pair.worker.asks("complete", held)
        silent = pair.worker.speaker.protocol in {"faktory", "goqueue"}
        assert isinstance(answer, Accepted if silent else Refused)
    if pair.worker.speaker.protocol != "goqueue":  # it cancels the job
        holder.complete(again)


@pytest.mark.parametrize("first", PROTOCOLS)
@pytest.mark.parametrize("second", PROTOCOLS)
def test_workers_of_two_jobs_with_one_id(house, first, second):
    """Only Faktory has several jobs with one id. Each worker can end its own, in any order."""
    for number in (1, 2):
        house.client("faktory").push(work(payload=b"[%d]" % number))
    one, two = house.client(first, "one"), house.client(second, "two")
    held = (one.lease("q"), two.lease("q"))
    two.complete(held[1])
    one.complete(held[0])
    assert not house.engine.jobs
    assert house.engine.totals.processed == 2
