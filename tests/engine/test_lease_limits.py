"""Limits on leased jobs of a queue or of a named key, for holders of any protocol."""

import sys
from random import Random

import pytest

from millrace.engine import consistency
from millrace.engine.details import JobDetails
from millrace.engine.engine import Engine
from millrace.engine.job import AFTER_ARRIVALS, BEFORE_ARRIVALS, SECOND, Job
from millrace.engine.limits import EXAMINE_BATCH_SIZE, QUEUE_KEY_PREFIX, keys_of, uses
from millrace.engine.parked_jobs import parked_of
from millrace.engine.reasons import sentence, why
from millrace.engine.states import LEASED, READY
from millrace.protocols.registry import FAKTORY, GOQUEUE, HTTP, MASENKO, QLESS, WORKQ
from millrace.store.memory import MemoryStore
from scene import START, Scene, unit

QUEUE = QUEUE_KEY_PREFIX + "default"


@pytest.fixture
def scene() -> Scene:
    return Scene()


def limit(scene: Scene, maximum: float, key: str = QUEUE, expires: int = 0) -> None:
    scene.engine.set_limit(key, maximum, expires, scene.now)


def push(scene: Scene, jid: str, *keys: str, **fields) -> Job:
    return scene.push(jid, details=JobDetails(limits=list(keys)), **fields)


@pytest.mark.parametrize("actor", [FAKTORY, WORKQ, MASENKO, GOQUEUE, HTTP, QLESS])
def test_a_queue_has_no_more_leases_than_its_limit(scene: Scene, actor: int) -> None:
    limit(scene, 2)
    jobs = [scene.push(f"j{number}") for number in range(3)]
    scene.engine.leases.holders.add("w")
    held = [scene.engine.lease(["default"], "w", actor, scene.now) for _ in range(3)]
    assert held == [jobs[0], jobs[1], None]
    assert jobs[2].state == READY
    scene.engine.complete(jobs[0], scene.now, actor)
    assert scene.engine.lease(["default"], "w", actor, scene.now) is jobs[2]


def test_workers_of_different_protocols_share_a_limit(scene: Scene) -> None:
    limit(scene, 1)
    scene.push("a")
    scene.push("b")
    held = scene.engine.lease(["default"], "w", WORKQ, scene.now)
    assert scene.engine.lease(["default"], "w", FAKTORY, scene.now) is None
    assert held is not None
    scene.engine.complete(held, scene.now, WORKQ)
    assert scene.lease() is not None


def test_the_next_queue_is_used_while_a_limit_is_full(scene: Scene) -> None:
    limit(scene, 1)
    scene.push("a")
    scene.push("b")
    other = scene.push("c", "other")
    scene.lease()
    assert scene.lease("default", "other") is other


def test_a_random_queue_below_its_limit_is_chosen(scene: Scene) -> None:
    limit(scene, 1)
    for jid in "ab":
        scene.push(jid)
    others = [scene.push(f"c{number}", "other") for number in range(8)]
    scene.lease()
    found = [
        scene.engine.lease(["default", "other"], "w", FAKTORY, scene.now, random_queue=True)
        for _ in range(9)
    ]
    assert found == [*others, None]


def test_a_waiting_client_gets_the_job_when_a_lease_ends(scene: Scene) -> None:
    limit(scene, 1)
    first, second = scene.push("a"), scene.push("b")
    scene.lease()
    waiter = scene.wait()
    assert scene.engine.waiters.deliveries == []
    scene.complete(first)
    assert scene.engine.waiters.deliveries == [(waiter, second)]


def test_a_push_is_not_delivered_beyond_the_limit(scene: Scene) -> None:
    limit(scene, 1)
    scene.pushed_and_leased("a")
    scene.wait()
    scene.push("b")
    assert scene.engine.waiters.deliveries == []


def test_an_expired_lease_frees_capacity(scene: Scene) -> None:
    limit(scene, 1)
    scene.pushed_and_leased("a", lease_duration=10 * SECOND)
    second = scene.push("b")
    scene.wait(seconds=100)
    scene.engine.tick(scene.now + 10 * SECOND)
    assert [job for _, job in scene.engine.waiters.deliveries] == [second]


