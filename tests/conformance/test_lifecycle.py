"""The main suite: the life of a job for each pair of pushing and working protocols."""

import pytest
from pairs import LONG, PROTOCOLS, able, lose, outlive_lock, pairs, shown, uid, work

from millrace.engine.states import BLOCKED, DONE, LEASED, READY, SCHEDULED
from speakers import ALL_SPEAKERS, Accepted, Held, Leased, Nothing, Refused
from wires import SECOND

# Push, lease, complete


@pairs()
def test_a_job_is_worked_once(pair):
    held = pair.push_and_lease()
    assert (held.queue, pair.job.state, pair.job.attempt) == ("q", LEASED, 1)
    pair.colleague().finds_nothing("q")
    pair.worker.complete(held)
    assert 1 not in pair.house.engine.jobs or pair.job.state == DONE
    assert pair.house.engine.totals.processed == 1
    pair.worker.finds_nothing("q")


@pairs()
def test_jobs_are_leased_in_push_order(pair):
    pushed = [pair.pusher.push(work(number)) for number in range(1, 6)]
    held = [pair.worker.lease("q") for _ in pushed]
    jobs = pair.house.engine.jobs
    assert [each.id for each in held] == [shown(pair.worker, jobs[n]) for n in range(1, 6)]
    for each in reversed(held):  # in any order
        pair.worker.complete(each)
    assert pair.house.engine.totals.processed == 5


@pairs()
def test_a_worker_gets_only_jobs_of_its_queue(pair):
    pair.pusher.push(work(queue="one"))
    pair.worker.finds_nothing("two")
    assert pair.worker.lease("one").queue == "one"


@pairs()
def test_pipelined_commands(pair):
    """Pipelined pushes and leases are answered in order."""
    pusher, worker = pair.pusher, pair.worker
    pusher.says(b"".join(pusher.speaker.push(work(n), pusher.now) for n in range(1, 4)))
    assert [type(answer) for answer in pusher.hears()] == [Accepted] * 3
    worker.says(b"".join(worker.speaker.lease("q", worker.now) for _ in range(3)))
    answers = worker.hears()
    assert [type(answer) for answer in answers] == [Leased] * 3
    worker.says(b"".join(worker.speaker.complete(a.held, worker.now) for a in answers))
    assert [type(answer) for answer in worker.hears()] == [Accepted] * 3


# Waiting


@pairs(work=("wait",))
def test_a_waiting_client_is_woken(pair):
    pair.worker.waits("q", 5)
    pair.pusher.push(work())
    held = pair.worker.hears_held()
    assert held.id == shown(pair.worker, pair.job)
    pair.worker.complete(held)


@pairs(work=("wait",))
def test_waiting_clients_are_woken_in_order_for_one_job_each(pair):
    colleague = pair.colleague()
    pair.worker.waits("q", 5)
    colleague.waits("q", 5)
    for number in (1, 2):
        pair.pusher.push(work(number))
    jobs = pair.house.engine.jobs
    assert pair.worker.hears_held().id == shown(pair.worker, jobs[1])
    assert colleague.hears_held().id == shown(pair.worker, jobs[2])


@pairs(work=("wait",))
def test_a_disconnected_waiting_client_gets_no_job(pair):
    colleague = pair.colleague()
    pair.worker.waits("q", 5)
    pair.worker.hangs_up()
    pair.pusher.push(work())
    assert (pair.job.state, pair.job.attempt) == (READY, 0)
    assert colleague.lease("q").id == shown(pair.worker, pair.job)


@pytest.mark.parametrize("protocol", able("wait"))
def test_a_wait_times_out(house, protocol):
    worker = house.client(protocol)
    worker.waits("q", 2)
    house.pass_time(2)
    assert isinstance(worker.hears_one(), Nothing)


# Schedule


@pairs(push=("schedule",))
def test_a_scheduled_job(pair):
    due = pair.house.now + 100 * SECOND
    pair.pusher.push(work(due=due))
    assert pair.job.state == SCHEDULED
    pair.worker.finds_nothing("q")
    pair.house.advance(due - pair.house.now - 1)
    assert pair.job.state == SCHEDULED
    pair.house.advance(1)
    pair.worker.complete(pair.worker.lease("q"))


@pairs(push=("schedule",), work=("wait",))
def test_a_waiting_client_gets_a_job_when_it_is_due(pair):
    pair.pusher.push(work(due=pair.house.now + SECOND))
    pair.worker.waits("q", 10)
    pair.house.pass_time(1)
    assert pair.worker.hears_held().id == shown(pair.worker, pair.job)


