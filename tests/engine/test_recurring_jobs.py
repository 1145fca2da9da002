"""Recurring jobs: the engine pushes their jobs for clients of every protocol."""

from itertools import pairwise

import pytest

from millrace.engine.annotations import read_details
from millrace.engine.job import SECOND, Job
from millrace.engine.recurring import (
    LEASE_DURATION,
    RECURRING_TIMER,
    STEP_JOBS,
    STEP_RECORDS,
    RecurringJob,
)
from millrace.engine.states import READY
from millrace.protocols.registry import FAKTORY, GOQUEUE, HTTP, MASENKO, QLESS, WORKQ
from millrace.store.memory import MemoryStore
from scene import START, Scene, restarted

MINUTE = 60 * SECOND


@pytest.fixture
def scene() -> Scene:
    return Scene()


def record(scene: Scene, jid: str = "r", *, backlog: float = 0, **more) -> RecurringJob:
    found = RecurringJob(jid, "klass", b"{}", "default", 60, 0, 5, backlog, ["red"], START, **more)
    scene.engine.recurring.put(found)
    return found


def names(scene: Scene) -> list[str]:
    return [job.jid for job in scene.engine.jobs.values()]


@pytest.mark.parametrize("actor", [FAKTORY, WORKQ, MASENKO, GOQUEUE, HTTP])
def test_a_request_of_any_protocol_pushes_the_due_job(scene: Scene, actor: int) -> None:
    record(scene)
    assert names(scene) == []
    scene.engine.leases.holders.add("w")
    job = scene.engine.lease(["default"], "w", actor, scene.now)
    assert job is not None
    assert (job.jid, job.origin, job.kind) == ("r-1", QLESS, "klass")
    assert read_details(job).spawned_from == "r"
    assert scene.engine.annotations.tags == {"red": {job.seq: START}}
    assert scene.engine.lease(["default"], "w", actor, scene.now) is None


def test_a_request_for_a_random_queue_pushes_the_due_job(scene: Scene) -> None:
    record(scene)
    job = scene.engine.lease(["default"], "w", FAKTORY, scene.now, random_queue=True)
    assert job is not None
    assert job.jid == "r-1"


def test_a_lazy_record_pushes_only_on_request(scene: Scene) -> None:
    record(scene)
    scene.engine.tick(scene.now + 10 * MINUTE)
    assert names(scene) == []


def test_a_waiting_client_gets_the_job_at_its_time(scene: Scene) -> None:
    record(scene)
    scene.lease()
    waiter = scene.wait(seconds=1000)
    scene.engine.tick(START + MINUTE - 1)
    assert scene.engine.waiters.deliveries == []
    scene.engine.tick(START + MINUTE)
    assert [(each, job.jid) for each, job in scene.engine.waiters.deliveries] == [(waiter, "r-2")]
    scene.engine.tick(START + 5 * MINUTE)
    assert names(scene) == ["r-1", "r-2"]


def test_a_timed_record_pushes_at_its_times(scene: Scene) -> None:
    record(scene, timed=True)
    scene.engine.tick(START)
    assert names(scene) == ["r-1"]
    scene.engine.tick(START + MINUTE)
    assert names(scene) == ["r-1", "r-2"]


@pytest.mark.parametrize("ahead", [-10 * MINUTE, 10 * MINUTE])
def test_the_clock_of_a_client_does_not_move_a_timed_record(scene: Scene, ahead: int) -> None:
    engine = scene.engine
    record(scene, timed=True, origin=HTTP)
    engine.tick(START)
    engine.caller.use_own_clock(START + ahead, START)
    engine.recurring.spawn("default", START + ahead, 100)
    assert names(scene) == ["r-1"]
    now = START + MINUTE
    engine.caller.use_own_clock(now + ahead, now)
    engine.recurring.spawn("default", now + ahead, 100)
    assert names(scene) == ["r-1", "r-2"]
    changed = RecurringJob(*engine.recurring.by_id["r"].fields())
    changed.priority = 7
    engine.recurring.put(changed)
    assert engine.recurring.by_id["r"].clock_offset == 0