def test_a_job_with_a_full_key_is_parked_and_later_jobs_pass_it(scene: Scene) -> None:
    limit(scene, 1, "mail")
    first, second = push(scene, "a", "mail"), push(scene, "b", "mail")
    third = scene.push("c")
    assert [scene.lease() for _ in range(3)] == [first, third, None]
    assert parked_of(second) is not None
    assert scene.engine.queues["default"].counts[READY] == 1
    scene.complete(third)
    assert scene.lease() is None
    scene.complete(first)
    assert parked_of(second) is None
    assert scene.lease() is second


def test_the_longest_parked_job_returns_first(scene: Scene) -> None:
    limit(scene, 1, "mail")
    held = push(scene, "a", "mail")
    scene.lease()
    jobs = []
    for jid in "dcb":
        jobs.append(push(scene, jid, "mail"))
        assert scene.lease() is None
        scene.now += 1
    for job in jobs:
        scene.complete(held)
        held = scene.lease()
        assert held is job


def test_a_parked_job_returns_to_its_old_place(scene: Scene) -> None:
    limit(scene, 1, "mail")
    held, parked = push(scene, "a", "mail"), push(scene, "b", "mail")
    scene.lease()
    assert scene.lease() is None
    assert parked_of(parked) is not None
    later = []
    for jid in "cd":
        scene.now += SECOND
        later.append(scene.push(jid))
    scene.now += SECOND
    scene.complete(held)
    assert [scene.lease() for _ in range(3)] == [parked, *later]


@pytest.mark.parametrize("position", [BEFORE_ARRIVALS + START, AFTER_ARRIVALS + START])
def test_a_parked_job_keeps_a_position_outside_the_arrivals(scene: Scene, position: int) -> None:
    limit(scene, 1, "mail")
    push(scene, "a", "mail", origin=MASENKO)
    held = scene.lease()
    parked = push(scene, "b", "mail", origin=MASENKO, position=position)
    assert scene.lease() is None
    other = scene.push("c")
    scene.complete(held)
    assert consistency.check_engine(scene.engine).problems == []
    expected = [parked, other] if position < 0 else [other, parked]
    assert [scene.lease() for _ in range(2)] == expected


def test_jobs_that_were_parked_together_return_in_the_order_of_their_pushes(scene: Scene) -> None:
    limit(scene, 1, "mail")
    held = push(scene, "x", "mail")
    scene.lease()
    jobs = [push(scene, jid, "mail") for jid in "dbc"]
    assert scene.lease() is None
    for job in jobs:
        scene.complete(held)
        held = scene.lease()
        assert held is job


def test_a_parked_job_timed_by_its_clients_clock_returns_behind_later_jobs(scene: Scene) -> None:
    limit(scene, 1, "mail")
    held, parked = push(scene, "a", "mail"), push(scene, "b", "mail", origin=QLESS)
    scene.lease()
    assert scene.lease() is None
    scene.now += SECOND
    later = scene.push("c")
    scene.now += SECOND
    scene.complete(held)
    assert [scene.lease() for _ in range(2)] == [later, parked]


def test_more_parked_jobs_than_one_request_examines(scene: Scene) -> None:
    limit(scene, 1, "mail")
    for number in range(EXAMINE_BATCH_SIZE + 10):
        push(scene, f"j{number}", "mail")
    assert scene.lease() is not None
    waiter = scene.wait(seconds=100)
    last = scene.push("last")
    assert scene.engine.waiters.deliveries == []
    scene.engine.tick(scene.now)
    assert scene.engine.waiters.deliveries == [(waiter, last)]


