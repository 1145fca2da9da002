"""What the server asks of any store, asked of each."""

from collections.abc import Callable

import msgspec
import pytest

from failing_stores import FailingMemoryStore
from millrace.engine.batch import Batch
from millrace.engine.engine import Engine
from millrace.engine.job import Extra, Failure, Job, Lifetime
from millrace.engine.states import DONE, LEASED, READY
from millrace.store import StoreFailing
from millrace.store.changes import decode_any, encode
from scene import SECOND, START, Scene, commit, commit_or_revert, durable_state, recover


@pytest.fixture(params=["memory", "sqlite", "sqlite, folding"])
def reopen(request, open_store) -> Callable[[], object]:
    """The store, as it is after a restart; the first time, a new one."""
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


def lively(scene: Scene, store) -> None:
    """Jobs in every state, over several commits."""
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
    scene.push("scheduled", due=scene.now + 60 * SECOND)
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


def test_everything_committed_is_there_after_a_restart(scene, store, reopen):
    lively(scene, store)
    assert durable_state(recover(reopen())) == durable_state(scene.engine)
    # and once more, from what the restart itself has written
    assert durable_state(recover(reopen())) == durable_state(scene.engine)


def test_it_goes_on_after_a_restart(scene, store, reopen):
    lively(scene, store)
    store = reopen()
    again = Scene(recover(store))
    again.now = scene.now
    lively(again, store)
    assert durable_state(recover(reopen())) == durable_state(again.engine)


def full_job(seq: int) -> Job:
    """A job with something unusual in every field."""
    return Job(
        seq=seq,
        jid="jid-ü-\U0001f980\x00",
        kind="Kind::Of<Job>",
        payload=bytes(range(256)),
        origin=6,
        created=START,
        lease_for=86_400 * SECOND,
        retries=-(2**63),
        spec=b"\n\n\xff\n",
        queue="queue-ß",
        state=READY,
        rank=-(2**31),
        place=START + 1,
        due=2**63 - 1,
        attempt=26,
        failures=25,
        ready_at=START + 2,
        leased_at=START + 3,
        deadline=START + 4,
        holder="worker-é",
        actor=3,
        failure=Failure(START + 5, START + 6, "Group", "Message\n", ["one", "", "ünicode"]),
        extra=Extra(tags=["red", ""], blockers=[2**40, 7], result=b"\x00\x80", fleeting=True),
        expires=START + 5,
        most_attempts=9,
        ended_at=START + 7,
        outcome="completed",
        lifetime=Lifetime(2, 1, 30, 40, START + 8, 10, 3, "first", complete=False),
    )


def write(store, **parts: dict) -> None:
    batch = Batch()
    for name, part in parts.items():
        setattr(batch, name, part)
    engine = Engine(None)
    engine.jobs = {**batch.new, **batch.changed}
    engine.next_seq = 1000
    store.begin(batch, engine)
    store.commit()


def test_every_field_of_a_job_comes_back_as_it_was(store, reopen):
    job = full_job(5)
    for name in Job.__struct_fields__:
        assert getattr(job, name), "give it a value"
    write(store, new={5: job})
    assert reopen().load().jobs == {5: job}
    assert reopen().load().jobs == {5: job}


def test_every_field_that_changes_comes_back_changed(store, reopen):
    before = full_job(5)
    write(store, new={5: before})
    store = reopen()
    store.load()
    after = msgspec.structs.replace(
        before,
        queue="other",
        state=LEASED,
        rank=7,
        place=1,
        due=2,
        attempt=3,
        failures=4,
        ready_at=5,
        leased_at=6,
        deadline=7,
        holder="another",
        actor=0,
        failure=Failure(8, 9, "", "", []),
        extra=Extra(result=b""),
    )
    fields = Job.__struct_fields__
    changing = fields[fields.index("queue") : fields.index("expires")]
    for name in changing:
        assert getattr(after, name) != getattr(before, name), "give it another value"
    write(store, changed={5: after})
    assert reopen().load().jobs == {5: after}
    assert reopen().load().jobs == {5: after}


