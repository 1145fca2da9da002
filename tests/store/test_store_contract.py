"""The contract of every store."""

from collections.abc import Callable

import pytest

from failing_stores import FailingMemoryStore
from millrace.engine.change_set import ChangeSet
from millrace.engine.engine import Engine
from millrace.engine.job import Extra, Failure, Job, JobTotals, LeaseHistory
from millrace.engine.states import DONE, LEASED, READY
from millrace.protocols.spec import protocol_rules
from millrace.store import StoreWriteFailed
from millrace.store.records import decode_any, encode
from scene import SECOND, START, Scene, commit, commit_or_revert, durable_state, recover
from support.plain import copy_of, field_names, values


@pytest.fixture(params=["memory", "sqlite", "sqlite, folding"])
def reopen(request, open_store) -> Callable[[], object]:
    """The store after a restart; a new store the first time."""
    if request.param == "memory":
        store = FailingMemoryStore()
        return lambda: store.close() or store
    if request.param == "sqlite, folding":
        request.getfixturevalue("small_generations")
    return open_store


@pytest.fixture
def store(reopen):
    store = reopen()
    store.load()
    return store


@pytest.fixture
def scene() -> Scene:
    return Scene()


def create_jobs_in_every_state(scene: Scene, store) -> None:
    """Create jobs in every state, over several commits."""
    scene.engine.pause("b", paused=False, now=scene.now)
    for n in range(30):
        scene.push(f"job-{n}", "abc"[n % 3], payload=b"x" * n * 10, tags=["red"] if n % 5 else [])
        if n % 4 == 3:
            commit(scene.engine, store)
    scene.advance(1)
    for n in range(8):
        job = scene.lease("abc"[n % 3])
        if n == 1:
            scene.complete(job)
        elif n == 2:
            scene.complete(job, result=b"\x00\xff", keep_until=scene.now + 3600 * SECOND)
        elif n % 3 == 0:
            scene.fail(job)
        commit(scene.engine, store)
    scene.engine.kill(scene.engine.find("job-20"), scene.now)
    scene.push("scheduled", due_at=scene.now + 60 * SECOND)
    scene.push("blocked", blockers=[scene.engine.find("job-21").seq])
    commit(scene.engine, store)
    scene.engine.pause("b", paused=True, now=scene.now)
    scene.advance(30)
    commit(scene.engine, store)


def test_a_new_store_is_empty(reopen):
    recovered = reopen().load()
    assert (recovered.jobs, recovered.queues) == ({}, {})
    assert (recovered.next_seq, recovered.processed, recovered.failures) == (1, 0, 0)
    assert recovered.statistics.days == {}


def test_the_committed_state_is_complete_after_a_restart(scene, store, reopen):
    create_jobs_in_every_state(scene, store)
    assert durable_state(recover(reopen())) == durable_state(scene.engine)
    # again, from the rows that the restart wrote
    assert durable_state(recover(reopen())) == durable_state(scene.engine)


def test_the_store_continues_after_a_restart(scene, store, reopen):
    create_jobs_in_every_state(scene, store)
    store = reopen()
    again = Scene(recover(store))
    again.now = scene.now
    create_jobs_in_every_state(again, store)
    assert durable_state(recover(reopen())) == durable_state(again.engine)


def full_job(seq: int) -> Job:
    """A job with an unusual value in every field."""
    history = LeaseHistory(
        attempt=26,
        failures=25,
        leased_at=START + 3,
        deadline=START + 4,
        holder="worker-é",
        holder_protocol=3,
        failure=Failure(START + 5, START + 6, "Group", "Message\n", ["one", "", "ünicode"]),
        ended_at=START + 7,
        outcome="completed",
        totals=JobTotals(2, 1, 30, 40, START + 8, 10, 3, "first", complete=False),
    )
    return Job(
        seq=seq,
        jid="jid-ü-\U0001f980\x00",
        kind="Kind::Of<Job>",
        inline_payload=bytes(range(256)),
        origin=6,
        created=START,
        lease_duration=86_400 * SECOND,
        retries=-(2**63),
        wire_fields=b"\n\n\xff\n",
        queue="queue-ß",
        state=READY,
        rank=-(2**31),
        position=START + 1,
        due_at=2**63 - 1,
        ready_at=START + 2,
        history=history,
        extra=Extra(tags=["red", ""], blockers=[2**40, 7], result=b"\x00\x80", transient=True),
        expires_at=START + 5,
        max_attempts=9,
    )


