"""How a lease is held, renewed and lost is the rule of the protocol that leased the job, whoever
pushed it: by time, by its connection, or by the clock of whoever pops.
"""

import pytest
from pairs import GRACE, HEARTBEAT, LONG, PROTOCOLS, lose, pairs, shown, work

from millrace.engine.job import FOREVER
from millrace.engine.states import DONE, LEASED
from speakers import Accepted, Held, Leased, Nothing, Refused
from wires import SECOND

#: Whose leases end when a time is over that came with the job.
TIMED = ("workq", "faktory", "goqueue", "http")
#: How long that is for jobs of those who cannot say it.
UNSAID = {"masenko": 1800, "qless": 1800}
#: Whose leases only their holder may end.
EXCLUSIVE = ("masenko", "qless", "http")


@pytest.mark.parametrize("worker", TIMED)
@pytest.mark.parametrize("pusher", PROTOCOLS)
def test_a_lease_ends_with_its_time(house, pusher, worker):
    house.client(pusher).push(work(ttr=100))
    house.client(worker).lease("q")
    time = UNSAID.get(pusher, 100)
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
def test_a_lease_of_masenko_lasts_as_long_as_its_connection(house, pusher):
    house.client(pusher).push(work(ttl=100 * 86_400))
    worker = house.client("masenko")
    held = worker.lease("q")
    assert house.job().deadline == FOREVER
    house.pass_time(30 * 86_400)
    worker.complete(held)


@pytest.mark.parametrize("pusher", PROTOCOLS)
def test_a_lease_of_qless_ends_when_somebody_pops_and_its_grace_is_over(house, pusher):
    house.client(pusher).push(work(retries=3))
    worker, other = house.client("qless", "one"), house.client("qless", "two")
    held = worker.lease("q")
    house.pass_time(LONG)
    assert house.job().state == LEASED  # nobody has popped
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
def test_a_worker_of_qless_may_still_complete_in_its_time_of_grace(house, pusher):
    house.client(pusher).push(work())
    worker, other = house.client("qless", "one"), house.client("qless", "two")
    held = worker.lease("q")
    house.pass_time(HEARTBEAT)
    assert isinstance(other.asks("lease", "q"), Nothing)
    worker.complete(held)


# Who may end it


@pytest.mark.parametrize("other", ["workq", "masenko", "faktory", "qless"])
@pairs()
def test_who_may_complete_what_somebody_has(pair, other):
    """A lease of Workq, Faktory or Go Job Queue anybody who knows the id and whose protocol does not
    ask for more; a lease of Masenko, Qless or HTTP only its holder.
    """
    held = pair.push_and_lease()
    # The same name does not make it the same worker.
    stranger = pair.house.client(other, pair.worker.speaker.name)
    theirs = Held(id=shown(stranger, pair.job), queue="q", kind="", payload=held.payload)
    holder = pair.worker.speaker.protocol
    may = holder not in EXCLUSIVE and other not in EXCLUSIVE
    if (holder, other) == ("qless", "qless"):
        stranger = pair.house.client(other, "another")
    answer = stranger.asks("complete", theirs)
    assert isinstance(answer, Accepted if may or other == "faktory" else Refused)
    over = 1 not in pair.house.engine.jobs or pair.job.state == DONE
    assert over == may
    assert pair.house.engine.totals.processed == may
    if not may:
        pair.worker.complete(held)


@pytest.mark.parametrize("holder", PROTOCOLS)
def test_delete_completes_what_anybody_may_complete_and_takes_away_all_else(house, holder):
    """Whoever waits for the end is told that it succeeded, or that nobody knows."""
    pusher = house.client("workq")
    pusher.push(work())
    waiter = house.client("workq")
    waiter.says(waiter.speaker.result(work().id, house.now, 5))
    house.client(holder).lease("q")
    assert isinstance(house.client("goqueue").asks("cancel", "1"), Accepted)
    heard = waiter.hears()
    if holder in EXCLUSIVE:
        assert heard == []
        assert not house.engine.jobs
    else:
        assert heard[0].succeeded


@pytest.mark.parametrize("other", ["workq", "faktory"])
@pytest.mark.parametrize("holder", EXCLUSIVE)
def test_who_may_fail_what_somebody_has(house, holder, other):
    house.client("faktory").push(work())
    house.client(holder).lease("q")
    stranger = house.client(other)
    theirs = Held(id=shown(stranger, house.job()), queue="q", kind="", payload=b"")
    assert isinstance(stranger.asks("fail", theirs), Refused)
    assert house.job().state == LEASED


@pairs()
def test_who_has_lost_a_job_cannot_end_what_another_has(pair):
    """If the other's lease is one that only its holder may end."""
    held = pair.push_and_lease(retries=5)
    lose(pair.worker, held)
    pair.house.pass_time(LONG)
    holder = pair.house.client("masenko")
    again = holder.lease("q")
    if pair.worker.speaker.protocol != "masenko":  # whose connection is gone
        answer = pair.worker.asks("complete", held)
        silent = pair.worker.speaker.protocol in {"faktory", "goqueue"}
        assert isinstance(answer, Accepted if silent else Refused)
    if pair.worker.speaker.protocol != "goqueue":  # it takes the job away
        holder.complete(again)


@pytest.mark.parametrize("first", PROTOCOLS)
@pytest.mark.parametrize("second", PROTOCOLS)
def test_workers_of_two_jobs_of_one_id(house, first, second):
    """Only Faktory has several jobs of one id. Each worker can end its own, in any order."""
    for number in (1, 2):
        house.client("faktory").push(work(payload=b"[%d]" % number))
    one, two = house.client(first, "one"), house.client(second, "two")
    held = (one.lease("q"), two.lease("q"))
    two.complete(held[1])
    one.complete(held[0])
    assert not house.engine.jobs
    assert house.engine.totals.processed == 2