def test_what_is_nothing_comes_back_as_nothing(store, reopen):
    job = full_job(5)
    write(store, new={5: job})
    job.failure, job.extra = None, None
    write(store, changed={5: job})
    found = reopen().load().jobs[5]
    assert (found.failure, found.extra) == (None, None)


def test_what_was_only_begun_is_not_there(scene, store, reopen):
    scene.push("committed")
    commit(scene.engine, store)
    before = durable_state(scene.engine)
    scene.push("begun")
    scene.complete(scene.lease())
    store.begin(scene.engine.take_batch(), scene.engine)
    assert durable_state(recover(reopen())) == before


@pytest.mark.parametrize("when", ["begin", "commit"])
def test_a_batch_that_cannot_be_written_leaves_nothing(scene, store, reopen, when):
    lively(scene, store)
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
def test_after_a_failure_the_store_goes_on(scene, store, reopen, when):
    lively(scene, store)
    store.fail = when
    scene.push("refused")
    assert not commit_or_revert(scene.engine, store)
    store.fail = ""
    scene.engine.resume(scene.now)
    lively(scene, store)
    assert durable_state(recover(reopen())) == durable_state(scene.engine)
    assert "refused" not in [event[3] for event in all_events(reopen())]


@pytest.mark.parametrize("when", ["begin", "commit"])
def test_a_flush_that_cannot_be_written_leaves_everything(scene, store, reopen, when):
    lively(scene, store)
    before = durable_state(scene.engine)
    store.fail = when
    scene.engine.flush(scene.now)
    scene.push("after the flush")
    assert not commit_or_revert(scene.engine, store)
    assert durable_state(scene.engine) | {"next_seq": 0} == before | {"next_seq": 0}
    store.fail = ""
    scene.engine.resume(scene.now)
    lively(scene, store)
    assert durable_state(recover(reopen())) == durable_state(scene.engine)


def test_a_failure_is_told_as_such(scene, store):
    scene.push()
    store.fail = "commit"
    with pytest.raises(StoreFailing, match="disk full"):
        commit(scene.engine, store)


def test_rereading_gives_the_jobs_asked_for_as_they_were_committed(scene, store):
    kept, gone, leased = (scene.push(f"job-{n}") for n in range(3))
    commit(scene.engine, store)
    scene.engine.cancel(gone, scene.now)
    commit(scene.engine, store)
    record = decode_any(encode(leased))
    scene.lease()
    scene.lease()
    recovered = store.reread([gone.seq, leased.seq, 999])
    assert list(recovered.jobs) == [leased.seq]
    assert decode_any(encode(recovered.jobs[leased.seq])) == record
    assert recovered.queues == {"default": False}
    assert kept.seq not in recovered.jobs


def test_a_flush_leaves_only_what_came_after_it(scene, store, reopen):
    lively(scene, store)
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


def test_an_empty_flush_stays_empty(scene, store, reopen):
    lively(scene, store)
    scene.engine.flush(scene.now)
    commit(scene.engine, store)
    assert durable_state(recover(reopen())) == durable_state(scene.engine)
    assert scene.engine.jobs == {}


def test_a_result_is_kept(scene, store, reopen):
    scene.complete(scene.pushed_and_leased(), result=b"\x00", keep_until=START + SECOND)
    commit(scene.engine, store)
    job = reopen().load().jobs[1]
    assert (job.state, job.extra.result) == (DONE, b"\x00")


def test_pauses_and_removals_of_queues_are_kept(scene, store, reopen):
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


def test_every_event_is_kept_once_and_in_order(scene, store, reopen):
    expected = []
    for _ in range(3):
        scene.push("job")
        scene.complete(scene.lease())
        expected += decode_any(encode(scene.engine.batch.events))
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


def test_queues_that_go_and_come_again_within_a_batch_are_behind_the_others(scene, store, reopen):
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