def test_the_backlog_bounds_the_jobs_of_missed_intervals(scene: Scene) -> None:
    record(scene, backlog=2)
    scene.engine.recurring.spawn("default", START + 10 * MINUTE, 100)
    assert names(scene) == ["r-1", "r-2", "r-3"]
    assert scene.engine.recurring.by_id["r"].next == START + 11 * MINUTE


def test_a_round_pushes_a_backlog_in_steps(scene: Scene) -> None:
    """All jobs of one record come before those of the next, as in one step."""
    record(scene, "b", timed=True)
    record(scene, "a", timed=True)
    now, due = START + 200 * MINUTE, 201
    pushed = []
    while len(names(scene)) < 2 * due:
        now += 1
        scene.engine.tick(now)
        pushed.append(len(names(scene)))
    steps = [after - before for before, after in pairwise([0, *pushed])]
    assert max(steps) == STEP_JOBS
    assert names(scene) == [f"{jid}-{n}" for jid in "ab" for n in range(1, due + 1)]
    scene.engine.tick(now + 1)
    assert scene.engine.timers.when(RECURRING_TIMER) == START + due * MINUTE


def test_a_round_examines_records_in_steps(scene: Scene) -> None:
    """A record that changes during the round is not forgotten."""
    for number in range(3 * STEP_RECORDS):
        later = START + (2 + number) * MINUTE
        found = RecurringJob(
            f"r-{number}", "t", b"{}", f"queue-{number}", 60, 0, 5, 0, [], later, timed=True
        )
        scene.engine.recurring.put(found)
    timers = scene.engine.timers
    timers.set(RECURRING_TIMER, START)
    scene.engine.tick(START)
    assert timers.when(RECURRING_TIMER) == START + 1
    early = RecurringJob("r-0", "t", b"{}", "moved", 60, 0, 5, 0, [], START + 30, timed=True)
    scene.engine.recurring.put(early)
    for number in range(1, 5):
        scene.engine.tick(START + number)
    assert timers.when(RECURRING_TIMER) == START + 30
    assert "queue-0" not in scene.engine.recurring.by_queue
    for number in range(5):
        scene.engine.tick(START + 30 + number)
    assert names(scene) == ["r-0-1"]


def test_a_round_ends_with_its_records(scene: Scene) -> None:
    """A record that is deleted, or replaced by a flush, pushes no further job."""
    for end in ("delete", "flush"):
        record(scene, timed=True)
        scene.engine.tick(START + 100 * MINUTE)
        assert len(names(scene)) == STEP_JOBS
        if end == "delete":
            scene.engine.recurring.delete("r")
        scene.engine.flush(scene.now)
        for number in range(1, 4):
            scene.engine.tick(START + 100 * MINUTE + number)
        assert names(scene) == []


def test_waiting_clients_get_the_jobs_of_a_backlog_in_steps(scene: Scene) -> None:
    record(scene).interval = 1
    waiters = [scene.wait(seconds=10**6) for _ in range(2 * STEP_JOBS + 1)]
    for number in range(4):
        scene.engine.tick(START + 5 * MINUTE + number)
    assert [waiter for waiter, _ in scene.engine.waiters.deliveries] == waiters
    assert len(names(scene)) == len(waiters)


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_lease_of_an_overdue_job_begins_when_a_waiter_gets_it(scene: Scene, jobs: int) -> None:
    record(scene).interval = 3600
    late = START + jobs * 60 * MINUTE - SECOND
    for _ in range(jobs):
        scene.wait(seconds=10**6)
    scene.engine.tick(late)
    delivered = [job for _, job in scene.engine.waiters.deliveries]
    assert [job.jid for job in delivered] == [f"r-{number + 1}" for number in range(jobs)]
    for number, job in enumerate(delivered):
        assert job.created == job.ready_at == START + number * 60 * MINUTE
        assert job.leased_at == late
        assert job.deadline == late + LEASE_DURATION
    scene.wait(seconds=10**6)
    scene.engine.tick(late + 1)
    assert len(scene.engine.waiters.deliveries) == jobs


def test_a_later_step_of_a_round_leases_at_its_own_time(scene: Scene) -> None:
    record(scene).interval = 1
    for _ in range(STEP_JOBS + 1):
        scene.wait(seconds=10**6)
    scene.engine.tick(START + 60 * MINUTE)
    scene.engine.tick(START + 90 * MINUTE)
    begun = [job.leased_at for _, job in scene.engine.waiters.deliveries]
    assert begun == [START + 60 * MINUTE] * STEP_JOBS + [START + 90 * MINUTE]