def test_raising_or_removing_a_limit_returns_parked_jobs(scene: Scene) -> None:
    limit(scene, 1, "mail")
    jobs = [push(scene, jid, "mail") for jid in "abc"]
    scene.lease()
    assert scene.lease() is None
    limit(scene, 2, "mail")
    assert scene.lease() is jobs[1]
    assert scene.lease() is None
    scene.engine.set_limit("mail", None, 0, scene.now)
    assert scene.lease() is jobs[2]
    assert not scene.engine.limits.in_use


def test_a_limit_ends_when_its_time_expires(scene: Scene) -> None:
    limit(scene, 1, expires=START + 5 * SECOND)
    scene.pushed_and_leased("a")
    job = scene.push("b")
    waiter = scene.wait(seconds=100)
    scene.engine.tick(START + 5 * SECOND - 1)
    assert scene.engine.waiters.deliveries == []
    scene.engine.tick(START + 5 * SECOND)
    assert scene.engine.waiters.deliveries == [(waiter, job)]
    assert scene.engine.limits.by_key == {}


def test_a_parked_job_can_be_cancelled_moved_and_ranked(scene: Scene) -> None:
    limit(scene, 1, "mail")
    jobs = [push(scene, jid, "mail") for jid in "abcd"]
    scene.lease()
    assert scene.lease() is None
    scene.engine.cancel(jobs[1], scene.now)
    scene.engine.move(jobs[2], "other", scene.now, FAKTORY)
    assert parked_of(jobs[2]) is None
    scene.engine.set_rank(jobs[3], 5, 0)
    assert consistency.check_engine(scene.engine).problems == []
    scene.complete(jobs[0])
    assert scene.lease() is jobs[3]
    assert jobs[3].rank == 5
    scene.complete(jobs[3])
    assert scene.lease("other") is jobs[2]


def test_a_moved_job_uses_the_limit_of_its_new_queue(scene: Scene) -> None:
    limit(scene, 1)
    limit(scene, 1, QUEUE_KEY_PREFIX + "other")
    job = scene.pushed_and_leased("a")
    scene.engine.move(job, "other", scene.now, FAKTORY)
    assert scene.engine.limits.usage(QUEUE) == 0
    assert scene.lease("other") is job
    assert scene.engine.limits.usage(QUEUE_KEY_PREFIX + "other") == 1


def test_a_job_can_be_released_from_a_key(scene: Scene) -> None:
    limit(scene, 1, "mail")
    first, second = push(scene, "a", "mail"), push(scene, "b", "mail")
    scene.lease()
    assert scene.lease() is None
    scene.engine.limits.release(first, "mail", scene.now)
    assert scene.lease() is second
    assert scene.engine.limits.usage("mail") == 1


def restarted(scene: Scene) -> Scene:
    store = MemoryStore()
    store.prepare(scene.engine.take_changes(), scene.engine)
    store.commit()
    again = Scene()
    store.load().fill(again.engine)
    again.engine.restoration.after_restart(again.now)
    return again


def test_a_restart_keeps_limits_usage_and_parked_jobs(scene: Scene) -> None:
    limit(scene, 1, "mail")
    for jid in "ab":
        push(scene, jid, "mail")
    scene.lease()
    assert scene.lease() is None
    again = restarted(scene)
    assert again.lease() is None
    assert again.engine.limits.usage("mail") == 1
    held, parked = again.engine.find("a"), again.engine.find("b")
    assert held is not None
    assert parked is not None
    assert parked_of(parked) is not None
    again.complete(held)
    assert again.lease() is parked


def test_a_restart_that_returns_leases_returns_parked_jobs(scene: Scene) -> None:
    limit(scene, 1, "mail")
    for jid in "ab":
        push(scene, jid, "mail")
    scene.engine.leases.holders.add("c")
    scene.engine.lease(["default"], "c", MASENKO, scene.now)
    assert scene.lease() is None
    again = restarted(scene)
    assert all(parked_of(job) is None for job in again.engine.jobs.values())


def test_why_names_the_limit(scene: Scene) -> None:
    limit(scene, 1)
    limit(scene, 1, "mail")
    push(scene, "a", "mail")
    scene.lease()
    found = why(scene.engine, push(scene, "b", "mail"), scene.now)
    texts = [sentence(reason, found, scene.now) for reason in found.reasons]
    assert 'The limit "mail" is reached: at most 1 of its jobs may be leased.' in texts
    assert (
        'The limit of the queue "default" is reached: at most 1 of its jobs may be leased.' in texts
    )


