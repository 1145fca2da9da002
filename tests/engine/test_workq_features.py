"""Engine features that Workq uses: time to live, retained results and their waiters, fixed
positions, transient jobs.
"""

import sqlite3
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from failing_stores import FailingMemoryStore
from millrace.engine.engine import Engine
from millrace.engine.errors import NotLeased
from millrace.engine.job import AFTER_ARRIVALS, SECOND, Job
from millrace.engine.job_timers import TTL_KEY_OFFSET
from millrace.engine.states import DEAD, DONE, GONE, LEASED, READY, SCHEDULED
from millrace.engine.timers import UNAVAILABLE_RETRY
from millrace.engine.waiters import Waiter
from millrace.protocols.registry import FAKTORY, WORKQ
from millrace.protocols.spec import protocol_rules
from millrace.protocols.workq.spec import WorkqPolicy
from millrace.store import MemoryStore, SqliteStore
from millrace.store.records import decode_any, decode_job, encode
from older_formats import downgrade
from scene import START, Scene, commit, commit_or_revert, durable_state, ready_jids, recover
from support.plain import copy_of, values


class WorkqScene(Scene):
    def push(self, jid: str = "job-1", queue: str = "default", **fields) -> Job:
        life = fields.pop("life", 60)
        fields.setdefault("retries", 0)
        if not fields.get("transient"):
            fields.setdefault("expires_at", self.now + int(life * SECOND))
        return super().push(
            jid, queue, origin=WORKQ, lease_duration=fields.pop("lease_duration", SECOND), **fields
        )

    def awaits(self, job: Job, seconds: float = 10, *, owns_job: bool = False) -> Waiter:
        waiter = Waiter((), "", WORKQ, None)
        waiter.owns_job = owns_job
        self.engine.add_waiter(waiter, self.now + int(seconds * SECOND), job)
        return waiter

    def notifications(self) -> list[tuple[Waiter, str, bool, bytes]]:
        outcomes, self.engine.waiters.outcomes = self.engine.waiters.outcomes, []
        return [(waiter, o.cause, o.succeeded, o.result) for waiter, o in outcomes]


# Time to live


def in_state(scene: WorkqScene, state: int) -> Job:
    if state == SCHEDULED:
        return scene.push(due_at=scene.now + 3600 * SECOND)
    job = scene.push(lease_duration=3600 * SECOND)
    if state == LEASED:
        scene.lease()
    if state == DONE:
        scene.engine.complete(job, scene.now, WORKQ, result=b"r", allow_unleased=True)
    if state == DEAD:
        scene.engine.fail(job, scene.now, WORKQ, "", "", [], allow_unleased=True)
    assert job.state == state
    return job


@pytest.mark.parametrize("state", [SCHEDULED, READY, LEASED, DONE, DEAD])
def test_a_job_expires_in_every_state(state):
    scene = WorkqScene()
    job = in_state(scene, state)
    scene.advance(59.999999)
    assert scene.engine.jobs
    scene.advance(0.000001)
    assert not scene.engine.jobs
    assert not scene.engine.by_jid
    assert len(scene.engine.timers) == 0
    finished = state in {DONE, DEAD}
    assert scene.causes()[-1] == ("purged" if finished else "evicted")
    assert scene.engine.timer_counts.evicted == (not finished)
    assert scene.engine.queues["default"].counts == [0] * 6
    assert not scene.engine.dead_untrimmed
    assert not scene.engine.dead
    assert job.state == GONE


@pytest.mark.parametrize("state", [SCHEDULED, READY, LEASED, DONE, DEAD])
@pytest.mark.parametrize("store_type", [MemoryStore, SqliteStore])
def test_the_expiry_is_the_same_after_a_restart(tmp_path: Path, store_type, state):
    store = store_type(tmp_path) if store_type is SqliteStore else store_type()
    scene = WorkqScene()
    in_state(scene, state)
    commit(scene.engine, store)
    again = Scene(recover(store))
    again.now = scene.now
    again.advance(59.999999)
    assert [job.state for job in again.engine.jobs.values()] == [state]
    again.advance(0.000001)
    assert not again.engine.jobs
    store.close()


def test_a_removed_job_leaves_no_timer():
    scene = WorkqScene()
    scene.engine.cancel(scene.push(), scene.now)
    assert len(scene.engine.timers) == 0


def test_a_flush_removes_expiry_timers():
    scene = WorkqScene()
    scene.push()
    scene.engine.flush(scene.now)
    assert len(scene.engine.timers) == 0


