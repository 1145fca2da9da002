"""Invariants of the engine, checked after every step of the state machine. `consistent` checks the
invariants that need no model; any test can call it.
"""

from collections import Counter
from typing import Any

from millrace.engine.engine import Engine
from millrace.engine.job import FOREVER, NO_HISTORY, SEQ_ID_PREFIX, LeaseHistory
from millrace.engine.job_timers import TTL_KEY_OFFSET
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from support.plain import values

# Invariants of the engine without a model


def every_job_is_in_one_place(engine: Engine) -> None:
    places = {
        SCHEDULED: list(engine.scheduled.values()),
        BLOCKED: list(engine.blocked.values()),
        READY: [job for queue in engine.queues.values() for job in queue.ready],
        LEASED: list(engine.leased.values()),
        DONE: list(engine.done.values()),
        DEAD: [*engine.dead.values(), *engine.dead_untrimmed.values()],
    }
    for state, jobs in places.items():
        assert all(job.state == state for job in jobs)
        assert all(engine.jobs[job.seq] is job for job in jobs)
    assert sorted(job.seq for jobs in places.values() for job in jobs) == sorted(engine.jobs)
    assert not any(job.expires_at for job in engine.dead.values())


def counters_equal_a_recount(engine: Engine) -> None:
    count = Counter((job.queue, job.state) for job in engine.jobs.values())
    for name, queue in engine.queues.items():
        assert queue.counts == [count.pop((name, state), 0) for state in range(6)]
        assert queue.ready.front_count == sum(job.position < 0 for job in queue.ready)
    assert not count
    retrying = [job for job in engine.jobs.values() if job.state == SCHEDULED and job.failures]
    assert engine.retrying == len(retrying)
    assert len(engine.dead) <= engine.retention.dead_max


def dependents_are_listed_with_their_blockers(engine: Engine) -> None:
    """Each blocked job is listed once with each of its blockers, and no other job is."""
    expected: dict[int, list[int]] = {}
    for seq, job in sorted(engine.jobs.items()):
        for blocker in job.extra.blockers if job.extra else ():
            expected.setdefault(blocker, []).append(seq)
    found = {blocker: sorted(seqs) for blocker, seqs in engine.dependencies.by_blocker.items()}
    assert found == expected


def no_job_waits_for_a_blocker_that_would_fail_it(engine: Engine) -> None:
    for job in engine.blocked.values():
        if engine.rules.policies[job.origin].fails_with_blocker:
            blockers = [seq for seq in job.extra.blockers if seq not in engine.cascades.pending]
            assert all(engine.jobs[blocker].state != DEAD for blocker in blockers)


def every_job_has_its_timers(engine: Engine) -> None:
    """A job has the timers of its state and its expiry; a bound lease has none."""
    for seq, job in engine.jobs.items():
        timed = job.state == SCHEDULED or (job.state in {DONE, DEAD} and not job.expires_at)
        if job.state == LEASED:
            timed = job.deadline != FOREVER or job.holder not in engine.leases.holders
            assert (job.deadline == FOREVER) <= (
                job.holder_protocol in engine.rules.bound_protocols
            )
        assert (engine.timers.when(seq) is not None) == timed
        assert (engine.timers.when(seq + TTL_KEY_OFFSET) is not None) == bool(job.expires_at)


def consistent(engine: Engine) -> None:
    every_job_is_in_one_place(engine)
    counters_equal_a_recount(engine)
    dependents_are_listed_with_their_blockers(engine)
    no_job_waits_for_a_blocker_that_would_fail_it(engine)
    every_job_has_its_timers(engine)
    assert values(NO_HISTORY) == values(LeaseHistory()), "jobs without a history share it"


# Invariants of the machine and its model


def the_engine_is_consistent(machine: Any) -> None:
    consistent(machine.engine)


def every_job_equals_the_model(machine: Any) -> None:
    engine, model = machine.engine, machine.model
    assert sorted(engine.jobs) == sorted(model.jobs)
    for seq, job in engine.jobs.items():
        expected = model.jobs[seq]
        assert (job.seq, job.jid, job.queue) == (seq, expected.jid, expected.queue)
        assert job.state == expected.state
        assert (job.extra.dead_queue if job.extra else "") == expected.dead_queue
        assert (job.attempt, job.failures) == (expected.attempt, expected.failures)
        assert set(job.extra.blockers if job.extra else ()) == expected.blockers
        if job.state in {SCHEDULED, DONE, DEAD}:
            assert job.due_at == expected.due
        if job.state == LEASED:
            assert (job.deadline, job.holder) == (expected.deadline, expected.holder)
    assert engine.totals.processed == model.processed
    assert engine.totals.failures == model.failed