@pairs(push=("schedule",))
def test_a_due_time_in_the_past_is_immediate(pair):
    pair.pusher.push(work(due=pair.house.now - SECOND))
    pair.worker.complete(pair.worker.lease("q"))


# Priority


@pairs(push=("priority",))
def test_higher_priority_is_first(pair):
    ranks = (-3, -1, -1, 0, -2)
    for number, rank in enumerate(ranks, 1):
        pair.pusher.push(work(number, rank=rank))
    jobs = pair.house.engine.jobs
    ids = [shown(pair.worker, jobs[number]) for number in (4, 2, 3, 5, 1)]
    assert [pair.worker.lease("q").id for _ in ranks] == ids


# Dependency


@pairs(push=("dependency",))
def test_a_job_waits_for_its_dependency(pair):
    first = pair.pusher.push(work(1))
    pair.pusher.push(work(2, after=(first,)))
    assert pair.house.job(2).state == BLOCKED
    held = pair.worker.lease("q")
    pair.worker.finds_nothing("q")
    pair.worker.complete(held)
    assert pair.worker.lease("q").id == shown(pair.worker, pair.house.job(2))


@pairs(push=("dependency", "schedule"))
def test_a_job_waits_for_its_dependency_and_then_for_its_due_time(pair):
    first = pair.pusher.push(work(1))
    pair.pusher.push(work(2, after=(first,), due=pair.house.now + 100 * SECOND))
    pair.worker.complete(pair.worker.lease("q"))
    assert pair.house.job(2).state == SCHEDULED
    pair.worker.finds_nothing("q")
    pair.house.pass_time(100)
    assert pair.worker.lease("q").id == shown(pair.worker, pair.house.job(2))


@pytest.mark.parametrize("waiting", able("dependency"))
@pytest.mark.parametrize("awaited", PROTOCOLS)
def test_a_job_can_depend_on_a_job_of_another_protocol(house, waiting, awaited):
    house.client(awaited).push(work(1))
    client = house.client(waiting)
    client.push(work(2, after=(shown(client, house.job()),)))
    assert house.job(2).state == BLOCKED
    worker = house.client(awaited)
    worker.complete(worker.lease("q"))
    assert client.lease("q").id == shown(client, house.job(2))


@pytest.mark.parametrize("canceller", able("cancel"))
@pytest.mark.parametrize("waiting", able("dependency"))
def test_a_cancelled_dependency_is_removed(house, waiting, canceller):
    """Qless refuses to cancel it alone."""
    client, other = house.client(waiting), house.client(canceller)
    first = client.push(work(1))
    client.push(work(2, after=(first,)))
    answer = other.asks("cancel", shown(other, house.job()))
    refused = canceller == "qless"
    assert isinstance(answer, Refused if refused else Accepted)
    assert house.job(2).state == (BLOCKED if refused else READY)


# Cancel


@pytest.mark.parametrize("canceller", able("cancel"))
@pairs()
def test_a_job_is_cancelled(pair, canceller):
    pair.pusher.push(work())
    client = pair.house.client(canceller)
    assert isinstance(client.asks("cancel", shown(client, pair.job)), Accepted)
    assert not pair.house.engine.jobs
    pair.worker.finds_nothing("q")


@pytest.mark.parametrize("canceller", able("cancel"))
@pairs()
def test_a_leased_job_is_cancelled(pair, canceller):
    held = pair.push_and_lease()
    client = pair.house.client(canceller)
    assert isinstance(client.asks("cancel", shown(client, pair.job)), Accepted)
    assert not [job for job in pair.house.engine.jobs.values() if job.state != DONE]
    pair.worker.says(pair.worker.speaker.complete(held, pair.worker.now))
    answer = pair.worker.hears_one()
    assert isinstance(answer, Accepted if pair.worker.speaker.protocol == "faktory" else Refused)


# Renew and release: only Qless and HTTP have them


@pairs(work=("renew",))
def test_a_renewed_lease_does_not_expire(pair):
    held = pair.push_and_lease()
    for _ in range(5):
        pair.house.pass_time(50)
        assert isinstance(pair.worker.asks("renew", held), Accepted)
        pair.colleague().finds_nothing("q")
    pair.worker.complete(held)


@pairs(work=("release",))
def test_a_released_job_is_ready_immediately_without_a_failure(pair):
    held = pair.push_and_lease()
    assert isinstance(pair.worker.asks("release", held), Accepted)
    # The token of an HTTP lease and the history of a Qless job need a number for each attempt.
    attempt = int(pair.worker.speaker.protocol in {"http", "qless"})
    assert (pair.job.state, pair.job.failures, pair.job.attempt) == (READY, 0, attempt)
    again = pair.house.client(pair.pusher.speaker.protocol).lease("q")
    assert again.id == shown(pair.pusher, pair.job)