def test_no_job_expires_while_the_store_fails():
    scene = WorkqScene()
    scene.push(life=1)
    scene.engine.unavailable_reason = "disk full"
    scene.advance(5)
    assert scene.engine.jobs
    scene.engine.resume(scene.now)
    scene.advance(UNAVAILABLE_RETRY / SECOND)
    assert not scene.engine.jobs


def test_jobs_with_an_expiry_do_not_count_towards_the_dead_set_limit():
    scene = WorkqScene(dead_max=2)
    kept = [in_state(scene, DEAD) for _ in range(5)]
    for number in range(4):
        scene.engine.kill(Scene.push(scene, f"faktory-{number}"), scene.now)
    assert len(scene.engine.dead) == 2
    assert scene.engine.retention.dead_dropped == 2
    assert all(job.state == DEAD for job in kept)


# Results


def test_a_result_is_retained_until_the_job_expires():
    scene = WorkqScene()
    job = scene.pushed_and_leased()
    scene.engine.complete(job, scene.now, WORKQ, result=b"42")
    assert (job.state, job.extra.result, job.due_at) == (DONE, b"42", job.expires_at)


def test_a_workq_job_completed_by_another_protocol_is_retained():
    scene = WorkqScene()
    job = scene.pushed_and_leased()
    scene.engine.complete(job, scene.now, FAKTORY)
    assert job.state == DONE


def test_all_waiters_of_a_result_are_notified():
    scene = WorkqScene()
    job = scene.pushed_and_leased()
    waiters = [scene.awaits(job) for _ in range(3)]
    scene.engine.complete(job, scene.now, WORKQ, result=b"42")
    assert scene.notifications() == [(waiter, "completed", True, b"42") for waiter in waiters]
    assert not scene.engine.waiters.awaited_job_count
    scene.advance(11)
    assert scene.timed_out() == []


def test_only_the_final_failure_notifies_waiters():
    scene = WorkqScene()
    job = scene.pushed_and_leased(retries=2)
    waiter = scene.awaits(job)
    scene.engine.fail(job, scene.now, WORKQ, "Failed", "one", [], result=b"one")
    assert (scene.notifications(), job.state) == ([], READY)
    scene.lease()
    scene.engine.fail(job, scene.now, WORKQ, "Failed", "two", [], result=b"two")
    assert scene.notifications() == [(waiter, "failed", False, b"two")]
    assert (job.state, job.extra.result) == (DEAD, b"two")


def test_a_failure_without_a_result_has_its_message():
    scene = WorkqScene()
    job = scene.pushed_and_leased()
    waiter = scene.awaits(job)
    scene.fail(job)
    assert scene.notifications() == [(waiter, "failed", False, b"it broke")]


def test_a_client_is_not_notified_of_a_removed_job():
    scene = WorkqScene()
    job = scene.push()
    waiter = scene.awaits(job)
    scene.engine.cancel(job, scene.now)
    scene.advance(9.999)
    assert (scene.notifications(), scene.timed_out()) == ([], [])
    scene.advance(0.001)
    assert (scene.notifications(), scene.timed_out()) == ([], [waiter])
    assert not scene.engine.waiters.awaited_job_count


def test_a_cancelled_waiter_is_not_notified():
    scene = WorkqScene()
    job = scene.pushed_and_leased()
    left, stays = scene.awaits(job), scene.awaits(job)
    scene.engine.cancel_wait(left)
    scene.engine.complete(job, scene.now, WORKQ)
    assert [waiter for waiter, *_ in scene.notifications()] == [stays]


def test_a_waiter_keeps_waiting_when_a_change_set_is_reverted():
    store = FailingMemoryStore()
    scene = WorkqScene()
    job = scene.pushed_and_leased()
    commit(scene.engine, store)
    waiter = scene.awaits(job)
    scene.engine.release(job, scene.now)
    store.fail = "commit"
    assert not commit_or_revert(scene.engine, store)
    scene.engine.resume(scene.now)
    (job,) = scene.engine.jobs.values()
    assert job.state == LEASED
    scene.engine.complete(job, scene.now, WORKQ, result=b"ok")
    assert scene.notifications() == [(waiter, "completed", True, b"ok")]


