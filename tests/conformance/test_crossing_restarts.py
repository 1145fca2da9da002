"""A job that crosses survives a crash of the server: its payload, its worker's rights, its pusher's
rules.
"""

from pairs import LONG, end_badly, pairs, shown, work

from millrace.engine.states import DONE, LEASED, READY, SCHEDULED


@pairs()
def test_a_worker_completes_after_a_crash_what_it_had_before(pair):
    """It comes back under its name. A lease of Masenko ended with the connection, and is nobody's
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
    """The lease is lost, but the worker has the job. A lease of Masenko ends with its connection."""
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
    end_badly(pair.worker, held)
    before = (pair.job.state, pair.job.due, pair.job.failures, pair.job.payload)
    assert before[0] in {READY, SCHEDULED}
    pair.house.crash()
    assert (pair.job.state, pair.job.due, pair.job.failures, pair.job.payload) == before
    again = pair.comes_back()
    assert again.id == shown(pair.pusher, pair.job)


@pairs()
def test_a_lease_that_was_lost_in_a_crash_ends_in_its_time(pair):
    """Whoever had the job is never heard of again."""
    pair.push_and_lease(retries=3)
    pair.house.crash()
    pair.house.pass_time(LONG)
    if pair.worker.speaker.protocol == "qless":  # by the clock of whoever pops
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
def test_who_waits_for_a_job_waits_for_it_after_a_crash(pair):
    first = pair.pusher.push(work(1))
    pair.pusher.push(work(2, after=(first,)))
    pair.house.crash()
    worker = pair.house.client(pair.worker.speaker.protocol)
    held = worker.lease("q")
    worker.finds_nothing("q")
    worker.complete(held)
    assert worker.lease("q").id == shown(worker, pair.house.job(2))
