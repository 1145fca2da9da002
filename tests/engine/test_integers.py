"""All numbers of the engine fit a signed 64-bit integer, as the compiled engine requires."""

import pytest

from millrace.engine.job import FOREVER, add_time
from millrace.engine.job_timers import TTL_KEY_OFFSET
from millrace.protocols.registry import QLESS, WORKQ
from scene import START, Scene


@pytest.mark.parametrize(
    ("time", "duration", "expected"),
    [
        (START, 5, START + 5),
        (START, -5, START - 5),
        (START, FOREVER, FOREVER),
        (START, FOREVER - START, FOREVER),
        (START, FOREVER - START + 1, FOREVER),
        (START, 1 << 80, FOREVER),
        (0, FOREVER, FOREVER),
        (FOREVER, 0, FOREVER),
    ],
)
def test_times_are_added_without_overflow(time, duration, expected):
    assert add_time(time, duration) == expected


def test_timer_keys_fit():
    assert TTL_KEY_OFFSET + (1 << 61) <= FOREVER


def test_the_end_of_the_longest_lease_fits():
    scene = Scene()
    job = scene.pushed_and_leased(origin=WORKQ, lease_duration=FOREVER)
    assert job.deadline == FOREVER


def test_dead_jobs_without_expiry_have_no_end():
    scene = Scene()
    job = scene.push(origin=QLESS)
    scene.engine.kill(job, scene.now)
    assert job.due_at == FOREVER