def test_leases_that_have_expired_do_not_count_against_the_concurrency(scene: Scene) -> None:
    scene.engine.limits.set_concurrency("default", 1)
    scene.push("a")
    scene.push("b")
    scene.engine.lease(["default"], "w", QLESS, scene.now, scene.now + 10 * SECOND)
    assert scene.lease() is None
    scene.now += 10 * SECOND + 1
    assert scene.lease() is not None


def test_a_full_queue_does_not_examine_the_leases_of_other_queues(scene: Scene) -> None:
    scene.engine.limits.set_concurrency("default", 1)
    for number in range(2000):
        scene.push(f"other{number}", queue="other")
        assert scene.engine.lease(["other"], "w", QLESS, scene.now) is not None
    scene.push("a")
    scene.push("b")
    assert scene.engine.lease(["default"], "w", QLESS, scene.now) is not None
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        found = scene.engine.lease(["default"], "w", QLESS, scene.now)
    finally:
        sys.setprofile(None)
    assert found is None
    assert calls < 200


def _usage(engine: Engine) -> None:
    engine.limits.leased_by_key["mail"].clear()


def _waiting(engine: Engine) -> None:
    engine.limits.parked.by_key.clear()


def _unlisted(engine: Engine) -> None:
    engine.queues["default"].ready.parked.clear()


@pytest.mark.parametrize("damage", [_usage, _waiting, _unlisted])
def test_damage_is_found_and_repaired(scene: Scene, damage) -> None:
    limit(scene, 1, "mail")
    for jid in "ab":
        push(scene, jid, "mail")
    scene.lease()
    assert scene.lease() is None
    damage(scene.engine)
    assert "limit" in {problem.what for problem in consistency.check_engine(scene.engine).problems}
    consistency.repair(scene.engine, scene.now)
    assert consistency.check_engine(scene.engine).problems == []
    assert scene.lease() is None


# Random walks: after every step, the usage equals a recount, no limit is exceeded by a lease, no
# parked job waits for a key with room, and every job is in one place

