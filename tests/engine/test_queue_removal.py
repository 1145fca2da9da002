"""The removal of a queue in several steps, and what other clients do between them."""

import pytest

from millrace.engine.engine import Engine
from millrace.engine.removal import REMOVAL_BATCH_SIZE
from millrace.engine.states import READY
from millrace.store import MemoryStore
from scene import Scene, commit, durable_but_for_seqs, ready_jids, recover, undo

COUNT = 3 * REMOVAL_BATCH_SIZE


class Removal:
    """The first step of the removal of a queue with COUNT ready jobs is committed."""

    def __init__(self, *, paused: bool = False) -> None:
        self.scene, self.store = Scene(), MemoryStore()
        self.engine = self.scene.engine
        for number in range(COUNT):
            self.scene.push(f"job-{number}")
        self.engine.pause("default", paused=paused, now=self.scene.now)
        commit(self.engine, self.store)
        self.steps = self.engine.remove_queue_in_slices("default", self.scene.now)
        next(self.steps)
        commit(self.engine, self.store)

    def refuse_next_step(self) -> None:
        next(self.steps)
        undo(self.engine, self.store, [self.engine.take_changes()], "disk full")
        self.engine.resume(self.scene.now)

    def finish(self) -> Engine:
        """Finish the removal, and return an engine as after a restart."""
        for _ in self.steps:
            commit(self.engine, self.store)
        commit(self.engine, self.store)
        again = recover(self.store)
        assert durable_but_for_seqs(again) == durable_but_for_seqs(self.engine)
        assert not any(queue.removals for queue in self.engine.queues.values())
        return again


@pytest.fixture
def removal() -> Removal:
    return Removal()


def test_no_removed_job_is_leased(removal: Removal) -> None:
    scene = removal.scene
    assert scene.lease() is None
    assert removal.engine.lease(["default"], "w", 1, scene.now, random_queue=True) is None
    scene.wait()
    with removal.engine.hold_queues(scene.now):
        scene.push("other", "other")
    assert scene.delivered() == []
    assert list(removal.finish().queues) == ["other"]


@pytest.mark.parametrize("paused", [False, True])
def test_a_job_pushed_meanwhile_is_leased_after_the_removal(*, paused: bool) -> None:
    removal = Removal(paused=paused)
    waiter = removal.scene.wait()
    job = removal.scene.push("new")
    again = removal.finish()
    assert removal.scene.delivered() == [(waiter, job)]
    assert list(removal.engine.jobs.values()) == [job]
    assert (again.queues["default"].registered, again.queues["default"].paused) == (True, False)


def test_a_crash_after_a_push_leaves_the_queue_open(removal: Removal) -> None:
    removal.scene.push("new")
    commit(removal.engine, removal.store)
    queue = recover(removal.store).queues["default"]
    assert (queue.registered, queue.paused) == (True, False)
    assert queue.counts[READY] == COUNT - REMOVAL_BATCH_SIZE + 1


def test_after_a_crash_a_second_removal_removes_the_other_jobs(removal: Removal) -> None:
    again = recover(removal.store)
    assert again.queues["default"].registered
    assert len(ready_jids(again)) == COUNT - REMOVAL_BATCH_SIZE
    again.remove_queue("default", removal.scene.now)
    commit(again, removal.store)
    assert (list(again.jobs.values()), recover(removal.store).queues) == ([], {})


def test_a_queue_that_an_older_version_half_removed_can_be_removed(removal: Removal) -> None:
    removal.engine.change_set.queues["default"] = None
    commit(removal.engine, removal.store)
    again = recover(removal.store)
    again.remove_queue("default", removal.scene.now)
    assert (list(again.jobs.values()), again.queues) == ([], {})


def test_a_pause_meanwhile_remains(removal: Removal) -> None:
    removal.scene.push("new")
    removal.engine.pause("default", paused=True, now=removal.scene.now)
    assert removal.finish().queues["default"].paused
    assert removal.engine.queues["default"].paused


@pytest.mark.parametrize("pushes", [False, True])
def test_a_refused_step_opens_the_queue(removal: Removal, *, pushes: bool) -> None:
    removal.refuse_next_step()
    waiter = removal.scene.wait()
    again = removal.finish()
    assert len(removal.scene.delivered()) == 1
    assert waiter not in removal.engine.waiters
    if pushes:
        removal.scene.push("new")
        commit(removal.engine, removal.store)
        again = recover(removal.store)
    assert (again.queues["default"].registered, again.queues["default"].paused) == (True, False)
    assert removal.scene.lease() is not None


def test_an_abandoned_removal_opens_the_queue(removal: Removal) -> None:
    removal.steps.close()
    assert removal.scene.lease() is not None
    assert len(ready_jids(removal.finish())) == COUNT - REMOVAL_BATCH_SIZE - 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_removals_at_once(removal: Removal, order: tuple[int, int]) -> None:
    scene = removal.scene
    scene.push("new")
    both = [removal.steps, removal.engine.remove_queue_in_slices("default", scene.now)]
    next(both[1])
    both[order[0]].close()
    assert scene.lease() is None
    removal.steps = both[order[1]]
    left = {0: [], 1: ["new"]}[order[0]]
    assert ready_jids(removal.finish()) == left