def test_a_job_without_a_lease_is_completed_only_with_permission():
    scene = WorkqScene()
    job = scene.push()
    with pytest.raises(NotLeased):
        scene.complete(job)
    with pytest.raises(NotLeased):
        scene.fail(job)
    scene.engine.complete(job, scene.now, WORKQ, allow_unleased=True)
    with pytest.raises(NotLeased):
        scene.engine.complete(job, scene.now, WORKQ, allow_unleased=True)
    with pytest.raises(NotLeased):
        scene.engine.fail(job, scene.now, WORKQ, "", "", [], allow_unleased=True)


def test_an_end_without_a_lease_has_no_run_time():
    scene = WorkqScene()
    job = scene.pushed_and_leased()
    scene.engine.release(job, scene.now)
    scene.advance(5)
    scene.engine.complete(job, scene.now, WORKQ, allow_unleased=True)
    assert scene.events()[-1].run == 0


# Ends without a report of a worker


def test_a_client_that_waits_for_a_job_is_notified_when_it_is_killed():
    scene = WorkqScene()
    job = scene.push()
    waiter = scene.awaits(job)
    scene.engine.kill(job, scene.now)
    assert scene.notifications() == [(waiter, "killed", False, b"")]


def test_a_client_that_waits_for_a_job_is_notified_when_its_time_to_live_ends():
    scene = WorkqScene()
    job = scene.push(life=5)
    waiter = scene.awaits(job, 10)
    scene.advance(5)
    assert scene.notifications() == [(waiter, "evicted", False, b"")]
    scene.advance(10)
    assert scene.timed_out() == []


# Positions


def test_a_job_returns_to_its_old_position():
    scene = WorkqScene()
    for jid in ("a", "b", "c"):
        scene.push(jid, retries=9)
        scene.now += 1
    first = scene.lease()
    scene.advance(1)  # expired
    assert ready_jids(scene.engine) == ["a", "b", "c"]
    scene.lease()
    scene.fail(first)
    assert ready_jids(scene.engine) == ["a", "b", "c"]


def test_a_late_fixed_position_is_after_all_arrivals():
    scene = WorkqScene()
    scene.push(
        "late", due_at=scene.now + 2 * SECOND, position=AFTER_ARRIVALS + scene.now + 2 * SECOND
    )
    scene.push("early", due_at=scene.now + SECOND, position=AFTER_ARRIVALS + scene.now + SECOND)
    scene.advance(3)
    scene.push("added")
    assert ready_jids(scene.engine) == ["added", "early", "late"]
    assert scene.engine.positions.last == scene.now
    store = MemoryStore()
    commit(scene.engine, store)
    engine = recover(store)
    assert ready_jids(engine) == ["added", "early", "late"]
    assert engine.positions.last == scene.now + 1


# Leasing from a random queue


def test_the_choice_is_uniform_over_queues_with_jobs():
    counts: Counter[str] = Counter()
    scene = WorkqScene(Engine(Random(5), protocol_rules()))
    for number in range(3000):
        scene.push(f"a{number}", "a")
        scene.push(f"b{number}", "b", rank=9)
        if number % 3 == 0:
            scene.push(f"c{number}", "c")
    for _ in range(1500):
        counts[
            scene.engine.lease(
                ("a", "b", "c", "empty"), "", WORKQ, scene.now, random_queue=True
            ).queue
        ] += 1
    assert min(counts.values()) > 400, counts


def test_a_paused_queue_is_not_chosen():
    scene = WorkqScene()
    scene.push("a", "a")
    scene.engine.pause("a", paused=True, now=scene.now)
    assert scene.engine.lease(("a",), "", WORKQ, scene.now, random_queue=True) is None
    scene.engine.pause("a", paused=False, now=scene.now)
    scene.engine.unavailable_reason = "disk full"
    assert scene.engine.lease(("a",), "", WORKQ, scene.now, random_queue=True) is None


# Transient jobs


def test_an_abandoned_job_is_removed():
    scene = WorkqScene()
    scene.engine.cancel(scene.push(transient=True), scene.now, deferrable=True)
    assert not scene.engine.jobs


def test_an_abandoned_job_is_removed_when_the_store_recovers():
    scene = WorkqScene()
    job = scene.push(transient=True)
    scene.engine.unavailable_reason = "disk full"
    scene.engine.cancel(job, scene.now, deferrable=True)
    scene.advance(3)
    assert scene.engine.jobs
    scene.engine.resume(scene.now)
    scene.advance(2)
    assert not scene.engine.jobs
    assert scene.causes()[-1] == "cancelled"
    assert scene.engine.timer_counts.evicted == 0
    assert scene.engine.timers.when(job.seq + TTL_KEY_OFFSET) is None