KEYS = ("mail", "disk")
QUEUES = ("default", "other")
ACTORS = (FAKTORY, WORKQ, MASENKO, GOQUEUE, HTTP, QLESS)


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.scene = Scene()
        self.engine = self.scene.engine
        self.engine.leases.holders.add("w")
        self.pushed = 0

    def step(self) -> None:
        self.scene.now += self.random.randrange(3) * SECOND
        choice = self.random.choice
        choice([self.push, self.push, self.lease, self.lease, self.end, self.end, self.change])()
        self.engine.tick(self.scene.now)
        self.check()

    def push(self) -> None:
        self.pushed += 1
        keys = [key for key in KEYS if self.random.random() < 0.5]
        more = {"details": JobDetails(limits=keys)} if keys else {}
        job = unit(
            f"j{self.pushed}",
            self.random.choice(QUEUES),
            origin=self.random.choice(ACTORS),
            rank=self.random.randrange(3),
            lease_duration=5 * SECOND,
            **more,
        )
        self.engine.push(job, self.scene.now)

    def lease(self) -> None:
        before = {key: self.engine.limits.usage(key) for key in self.engine.limits.by_key}
        actor = self.random.choice(ACTORS)
        job = self.engine.lease(QUEUES, "w", actor, self.scene.now)
        if job is None:
            self.scene.wait(*QUEUES, seconds=3)
        else:
            for key in keys_of(job):
                maximum = self.engine.limits.maximum(key, self.scene.now)
                assert not maximum or before[key] < maximum

    def end(self) -> None:
        now = self.scene.now
        jobs = list(self.engine.jobs.values())
        if not jobs:
            return
        job = self.random.choice(jobs)
        if job.state == LEASED:
            ends = [
                lambda: self.engine.complete(job, now, job.holder_protocol),
                lambda: self.engine.fail(job, now, job.holder_protocol, "g", "m", []),
                lambda: self.engine.release(job, now),
                lambda: self.engine.move(job, self.random.choice(QUEUES), now, FAKTORY),
            ]
            self.random.choice(ends)()
        elif self.random.random() < 0.4:
            self.engine.cancel(job, now)
        elif self.random.random() < 0.5:
            self.engine.move(job, self.random.choice(QUEUES), now, FAKTORY)

    def change(self) -> None:
        now, key = (
            self.scene.now,
            self.random.choice((*KEYS, *map(QUEUE_KEY_PREFIX.__add__, QUEUES))),
        )
        turn = self.random.random()
        if turn < 0.6:
            expires = now + 5 * SECOND if self.random.random() < 0.3 else 0
            self.engine.set_limit(key, self.random.randrange(1, 4), expires, now)
        elif turn < 0.7:
            self.engine.set_limit(key, None, 0, now)
        elif turn < 0.8:
            self.engine.pause(
                self.random.choice(QUEUES), paused=self.random.random() < 0.5, now=now
            )
        elif self.engine.jobs:
            job = self.random.choice(list(self.engine.jobs.values()))
            self.engine.limits.release(job, key, now)

    def check(self) -> None:
        engine, limits = self.engine, self.engine.limits
        assert consistency.check_engine(engine).problems == []
        for key in limits.by_key:
            right = {job.seq for job in engine.leased.values() if uses(job, key)}
            assert limits.leased_by_key[key].keys() == right
        ready = [job for queue in engine.queues.values() for job in queue.ready]
        open_keys = {key for job in ready if parked_of(job) is None for key in keys_of(job)}
        for job in ready:
            parked = parked_of(job)
            if parked is not None and parked.key and parked.key not in open_keys:
                assert not limits.has_room(parked.key, self.scene.now)
        for queue in engine.queues.values():
            if queue.waiters and not queue.paused and limits.queue_has_room(queue, self.scene.now):
                assert len(queue.ready) == len(queue.ready.parked)


@pytest.mark.parametrize("seed", range(40))
def test_a_random_walk(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(150):
        walk.step()
    assert walk.pushed > 10


# Room that no worker uses


def parked_in_two_queues(scene: Scene, count: int = 1) -> tuple[Job, Job]:
    """A job that uses all the capacity of a key, and a job in the queue "other" that waits for it,
    behind `count` jobs in the queue "default".
    """
    limit(scene, 1, "k")
    held = push(scene, "held", "k")
    for number in range(count):
        push(scene, f"first{number}", "k")
    job = push(scene, "job", "k", queue="other")
    assert scene.lease() is held
    for name in ["default"] * count + ["other"]:
        assert scene.lease(name) is None
    return held, job


@pytest.mark.parametrize("count", [1, 2 * EXAMINE_BATCH_SIZE + 1])
def test_a_job_in_a_paused_queue_leaves_the_capacity_of_its_key_to_others(
    scene: Scene, count: int
) -> None:
    held, job = parked_in_two_queues(scene, count)
    scene.engine.pause("default", paused=True, now=scene.now)
    waiter = scene.wait("other", seconds=5)
    scene.complete(held)
    scene.tick()
    assert scene.delivered() == [(waiter, job)]
    assert consistency.check_engine(scene.engine).total == 0
    scene.engine.pause("default", paused=False, now=scene.now)
    assert scene.lease() is None  # the key is full again
    scene.complete(job)
    first = scene.lease()
    assert first is not None
    assert first.jid == "first0"


def test_a_job_that_waits_for_a_worker_leaves_the_capacity_of_its_key_to_others(
    scene: Scene,
) -> None:
    held, job = parked_in_two_queues(scene)
    scene.complete(held)  # the job in the other queue has waited longer, but no worker wants it
    assert scene.lease("other") is job
    assert scene.lease() is None
    assert consistency.check_engine(scene.engine).total == 0
