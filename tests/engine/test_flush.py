"""FLUSH removes everything, or the jobs of one protocol."""

import gc
import sys
from itertools import islice

import pytest

from failing_stores import FailingMemoryStore
from millrace.admin.search import Candidates
from millrace.admin.service import AdminService
from millrace.engine import consistency, restoration
from millrace.engine.caller import Caller
from millrace.engine.engine import Engine
from millrace.engine.job import NO_PROTOCOL, Job
from millrace.engine.jobs_by_seq import JobsBySeq
from millrace.engine.queue_rules import QueueRule
from millrace.engine.removal import FLUSH_BATCH_SIZE, FLUSH_SCAN_SIZE
from millrace.engine.restoration import DISCARD_BATCH_SIZE
from millrace.protocols.faktory import mutate
from millrace.protocols.registry import FAKTORY, GOQUEUE, MASENKO, QLESS
from millrace.records.requests import JobFilter
from millrace.store import MemoryStore
from scene import Scene, commit, commit_or_revert, durable_but_for_seqs, durable_state, recover


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    for number in range(3):
        scene.push(f"faktory-{number}")
        scene.push(f"qless-{number}", origin=QLESS)
    scene.lease()
    scene.engine.kill(scene.push("dead", origin=QLESS), scene.now)
    scene.push("blocked", "other", origin=QLESS, blockers=[2])
    return scene


def jids(scene: Scene) -> set[str]:
    return {job.jid for job in scene.engine.jobs.values()}


def test_a_flush_of_one_protocol_keeps_the_jobs_of_other_protocols(scene):
    scene.engine.pause("default", paused=True, now=scene.now)
    scene.engine.flush(scene.now, QLESS)
    assert jids(scene) == {"faktory-0", "faktory-1", "faktory-2"}
    assert scene.engine.queues["default"].paused
    assert consistency.check_engine(scene.engine).total == 0


def test_a_flush_of_one_protocol_delivers_no_dependent(scene):
    scene.wait("other")
    scene.engine.flush(scene.now, QLESS)
    assert scene.delivered() == []


def test_a_flush_of_one_protocol_is_durable(scene):
    store = MemoryStore()
    commit(scene.engine, store)
    scene.engine.flush(scene.now, QLESS)
    assert "cancelled" in scene.causes()
    commit(scene.engine, store)
    assert durable_state(recover(store)) == durable_state(scene.engine)


def test_a_flush_of_one_protocol_runs_in_steps(scene):
    for number in range(2 * FLUSH_BATCH_SIZE):
        scene.push(f"go-{number}", origin=GOQUEUE)
    steps = scene.engine.removal.flush_steps(lambda: scene.now, GOQUEUE)
    assert list(islice(steps, 1)) == [FLUSH_BATCH_SIZE]
    scene.push("new", origin=GOQUEUE)
    assert list(steps) == [FLUSH_BATCH_SIZE]
    assert scene.engine.find("new") is not None
    assert not [job for job in scene.engine.jobs.values() if job.jid.startswith("go-")]


def test_a_flush_of_one_protocol_examines_other_jobs_in_steps():
    scene, count = Scene(), 10 * FLUSH_SCAN_SIZE
    for number in range(count):
        scene.push(f"job-{number}", origin=QLESS if number % count == 0 else FAKTORY)
    examined = []
    get = JobsBySeq.get
    steps = scene.engine.removal.flush_steps(lambda: scene.now, QLESS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobsBySeq, "get", lambda jobs, seq: examined.append(seq) or get(jobs, seq))
        removed = []
        for each in steps:
            removed.append(each)
            assert len(examined) <= FLUSH_SCAN_SIZE + 10
            examined.clear()
    assert sum(removed) == 1
    assert len(scene.engine.jobs) == count - 1


def test_a_flush_of_all_protocols_removes_all_jobs(scene):
    scene.engine.flush(scene.now)
    assert scene.engine.jobs == {}
    assert scene.lease() is None


def test_a_flush_examines_queues_and_timers_with_little_work():
    """Each queue, and each time of a scheduled job, costs a line of Python or two."""
    scene, count = Scene(), 2000
    for number in range(count):
        scene.push(f"job-{number}", f"queue-{number}")
        scene.push(f"later-{number}", "later", due_at=scene.now + 1_000_000)
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        lines += 1
        return trace

    sys.settrace(trace)
    try:
        scene.engine.flush(scene.now)
    finally:
        sys.settrace(None)
    assert lines < 4 * count
    assert not scene.engine.jobs
    assert not scene.engine.queues
    assert consistency.check_engine(scene.engine).total == 0


def test_a_flush_examines_only_queues_with_waiters():
    scene, count, lines = Scene(), 2000, []
    for number in range(count):
        scene.push(f"job-{number}", f"queue-{number}")
    scene.wait("first", "second")
    scene.engine.queue_set.by_name["queue-0"].paused = True

    def trace(frame, event, argument):
        if frame.f_code.co_filename.endswith("queues.py"):
            lines.append(frame.f_lineno)
        return trace

    sys.settrace(trace)
    try:
        scene.engine.flush(scene.now)
    finally:
        sys.settrace(None)
    assert len(lines) < count
    assert list(scene.engine.queues) == ["first", "second"]