def no_job_waits_for_an_ended_job(machine: Any) -> None:
    for seq in machine.model.of_state(BLOCKED):
        assert machine.model.jobs[seq].blockers <= set(machine.model.jobs)
        assert machine.model.jobs[seq].blockers


def ready_jobs_are_in_order(machine: Any) -> None:
    for name, queue in machine.engine.queues.items():
        expected = [job.seq for job in machine.model.ready(name)]
        assert [job.seq for job in queue.ready.first(1000)] == expected
        assert len(queue.ready) == len(expected)
        assert all(job.queue == name for job in queue.ready)


def known_queues_equal_the_model(machine: Any) -> None:
    engine = machine.engine
    assert {
        q.name: q.paused for q in engine.queues.values() if q.registered
    } == machine.model.queues
    for name, queue in engine.queues.items():
        assert queue.name == name
        assert queue.registered or queue.waiters or any(queue.counts), "the queue is unused"


def every_jid_is_found(machine: Any) -> None:
    by_jid: dict[str, list[int]] = {f"job-{number}": [] for number in range(6)}
    by_jid |= {f"{SEQ_ID_PREFIX}{seq:012x}": [] for seq in range(1, 9)}
    for seq in sorted(machine.model.jobs):
        by_jid.setdefault(machine.model.jobs[seq].jid, []).append(seq)
    for jid, seqs in by_jid.items():
        found = machine.engine.find_all(jid)
        assert [job.seq for job in found] == seqs
        assert machine.engine.find(jid) is (found[0] if found else None)


def timers_belong_to_jobs_and_waiters(machine: Any) -> None:
    engine, expected = machine.engine, {}
    for seq, job in engine.jobs.items():
        if job.state == LEASED:
            if (
                job.holder_protocol in engine.rules.bound_protocols
                and job.holder not in engine.leases.holders
            ):
                expected[seq] = 0  # the job ends as soon as the store is available
            elif job.deadline != FOREVER:
                expected[seq] = job.deadline
        elif job.state == SCHEDULED or (job.state in {DONE, DEAD} and not job.expires_at):
            expected[seq] = job.due_at
        if job.expires_at:
            expected[seq + TTL_KEY_OFFSET] = job.expires_at
    expected |= {waiter.key: until for waiter, until in machine.waiting if until != FOREVER}
    assert len(engine.timers) == len(expected)
    for key, time in expected.items():
        set_for = engine.timers.when(key)
        postponed = key > 0 and (engine.unavailable_reason or machine.now < machine.lenient_until)
        assert set_for == time or (postponed and set_for > time)


def the_dead_are_in_the_order_of_their_deaths(machine: Any) -> None:
    deaths = [job.due_at for job in machine.engine.dead.values()]
    assert deaths == sorted(deaths)


def waiters_are_only_in_their_queues(machine: Any) -> None:
    expected: dict[str, list[int]] = {}
    for waiter, _ in machine.waiting:
        for name in set(waiter.queues) if waiter.key not in machine.not_offered else ():
            expected.setdefault(name, []).append(waiter.key)
    found = {n: list(q.waiters) for n, q in machine.engine.queues.items() if q.waiters}
    assert found == expected


def no_waiter_waits_while_a_job_is_ready(machine: Any) -> None:
    if machine.engine.unavailable_reason:
        return
    for queue in machine.engine.queues.values():
        assert queue.paused or not (queue.waiters and len(queue.ready)), queue.name


INVARIANTS = (
    the_engine_is_consistent,
    every_job_equals_the_model,
    no_job_waits_for_an_ended_job,
    ready_jobs_are_in_order,
    known_queues_equal_the_model,
    every_jid_is_found,
    timers_belong_to_jobs_and_waiters,
    the_dead_are_in_the_order_of_their_deaths,
    waiters_are_only_in_their_queues,
    no_waiter_waits_while_a_job_is_ready,
)
