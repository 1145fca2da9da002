"""Order and time are separate: due times follow the clock, the order follows the arrivals."""

import pytest

from millrace.engine.events import Event
from millrace.engine.job import SECOND
from millrace.engine.states import READY, SCHEDULED
from millrace.protocols.registry import FAKTORY, GOQUEUE, HTTP, MASENKO, QLESS, WORKQ
from millrace.store import MemoryStore
from scene import START, Scene, commit, own_clock, ready_jids, recover, unit

HOUR = 3600 * SECOND
YEAR = 365 * 24 * HOUR
JUMPS = [2 * HOUR, 10 * YEAR]


def ahead_once(jump: int, *, restart: bool) -> Scene:
    """A scene in which a job arrived while the clock was ahead; the clock is right again."""
    scene = Scene()
    scene.now = START + jump
    scene.push("ahead")
    scene.now = START
    if not restart:
        return scene
    store = MemoryStore()
    commit(scene.engine, store)
    return Scene(recover(store))


@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("origin", [WORKQ, MASENKO, FAKTORY, GOQUEUE, HTTP])
def test_a_job_waits_for_its_due_time_after_the_clock_was_ahead(origin, jump, restart):
    scene = ahead_once(jump, restart=restart)
    job = scene.push("later", origin=origin, due_at=START + HOUR)
    assert job.state == SCHEDULED
    scene.advance(3599)
    assert job.state == SCHEDULED
    scene.advance(1)
    assert job.state == READY


@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize("restart", [False, True])
def test_jobs_keep_their_order_of_arrival_after_the_clock_was_ahead(jump, restart):
    scene = ahead_once(jump, restart=restart)
    scene.push("due", due_at=START + HOUR)
    scene.push("first")
    scene.advance(3600)
    scene.push("last")
    assert ready_jids(scene.engine) == ["ahead", "first", "due", "last"]


def test_times_of_a_job_and_its_events_follow_the_clock():
    scene = ahead_once(10 * YEAR, restart=True)
    job = scene.push("new", "other")
    scene.advance(5)
    assert scene.lease("other") is job
    assert (job.created, job.ready_at, job.leased_at) == (START, START, scene.now)
    pushed, leased = (Event(*row) for row in scene.engine.change_set.events)
    assert (pushed.time, pushed.ready_at, leased.wait) == (START, START, 5 * SECOND)


def test_a_clock_set_back_at_a_restart_makes_no_new_job_reclaimable():
    scene = ahead_once(10 * YEAR, restart=True)
    scene.push("new", "other")
    scene.push("later", due_at=START + SECOND)
    scene.advance(1)
    for jid in ("new", "later"):
        assert scene.engine.reclaim_by_id(jid, "worker-1", FAKTORY, scene.now) is None
    assert scene.engine.reclaim_by_id("ahead", "worker-1", FAKTORY, scene.now) is not None


def test_a_client_with_its_clock_ahead_makes_no_qless_job_reclaimable():
    scene = Scene()
    with own_clock(scene, YEAR) as time:
        scene.engine.push(unit("ahead", origin=QLESS), time)
    store = MemoryStore()
    commit(scene.engine, store)
    again = Scene(recover(store))
    again.engine.push(unit("new", origin=QLESS), START)
    assert again.engine.reclaim_by_id("new", "worker-1", FAKTORY, START) is None


def test_statistics_survive_a_clock_that_was_ahead():
    scene = ahead_once(10 * YEAR, restart=False)
    scene.pushed_and_leased("now", "other")
    statistics = scene.engine.current_statistics()
    assert statistics.forget(statistics.first_retained_day(scene.engine.last_known_time)) == []
    assert ("other", START // (24 * HOUR)) in statistics.days