def write(store, **parts: dict) -> None:
    batch = ChangeSet()
    for name, part in parts.items():
        setattr(batch, name, part)
    engine = Engine(None, protocol_rules())
    engine.jobs = {**batch.new, **batch.changed}
    engine.next_seq = 1000
    store.prepare(batch, engine)
    store.commit()


def test_every_field_of_a_job_is_loaded_unchanged(store, reopen):
    job = full_job(5)
    for name in field_names(Job):
        assert getattr(job, name) or name == "stored_size", "the field needs a value"
    assert all(getattr(job, name) for name in field_names(LeaseHistory)), "a field needs a value"
    write(store, new={5: job})
    assert values(reopen().load().jobs) == values({5: job})
    assert values(reopen().load().jobs) == values({5: job})


def test_every_changed_field_is_loaded(store, reopen):
    before = full_job(5)
    write(store, new={5: before})
    store = reopen()
    store.load()
    after = copy_of(
        before,
        queue="other",
        state=LEASED,
        rank=7,
        position=1,
        due_at=2,
        ready_at=5,
        history=LeaseHistory(3, 4, 6, 7, "another", 0, Failure(8, 9, "", "", [])),
        extra=Extra(result=b""),
    )
    fields = field_names(Job)
    changing = fields[fields.index("queue") : fields.index("expires_at")]
    for name in changing:
        assert getattr(after, name) != getattr(before, name), "the field needs another value"
    for name in field_names(LeaseHistory):
        assert getattr(after, name) != getattr(before, name), "the field needs another value"
    write(store, changed={5: after})
    assert values(reopen().load().jobs) == values({5: after})
    assert values(reopen().load().jobs) == values({5: after})


def test_none_is_loaded_as_none(store, reopen):
    job = full_job(5)
    write(store, new={5: job})
    job.history.failure, job.extra = None, None
    write(store, changed={5: job})
    found = reopen().load().jobs[5]
    assert (found.failure, found.extra) == (None, None)


def test_a_prepared_change_set_is_not_committed(scene, store, reopen):
    scene.push("committed")
    commit(scene.engine, store)
    before = durable_state(scene.engine)
    scene.push("begun")
    scene.complete(scene.lease())
    store.prepare(scene.engine.take_changes(), scene.engine)
    assert durable_state(recover(reopen())) == before


@pytest.mark.parametrize("when", ["begin", "commit"])
def test_a_refused_change_set_leaves_no_trace(scene, store, reopen, when):
    create_jobs_in_every_state(scene, store)
    before = durable_state(scene.engine)
    store.fail = when
    for n in range(10):
        scene.push(f"new-{n}", "new")
    scene.complete(scene.lease("a"))
    scene.fail(scene.lease("a"))
    scene.engine.cancel(scene.engine.find("job-21"), scene.now)
    assert not commit_or_revert(scene.engine, store)
    state = durable_state(scene.engine)
    assert state | {"next_seq": 0} == before | {"next_seq": 0}
    assert durable_state(recover(reopen())) == before


@pytest.mark.parametrize("when", ["begin", "commit"])
def test_the_store_continues_after_a_failure(scene, store, reopen, when):
    create_jobs_in_every_state(scene, store)
    store.fail = when
    scene.push("refused")
    assert not commit_or_revert(scene.engine, store)
    store.fail = ""
    scene.engine.resume(scene.now)
    create_jobs_in_every_state(scene, store)
    assert durable_state(recover(reopen())) == durable_state(scene.engine)
    assert "refused" not in [event[3] for event in all_events(reopen())]


@pytest.mark.parametrize("when", ["begin", "commit"])
def test_a_refused_flush_removes_nothing(scene, store, reopen, when):
    create_jobs_in_every_state(scene, store)
    before = durable_state(scene.engine)
    store.fail = when
    scene.engine.flush(scene.now)
    scene.push("after the flush")
    assert not commit_or_revert(scene.engine, store)
    assert durable_state(scene.engine) | {"next_seq": 0} == before | {"next_seq": 0}
    store.fail = ""
    scene.engine.resume(scene.now)
    create_jobs_in_every_state(scene, store)
    assert durable_state(recover(reopen())) == durable_state(scene.engine)