@pairs(work=("release",))
def test_a_released_job_has_precedence_only_until_its_next_lease(pair):
    """After the next lease, over any protocol, the job has no precedence any more."""
    held = pair.push_and_lease()
    pair.worker.asks("release", held)
    for protocol in PROTOCOLS:
        client = pair.house.client(protocol)
        again = client.lease("q")
        assert pair.job.rank == 0, protocol
        lose(client, again) if protocol != "qless" else client.asks("release", again)
        pair.house.pass_time(LONG)


# Repeated pushes and unknown jobs


def test_a_repeated_push(house):
    """Faktory clients repeat a push and get one job; Workq and HTTP clients get an error; Qless
    puts the job again; the remaining protocols have no client ids.
    """
    for number, (protocol, count) in enumerate(
        {"faktory": 1, "workq": 1, "qless": 1, "http": 1, "masenko": 2, "goqueue": 2}.items()
    ):
        client = house.client(protocol)
        pushed = work(number, queue=protocol)
        client.push(pushed)
        client.says(client.speaker.push(pushed, client.now))
        refused = protocol in {"workq", "http"}
        assert isinstance(client.hears_one(), Refused if refused else Accepted)
        assert house.engine.queues[protocol].counts[READY] == count, protocol


@pytest.mark.parametrize("first", able("id"))
@pytest.mark.parametrize("second", able("id"))
def test_an_id_in_use_by_another_protocol(house, first, second):
    """Workq and HTTP refuse it, Qless moves the job, and Faktory creates a second job, unless the
    unit is the same.
    """
    house.client(first).push(work())
    client = house.client(second)
    client.says(client.speaker.push(work(queue="other"), client.now))
    refused = second in {"workq", "http"}
    assert isinstance(client.hears_one(), Refused if refused else Accepted)
    jobs = [(job.jid, job.queue) for job in house.engine.jobs.values()]
    moved, added = second == "qless", second == "faktory"
    assert jobs == [
        (uid(1), "other" if moved else "q"),
        *([(uid(1), "other")] if added else []),
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_commands_on_a_missing_job_have_no_effect(house, protocol):
    """Completing, failing, renewing and cancelling a missing job has no effect."""
    client = house.client(protocol)
    number = uid(9) if "id" in ALL_SPEAKERS[protocol].can else "9"
    missing = Held(id=number, queue="q", kind="", payload=b"[]")
    for command in ("complete", "fail", "bury", "renew", "release"):
        if command == "complete" or command in client.speaker.can:
            answer = client.asks(command, missing)
            harmless = (protocol, command) == ("faktory", "complete")
            assert isinstance(answer, Accepted if harmless else Refused), command
    if "cancel" in client.speaker.can:
        harmless = protocol == "qless"
        assert isinstance(client.asks("cancel", number), Accepted if harmless else Refused)
    assert not house.engine.jobs
    assert house.engine.totals.processed == 0


@pairs()
def test_a_job_is_completed_once(pair):
    held = pair.push_and_lease()
    pair.worker.complete(held)
    harmless = pair.worker.speaker.protocol == "faktory"
    answer = pair.worker.asks("complete", held)
    assert isinstance(answer, Accepted if harmless else Refused)
    assert pair.house.engine.totals.processed == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_several_jobs_with_one_id_are_all_leased(house, protocol):
    """Only Faktory has several jobs with one id; a worker of any protocol can end all that it
    has.
    """
    for number in (1, 2, 3):
        house.client("faktory").push(work(payload=b"[%d]" % number))
    worker = house.client(protocol)
    held = [worker.lease("q") for _ in range(3)]
    for each in held:
        worker.complete(each)
    assert not house.engine.jobs
    assert house.engine.totals.processed == 3


def test_a_qless_lock_stays_without_a_pop(house):
    """The specification: a lease taken over Qless ends by the clock of a client that pops over
    Qless, never by the server's clock. Other workers of the queue get the job after that.
    """
    faktory = house.client("faktory")
    faktory.push(work())
    house.client("qless").lease("q")
    house.pass_time(LONG)
    faktory.finds_nothing("q")
    assert house.job().state == LEASED
    outlive_lock(house, "q")
    assert house.job().state == SCHEDULED  # by Faktory's rules
    house.pass_time(LONG)
    assert faktory.lease("q").failures == 1
