"""The dead set is bounded, and a lowered limit takes effect in steps."""

from millrace.engine.retention import TRIM_BATCH_SIZE
from scene import Scene

SURPLUS = 3 * TRIM_BATCH_SIZE


def dead_jobs(count: int) -> Scene:
    scene = Scene()
    for number in range(count):
        scene.engine.kill(scene.push(f"job-{number}"), scene.now)
        scene.now += 1
    return scene


def test_a_lowered_limit_drops_a_limited_number_of_jobs_per_command():
    scene = dead_jobs(SURPLUS + 1)
    scene.engine.take_changes()
    scene.engine.retention.dead_max = 0
    scene.engine.kill(scene.push("last"), scene.now)
    assert scene.causes().count("purged") == TRIM_BATCH_SIZE


def test_the_timer_drops_the_rest_in_steps():
    scene = dead_jobs(SURPLUS)
    scene.engine.retention.dead_max = 10
    scene.engine.kill(scene.push("last"), scene.now)
    steps = 0
    while len(scene.engine.dead) > 10:
        before = len(scene.engine.dead)
        time = scene.engine.next_timer()
        assert time is not None
        assert time <= scene.now, "the rest would wait"
        scene.engine.tick(scene.now, 1)
        steps += before - len(scene.engine.dead) <= TRIM_BATCH_SIZE
    assert steps >= 2
    assert [job.jid for job in scene.engine.dead.values()][-1] == "last"
    time = scene.engine.next_timer()
    assert time is None or time > scene.now


def test_no_job_is_dropped_while_the_store_fails():
    scene = dead_jobs(SURPLUS)
    scene.engine.retention.dead_max = 0
    scene.engine.kill(scene.push("last"), scene.now)
    left = len(scene.engine.dead)
    scene.engine.unavailable_reason = "disk full"
    scene.advance(5)
    assert len(scene.engine.dead) == left
    scene.engine.resume(scene.now)
    scene.advance(5)
    assert len(scene.engine.dead) == 0


def test_a_flush_ends_the_trimming():
    scene = dead_jobs(SURPLUS)
    scene.engine.retention.dead_max = 0
    scene.engine.kill(scene.push("last"), scene.now)
    scene.engine.flush(scene.now)
    scene.tick()
    assert scene.engine.retention.dead_dropped == TRIM_BATCH_SIZE