def test_an_abandoned_job_is_removed_before_the_next_delivery():
    scene = WorkqScene()
    job = scene.push(transient=True)
    scene.engine.unavailable_reason = "disk full"
    scene.engine.cancel(job, scene.now, deferrable=True)
    scene.wait(seconds=60)
    scene.now -= 3600 * SECOND  # the removal does not depend on the clock
    scene.engine.resume(scene.now)
    assert not scene.engine.jobs
    assert not scene.delivered()
    assert scene.lease() is None


def test_another_client_that_waits_for_the_result_does_not_keep_a_transient_job():
    store, scene = FailingMemoryStore(), WorkqScene()
    job = scene.push(transient=True)
    commit(scene.engine, store)
    scene.engine.cancel(job, scene.now)  # the client's wait has timed out
    store.fail = "commit"
    assert not commit_or_revert(scene.engine, store)
    (restored,) = scene.engine.jobs.values()
    scene.awaits(restored)
    store.fail = ""
    scene.engine.resume(scene.now)
    assert scene.lease() is None
    assert not scene.engine.jobs


def test_a_transient_job_with_a_waiter_stays_after_a_halt():
    scene = WorkqScene()
    job = scene.push(transient=True)
    waiter = scene.awaits(job, owns_job=True)
    scene.engine.unavailable_reason = "disk full"
    scene.engine.resume(scene.now)
    assert scene.lease() is job
    scene.engine.complete(job, scene.now, WORKQ)
    assert scene.notifications() == [(waiter, "completed", True, b"")]


def test_a_restart_drops_transient_jobs_and_records_it_in_the_journal():
    store = MemoryStore()
    scene = WorkqScene()
    scene.push("stays")
    scene.push("goes", transient=True)
    scene.push("goes too", "other", transient=True)
    scene.lease("other")
    commit(scene.engine, store)
    engine = recover(store)
    assert len(engine.jobs) == 3
    engine.restoration.after_restart(scene.now)
    assert [job.jid for job in engine.jobs.values()] == ["stays"]
    assert [row[1] for row in engine.change_set.events] == ["cancelled", "cancelled"]


# The policy


@pytest.mark.parametrize(
    ("retries", "failures", "state"),
    [(0, 1, DEAD), (1, 1, DEAD), (2, 1, READY), (2, 2, DEAD), (255, 254, READY)],
)
def test_the_failure_whose_number_equals_retries_is_the_last(retries, failures, state):
    job = WorkqScene().pushed_and_leased(retries=retries)
    job.history.failures = failures
    assert WorkqPolicy().after_failure(job, START, Random(1)).state == state


@pytest.mark.parametrize(
    ("limit", "attempt", "state"), [(0, 1000, READY), (1, 1, DEAD), (3, 2, READY), (3, 3, DEAD)]
)
def test_no_lease_may_expire_after_the_last_attempt(limit, attempt, state):
    job = WorkqScene().pushed_and_leased(max_attempts=limit, retries=9)
    job.history.attempt, job.history.failures = attempt, 1
    assert WorkqPolicy().after_expiry(job, START, Random(1)).state == state
    assert WorkqPolicy().after_failure(job, START, Random(1)).state == state


def test_a_transient_job_has_one_attempt():
    job = WorkqScene().pushed_and_leased(transient=True)
    job.history.failures = 1
    assert protocol_rules().policies[WORKQ].after_failure(job, START, Random(1)).state == GONE
    assert protocol_rules().policies[WORKQ].after_expiry(job, START, Random(1)).state == GONE


def test_an_expired_lease_is_not_a_failure_but_is_recorded():
    scene = WorkqScene()
    job = scene.pushed_and_leased()
    scene.advance(1)
    assert (job.state, job.failures, job.attempt) == (READY, 0, 1)
    assert scene.events()[-1].group == "LeaseExpired"


# Records of older versions


def old_record(job: Job) -> list:
    """The record of a job before the time to live was added."""
    record = decode_any(encode(job))[:23]
    if record[22] is not None:
        record[22] = record[22][:3]
    return record


def test_records_of_older_versions_load():
    scene = Scene()
    plain = scene.push("plain")
    extra = scene.pushed_and_leased("extra", "other", tags=["red"])
    for job in (plain, extra):
        old = decode_job(encode(old_record(job)))
        assert values(old) == values(copy_of(job, history=copy_of(job.history, totals=None)))
        assert (old.expires_at, old.max_attempts) == (0, 0)