def test_a_large_flush_frees_timers_and_tags_in_steps():
    """Only a few objects are freed at a time."""
    scene, count = Scene(), 20_000
    for number in range(count):
        due = scene.now + 1_000_000 + number
        scene.push(f"later-{number}", due_at=due, tags=["all", f"tag-{number}"])
    scene.engine.take_changes()
    scene.engine.set_alarm((scene, "alarm"), scene.now + 1_000_000)
    before = sys.getallocatedblocks()
    scene.engine.flush(scene.now)
    freed = [before - sys.getallocatedblocks()]
    assert len(scene.engine.timers) == 2  # the alarm, and the timer of the steps
    assert scene.engine.annotations.tags == {}
    while scene.engine.restoration._discarded:
        before = sys.getallocatedblocks()
        scene.engine.restoration.free_discarded(scene.now)
        freed.append(before - sys.getallocatedblocks())
    assert max(freed) < count
    assert sum(freed) > 5 * count


def test_a_flush_of_an_absent_protocol_changes_nothing(scene):
    scene.engine.take_changes()
    scene.engine.flush(scene.now, GOQUEUE)
    assert not scene.engine.change_set
    assert FAKTORY in {job.origin for job in scene.engine.jobs.values()}


def filled(count: int = 3000) -> Scene:
    """More jobs than a flush removes at once, in several states."""
    scene = Scene()
    for number in range(count):
        scene.push(f"job-{number}")
    for number in range(100):
        scene.push(f"later-{number}", "later", due_at=scene.now + 1_000_000)
        scene.push(f"ranked-{number}", "ranked", rank=number % 5)
    scene.push("duplicate", "other")
    scene.push("duplicate", "other")
    scene.lease()
    scene.engine.pause("default", paused=True, now=scene.now)
    return scene


def state_indexes(engine: Engine) -> list[dict]:
    done, dead = engine.done, engine.dead
    trimmed = [done, dead, engine.done_untrimmed, engine.dead_untrimmed]
    return [*trimmed, engine.scheduled, engine.blocked, engine.leased, engine.staged]


def free_all(scene: Scene) -> None:
    for _ in range(100):
        scene.engine.restoration.free_discarded(scene.now)
    assert not scene.engine.restoration._discarded


def test_no_component_keeps_the_table_that_a_flush_replaces():
    """A component with the old table would find jobs that do not exist, and change them."""
    scene = filled()
    engine = scene.engine
    limited = Caller(engine, NO_PROTOCOL, rule=QueueRule(["*"]))
    engine.caller = limited
    assert len(engine.tables.jobs) == len(engine.jobs)
    engine.caller = engine.server_caller
    service = AdminService(engine, 10)
    old = [engine.jobs, engine.by_jid, *state_indexes(engine)]
    allowed = [old, engine.restoration._discarded._stack, sys._getframe()]
    engine.flush(scene.now)
    now = [engine.jobs, engine.by_jid, *state_indexes(engine)]
    assert not any(each is before for each, before in zip(now, old, strict=True))
    del now
    gc.unfreeze()  # get_referrers() ignores objects that are excluded from the collection
    for table in old:
        keep = {id(each) for each in (*allowed, locals())}
        holders = [each for each in gc.get_referrers(table) if id(each) not in keep]
        assert not holders, [type(each) for each in holders]
    scene.push("new")
    for caller in (limited, engine.server_caller):
        engine.caller = caller
        tables = service.engine.tables
        assert [job.jid for job in tables.jobs.values()] == ["new"]
        assert tables.by_jid["new"].seq in tables.jobs
    assert consistency.check_engine(engine).total == 0


def test_a_large_flush_removes_no_job_from_an_index_at_once():
    """Emptying an index of a million jobs takes 20 ms."""
    scene, count = Scene(), 1000
    engine = scene.engine
    root = scene.push("root", "root")
    for number in range(count):
        scene.push(f"later-{number}", due_at=scene.now + 1_000_000)
        scene.push(f"blocked-{number}", blockers=[root.seq])
        engine.kill(scene.push(f"dead-{number}"), scene.now)
        scene.push(f"failed-{number}", "failing")
        scene.fail(scene.lease("failing"), f"Error{number % 3}")
    for number in range(count):
        scene.push(f"leased-{number}", "leased")
        scene.lease("leased")
    groups = engine.failure_groups
    old = [*state_indexes(engine), engine.dependencies.by_blocker, groups.by_fingerprint]
    before = list(map(len, old))
    assert sorted(before) == [0, 0, 0, 0, 1, 3, *[count] * 3, 2 * count]
    assert len(groups._group_of) == count
    engine.flush(scene.now)
    assert list(map(len, old)) == before
    assert not any(map(len, state_indexes(engine)))
    assert not engine.dependencies
    assert not len(groups)
    left = sum(before)
    while engine.restoration._discarded:
        engine.restoration.free_discarded(scene.now)
        freed, left = left - sum(map(len, old)), sum(map(len, old))
        assert freed <= DISCARD_BATCH_SIZE
    assert not left
    job = scene.push("new")
    assert scene.lease() is job
    assert list(engine.tables.leased) == [job.seq]
    scene.fail(job)
    assert list(engine.tables.leased) == []
    assert list(engine.tables.scheduled) == [job.seq]
    assert consistency.check_engine(engine).total == 0


