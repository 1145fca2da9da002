"""A job that crosses protocols survives a crash of the server: its payload, its worker's rights,
and its pusher's rules.
"""

from pairs import LONG, fail_attempt, pairs, shown, work

from millrace.engine.states import DONE, LEASED, READY, SCHEDULED


@pairs()
def test_a_worker_completes_its_job_after_a_crash(pair):
    """The worker reconnects under its name. A Masenko lease ends with the connection, without a
    failure.
    """
    held = pair.push_and_lease(retries=3)
    pair.house.crash()
    again = pair.house.client(pair.worker.speaker.protocol)
    if pair.worker.speaker.protocol == "masenko":
        assert (pair.job.state, pair.job.failures) == (READY, 0)
        held = again.lease("q")
    assert pair.job.state == LEASED
    again.complete(held)
    assert 1 not in pair.house.engine.jobs or pair.job.state == DONE


@pairs()
def test_a_worker_completes_after_a_crash_a_job_whose_lease_was_not_committed(pair):
    """The lease is lost, but the worker has the job. A Masenko lease ends with its connection."""
    pair.pusher.push(work(1))
    pair.worker.complete(pair.worker.lease("q"))
    pair.pusher.push(work(2))
    pair.house.hold_commits()
    held = pair.worker.lease("q")
    pair.house.crash()
    assert pair.house.job(2).state == READY
    again = pair.house.client(pair.worker.speaker.protocol)
    if pair.worker.speaker.protocol == "masenko":
        held = again.lease("q")
    again.complete(held)
    assert 2 not in pair.house.engine.jobs or pair.house.job(2).state == DONE


@pairs()
def test_the_pushers_rules_hold_after_a_crash(pair):
    held = pair.push_and_lease(retries=3)
    fail_attempt(pair.worker, held)
    before = (
        pair.job.state,
        pair.job.due_at,
        pair.job.failures,
        pair.house.engine.payload(pair.job),
    )
    assert before[0] in {READY, SCHEDULED}
    pair.house.crash()
    assert (
        pair.job.state,
        pair.job.due_at,
        pair.job.failures,
        pair.house.engine.payload(pair.job),
    ) == before
    again = pair.lease_again()
    assert again.id == shown(pair.pusher, pair.job)


@pairs()
def test_a_lease_of_a_lost_worker_expires_after_a_crash(pair):
    """The holder never reconnects."""
    pair.push_and_lease(retries=3)
    pair.house.crash()
    pair.house.pass_time(LONG)
    if pair.worker.speaker.protocol == "qless":  # by the clock of the popping worker
        assert pair.job.state == LEASED
        for _ in range(2):
            client = pair.house.client("qless", "another")
            client.says(client.speaker.lease("q", pair.house.now))
            client.hears()
            pair.house.pass_time(LONG)
        assert pair.job.state != LEASED or pair.job.holder == "another"
    else:
        assert pair.job.state == READY


@pairs(push=("dependency",))
def test_a_dependency_survives_a_crash(pair):
    first = pair.pusher.push(work(1))
    pair.pusher.push(work(2, after=(first,)))
    pair.house.crash()
    worker = pair.house.client(pair.worker.speaker.protocol)
    held = worker.lease("q")
    worker.finds_nothing("q")
    worker.complete(held)
    assert worker.lease("q").id == shown(worker, pair.house.job(2))