def test_a_waiter_gets_an_overdue_job_of_a_pop_at_the_time_of_the_server(scene: Scene) -> None:
    """The client that pops has its own clock, and the client that waits has none."""
    engine = scene.engine
    record(scene)
    engine.recurring.by_id["r"].interval = 3600
    scene.wait(seconds=10**6)
    now, ahead = START + 40 * MINUTE, 10 * MINUTE
    engine.caller.use_own_clock(now + ahead, now)
    engine.recurring.spawn("default", now + ahead, 1)
    [(_, job)] = engine.waiters.deliveries
    assert job.created == START
    assert job.leased_at == now
    assert job.deadline == now + LEASE_DURATION


def test_the_due_time_follows_the_clock_of_the_client(scene: Scene) -> None:
    found = record(scene)
    found.clock_offset = -MINUTE  # the clock of the client is a minute behind
    assert scene.lease() is None
    scene.now += MINUTE
    job = scene.lease()
    assert job is not None
    assert job.ready_at == START
    assert job.created == START + MINUTE


def test_a_paused_queue_gets_no_job(scene: Scene) -> None:
    scene.engine.open_queue("default")
    scene.engine.pause("default", paused=True, now=scene.now)
    record(scene)
    assert scene.lease() is None
    assert names(scene) == []


def test_a_failing_store_stops_the_jobs(scene: Scene) -> None:
    record(scene, timed=True)
    scene.engine.unavailable_reason = "disk full"
    scene.engine.tick(scene.now)
    assert names(scene) == []
    scene.engine.unavailable_reason = ""
    scene.engine.tick(scene.now + SECOND)
    assert names(scene) == ["r-1"]


def test_a_restart_keeps_the_records(scene: Scene) -> None:
    record(scene, timed=True)
    scene.engine.tick(scene.now)
    store = MemoryStore()
    store.prepare(scene.engine.take_changes(), scene.engine)
    store.commit()
    again = Scene()
    store.load().fill(again.engine)
    again.engine.tick(START + MINUTE)
    found: Job | None = again.engine.find("r-2")
    assert found is not None
    assert found.state == READY


def test_a_record_continues_after_the_clock_was_set_back(scene: Scene) -> None:
    """The machine boots ten years ahead, a job is pushed, and the clock is set."""
    years = 10 * 365 * 86_400
    record(scene, backlog=1, timed=True)
    scene.now += years * SECOND
    scene.tick()
    before = len(names(scene))
    assert before > 0
    scene.now -= years * SECOND
    scene.engine.clock_moved(-years * SECOND)
    scene.tick()
    scene.advance(59)
    assert len(names(scene)) == before
    scene.advance(2)
    assert len(names(scene)) == before + 1


def test_a_record_continues_after_a_restart_with_the_right_clock(scene: Scene) -> None:
    years = 10 * 365 * 86_400
    record(scene, backlog=1, timed=True)
    scene.now += years * SECOND
    scene.tick()
    again = restarted(scene, MemoryStore())
    before = len(names(again))
    again.now -= years * SECOND
    again.engine.restoration.after_restart(again.now)
    again.tick()
    again.advance(61)
    assert len(names(again)) == before + 1


def test_a_restart_keeps_the_first_delay_of_a_record(scene: Scene) -> None:
    delayed = record(scene, timed=True)
    delayed.next = START + 60 * MINUTE
    scene.engine.recurring.put(delayed)
    again = restarted(scene, MemoryStore())
    again.engine.restoration.after_restart(again.now)
    again.advance(59 * 60)
    assert names(again) == []


def test_a_deleted_record_pushes_no_job(scene: Scene) -> None:
    record(scene)
    assert scene.engine.recurring.delete("r")
    assert not scene.engine.recurring.delete("r")
    assert scene.lease() is None


def test_a_flush_removes_the_records(scene: Scene) -> None:
    record(scene)
    scene.engine.flush(scene.now)
    assert scene.engine.recurring.by_queue == {}
    assert scene.lease() is None