def test_a_check_in_slices_finds_no_problem_after_a_large_flush(monkeypatch):
    """The flush may follow any slice. The check continues with the new indexes."""
    monkeypatch.setattr(consistency, "CHECK_BATCH_SIZE", 1)
    monkeypatch.setattr(restoration, "DISCARD_BATCH_SIZE", 1)
    begun, ended = 0, False
    while not ended:
        scene = Scene()
        for name in ("default", "failing", "dead", "done"):
            for number in range(3):
                scene.push(f"{name}-{number}", name, tags=["red"])
        scene.engine.leases.holders.add("bound")
        assert scene.engine.lease(["default"], "bound", MASENKO, scene.now)
        scene.lease()
        scene.fail(scene.lease("failing"))
        for _ in range(2):
            dead = scene.lease("dead")
            scene.engine.fail(dead, scene.now, FAKTORY, "Oops", "it broke", [], final=True)
        scene.complete(scene.lease("done"), result=b"1")
        scene.push("later", due_at=scene.now + 1_000_000)
        scene.push("blocked", blockers=[scene.push("root").seq])
        check = consistency.check_in_slices(scene.engine)
        list(islice(check, begun))
        scene.engine.flush(scene.now)
        try:
            while True:
                next(check)
                while scene.engine.restoration._discarded:
                    scene.engine.restoration.free_discarded(scene.now)
        except StopIteration as end:
            report = end.value
        ended = report is None
        assert ended or report.total == 0, (begun, report.problems)
        begun += 1


def test_the_jobs_after_a_large_flush_are_not_freed():
    """A queue with waiting clients survives the flush, and its new jobs must too."""
    scene = filled()
    scene.engine.pause("waited", paused=True, now=scene.now)
    scene.push("old", "waited")
    scene.wait("waited")
    scene.engine.flush(scene.now)
    scene.engine.pause("waited", paused=True, now=scene.now)
    for queue in ("waited", "default", "later"):
        scene.push(f"new-{queue}", queue)
    free_all(scene)
    assert jids(scene) == {"new-waited", "new-default", "new-later"}
    assert consistency.check_engine(scene.engine).total == 0
    scene.engine.pause("waited", paused=False, now=scene.now)
    assert [job.jid for _, job in scene.engine.waiters.deliveries] == ["new-waited"]
    assert scene.lease().jid == "new-default"


def test_a_refused_large_flush_restores_the_state():
    scene, store = filled(), FailingMemoryStore()
    scene.engine.durable = True
    commit(scene.engine, store)
    before = durable_but_for_seqs(scene.engine)
    scene.engine.flush(scene.now)
    scene.engine.restoration.free_discarded(scene.now)
    scene.push("lost")
    store.fail = "commit"
    assert not commit_or_revert(scene.engine, store)
    free_all(scene)
    assert durable_but_for_seqs(scene.engine) == before
    assert consistency.check_engine(scene.engine).total == 0


def test_a_large_flush_is_durable():
    scene, store = filled(), MemoryStore()
    commit(scene.engine, store)
    scene.engine.flush(scene.now)
    scene.push("new")
    commit(scene.engine, store)
    free_all(scene)
    assert durable_state(recover(store)) == durable_state(scene.engine)


@pytest.mark.parametrize("begun", [0, 1, 5, 30])
def test_a_long_command_survives_a_flush(begun):
    """Its next slices find the new jobs only, and change no job that was removed."""
    scene = filled()
    engine = scene.engine
    service = AdminService(engine, 10)
    works = [
        engine.removal.flush_steps(lambda: scene.now, FAKTORY),
        engine.removal.remove_queue_in_slices("default", scene.now),
        consistency.check_in_slices(engine),
        mutate.carry_out(engine, mutate.Operation("kill", "scheduled", [], None, ""), scene.now),
        iter(Candidates(service, JobFilter())),
        iter(Candidates(service, JobFilter(id="duplicate"))),
        iter(Candidates(service, JobFilter(state="scheduled"), order="due")),
        iter(Candidates(service, JobFilter(state="ready", queue="ranked"), order="queue")),
    ]
    for work in works:
        list(islice(work, begun))
    engine.flush(scene.now)
    new = scene.push("new", "new")
    for work in works:
        for found in work:
            assert not isinstance(found, Job) or found is new
    assert jids(scene) <= {"new"}
    free_all(scene)
    assert consistency.check_engine(engine).total == 0