def test_a_folder_of_an_older_version_loads(tmp_path: Path):
    store = SqliteStore(tmp_path)
    scene = Scene()
    scene.push("plain")
    scene.pushed_and_leased("leased", "other", tags=["red"])
    commit(scene.engine, store)
    store.load()  # folds everything into `jobs`
    store.close()
    downgrade(tmp_path, 1)
    with sqlite3.connect(tmp_path / "millrace.db") as db:
        for seq, record in db.execute("SELECT seq, record FROM jobs").fetchall():
            old = encode(old_record(decode_job(record)))
            db.execute("UPDATE jobs SET record = ? WHERE seq = ?", (old, seq))
    db.close()
    store = SqliteStore(tmp_path)
    engine = recover(store)
    assert {job.jid: job.state for job in engine.jobs.values()} == {
        "plain": READY,
        "leased": LEASED,
    }
    store.close()


# Random commands with restarts

_OPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "schedule", "lease", "complete", "fail", "cancel", "wait"]),
        st.integers(0, 5),
        st.integers(1, 4),
    ),
    max_size=40,
)


@given(_OPS)
@settings(max_examples=150, deadline=None)
def test_a_restart_changes_nothing(ops):
    """The state, the order, the counters and all timers are the same."""
    scene, store = WorkqScene(), MemoryStore()
    engine = scene.engine
    for op, number, size in ops:
        jid = f"job-{number}"
        job = engine.find(jid)
        if op in {"push", "schedule"} and job is None:
            due = scene.now + size * SECOND if op == "schedule" else 0
            scene.push(
                jid,
                f"queue-{number % 2}",
                rank=size % 2,
                due_at=due,
                position=AFTER_ARRIVALS + due if due else 0,
                retries=size,
                max_attempts=number,
                life=size * 2,
            )
        elif op == "lease":
            engine.lease(("queue-0", "queue-1"), "", WORKQ, scene.now, random_queue=True)
        elif op == "complete" and job is not None and job.state in {SCHEDULED, READY, LEASED}:
            engine.complete(job, scene.now, WORKQ, result=b"r" * size, allow_unleased=True)
        elif op == "fail" and job is not None and job.state in {SCHEDULED, READY, LEASED}:
            engine.fail(job, scene.now, WORKQ, "Failed", "m", [], result=b"r", allow_unleased=True)
        elif op == "cancel" and job is not None:
            engine.cancel(job, scene.now)
        elif op == "wait":
            scene.advance(size / 2)
        commit(engine, store)
        again = recover(store)
        assert durable_state(again) == durable_state(engine)
        assert timer_times(again) == timer_times(engine)
        for name, queue in engine.queues.items():
            assert ready_jids(again, name) == ready_jids(engine, name)
            assert again.queues[name].counts == queue.counts
        assert again.retrying == engine.retrying
        assert sorted(again.dead_untrimmed) == sorted(engine.dead_untrimmed)
    scene.advance(100)
    assert not engine.jobs
    assert len(engine.timers) == 0


def timer_times(engine: Engine) -> dict:
    return {key: entry[0] for key, entry in engine.timers._live.items()}


# Leases that a worker returns, in an attempt that counts


def test_a_job_returned_in_its_last_attempt_is_not_leased_again():
    scene = WorkqScene()
    job = scene.push(max_attempts=2)
    waiter = scene.awaits(job)
    for state in (READY, DEAD):
        assert scene.lease() is job
        scene.engine.release(job, scene.now, counted=True)
        assert job.state == state
    assert (job.attempt, job.failures, scene.lease()) == (2, 0, None)
    assert scene.notifications() == [(waiter, "expired", False, b"")]


def test_a_job_that_did_not_reach_its_worker_keeps_its_last_attempt():
    scene = WorkqScene()
    job = scene.push(max_attempts=1)
    for _ in range(3):
        assert scene.lease() is job
        scene.engine.release(job, scene.now)
        assert (job.state, job.attempt) == (READY, 0)


def test_a_returned_transient_job_is_removed():
    scene = WorkqScene()
    job = scene.push(transient=True)
    waiter = scene.awaits(job, owns_job=True)
    assert scene.lease() is job
    scene.engine.release(job, scene.now, counted=True)
    assert job.state == GONE
    assert scene.notifications() == [(waiter, "expired", False, b"")]