def test_a_failing_store_raises_store_failing(scene, store):
    scene.push()
    store.fail = "commit"
    with pytest.raises(StoreWriteFailed, match="disk full"):
        commit(scene.engine, store)


def test_load_jobs_returns_the_requested_jobs_as_committed(scene, store):
    kept, cancelled, leased = (scene.push(f"job-{n}") for n in range(3))
    commit(scene.engine, store)
    scene.engine.cancel(cancelled, scene.now)
    commit(scene.engine, store)
    record = decode_any(encode(leased))
    scene.lease()
    scene.lease()
    recovered = store.load_jobs([cancelled.seq, leased.seq, 999])
    assert list(recovered.jobs) == [leased.seq]
    assert decode_any(encode(recovered.jobs[leased.seq])) == record
    assert recovered.queues == {"default": False}
    assert kept.seq not in recovered.jobs


def test_only_later_changes_remain_after_a_flush(scene, store, reopen):
    create_jobs_in_every_state(scene, store)
    scene.push("before", "before")
    scene.engine.flush(scene.now)
    job = scene.push("after", "after")
    commit(scene.engine, store)
    recovered = reopen().load()
    assert list(recovered.jobs) == [job.seq]
    assert recovered.queues == {"after": False}
    assert (recovered.processed, recovered.failures) == (0, 0)
    assert recovered.next_seq == job.seq + 1
    assert recovered.statistics.days == {}


def test_a_flushed_store_stays_empty(scene, store, reopen):
    create_jobs_in_every_state(scene, store)
    scene.engine.flush(scene.now)
    commit(scene.engine, store)
    assert durable_state(recover(reopen())) == durable_state(scene.engine)
    assert scene.engine.jobs == {}


def test_a_result_is_stored(scene, store, reopen):
    scene.complete(scene.pushed_and_leased(), result=b"\x00", keep_until=START + SECOND)
    commit(scene.engine, store)
    job = reopen().load().jobs[1]
    assert (job.state, job.extra.result) == (DONE, b"\x00")


def test_pauses_and_removals_of_queues_are_stored(scene, store, reopen):
    for name in "abc":
        scene.push(queue=name)
    scene.engine.pause("a", paused=True, now=scene.now)
    scene.engine.pause("b", paused=True, now=scene.now)
    commit(scene.engine, store)
    scene.engine.pause("b", paused=False, now=scene.now)
    scene.engine.remove_queue("c", scene.now)
    commit(scene.engine, store)
    assert reopen().load().queues == {"a": True, "b": False}


def all_events(store) -> list:
    if isinstance(store, FailingMemoryStore):
        return store.events()
    rows = store._db.execute("SELECT events FROM outbox ORDER BY first").fetchall()
    return [event for (blob,) in rows for event in decode_any(blob)]


def test_every_event_is_stored_once_and_in_order(scene, store, reopen):
    expected = []
    for _ in range(3):
        scene.push("job")
        scene.complete(scene.lease())
        expected += decode_any(encode(scene.engine.change_set.events))
        commit(scene.engine, store)
        store = reopen()
        scene = Scene(recover(store))
    assert len(expected) == 9
    assert all_events(store) == expected


def test_a_flush_does_not_forget_events(scene, store, reopen):
    scene.push("before")
    commit(scene.engine, store)
    scene.push("just before")
    scene.engine.flush(scene.now)
    scene.push("after")
    commit(scene.engine, store)
    types = [(event[1], event[3]) for event in all_events(reopen())]
    assert types == [
        ("pushed", "before"),
        ("pushed", "just before"),
        ("flushed", ""),
        ("pushed", "after"),
    ]


def test_queues_removed_and_reopened_within_a_change_set_are_last(scene, store, reopen):
    for name in ("a", "b", "c"):
        scene.push(name, name)
    commit(scene.engine, store)
    scene.engine.remove_queue("a", scene.now)
    scene.engine.remove_queue("b", scene.now)
    for name in ("d", "b", "a"):
        scene.push(f"{name} again", name)
    scene.engine.pause("d", paused=True, now=scene.now)
    assert list(scene.engine.queues) == ["c", "d", "b", "a"]
    commit(scene.engine, store)
    assert list(recover(reopen()).queues) == ["c", "d", "b", "a"]
