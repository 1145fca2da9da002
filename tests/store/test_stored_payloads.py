"""Large payloads are in the store: written once, read when a worker leases the job."""

import sqlite3

import pytest

import millrace.store.sqlite.reader
from millrace.engine.errors import PayloadDamaged
from millrace.store import SqliteStore, StoreDamaged
from millrace.store.sqlite.check import check_folder
from millrace.store.sqlite.payloads import MAX_INLINE_PAYLOAD
from older_formats import downgrade
from scene import Scene, commit, commit_or_revert, durable_state, recover, refused


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def store(open_store):
    store = open_store()
    store.load()
    return store


pytestmark = pytest.mark.usefixtures("small_generations")

LARGE = bytes(range(256)) * 40


def rows(store: SqliteStore) -> dict[int, bytes]:
    return dict(store._db.execute("SELECT seq, payload FROM payloads"))


def test_a_large_payload_leaves_memory_after_its_commit(scene, store):
    large, small = scene.push(payload=LARGE), scene.push(payload=b"x" * MAX_INLINE_PAYLOAD)
    assert large.inline_payload == LARGE
    commit(scene.engine, store)
    assert (large.inline_payload, large.stored_size) == (b"", len(LARGE))
    assert (len(small.inline_payload), small.stored_size) == (MAX_INLINE_PAYLOAD, 0)
    assert scene.engine.payload(large) == LARGE
    assert scene.engine.payload_part(large, 100, 50) == LARGE[100:150]
    assert scene.engine.payload_part(large, len(LARGE) - 5, 50) == LARGE[-5:]
    assert scene.engine.payload_part(large, len(LARGE), 50) == b""
    assert rows(store) == {large.seq: LARGE}


def test_a_large_payload_is_written_once(scene, store):
    statements: list[str] = []
    store._db.set_trace_callback(statements.append)
    job = scene.push(payload=LARGE)
    commit(scene.engine, store)
    scene.fail(scene.lease())
    commit(scene.engine, store)
    store._db.set_trace_callback(None)
    assert sum(LARGE.hex().upper() in statement.upper() for statement in statements) == 1
    assert scene.engine.payload(job) == LARGE


def test_a_large_payload_survives_a_restart(scene, store, open_store):
    for n in range(5):
        scene.push(f"job-{n}", payload=LARGE + bytes([n]))
        commit(scene.engine, store)
    before = durable_state(scene.engine)
    engine = recover(open_store())
    assert all(not job.inline_payload for job in engine.jobs.values())
    assert durable_state(engine) == before
    assert durable_state(recover(open_store())) == before


def test_a_large_payload_is_deleted_with_its_job(scene, store, open_store):
    kept = scene.push("kept", payload=LARGE)
    scene.push("done", payload=LARGE)
    scene.push("removed", "other", payload=LARGE)
    commit(scene.engine, store)
    scene.engine.cancel(scene.engine.find("done"), scene.now)
    scene.engine.remove_queue("other", scene.now)
    commit(scene.engine, store)
    assert rows(store) == {kept.seq: LARGE}
    assert set(recover(open_store()).jobs) == {kept.seq}


def test_a_flush_deletes_all_payloads_before_it(scene, store, open_store):
    scene.push("before", payload=LARGE)
    commit(scene.engine, store)
    scene.engine.flush(scene.now)
    after = scene.push("after", payload=LARGE)
    commit(scene.engine, store)
    assert rows(store) == {after.seq: LARGE}
    engine = recover(open_store())
    assert engine.payload(engine.jobs[after.seq]) == LARGE


@pytest.mark.parametrize("payload", [b"small", LARGE[::-1]])
def test_a_new_payload_replaces_the_old_one(scene, store, open_store, payload):
    job = scene.push(payload=LARGE)
    commit(scene.engine, store)
    scene.engine.update(job, payload=payload)
    assert scene.engine.payload(job) == payload
    commit(scene.engine, store)
    assert scene.engine.payload(job) == payload
    assert (job.seq in rows(store)) == (payload != b"small")
    engine = recover(open_store())
    assert engine.payload(engine.jobs[job.seq]) == payload


def test_a_change_of_another_field_keeps_the_payload(scene, store, open_store):
    job = scene.push(payload=LARGE)
    commit(scene.engine, store)
    scene.engine.update(job, kind="Other", retries=3)
    commit(scene.engine, store)
    engine = recover(open_store())
    assert engine.jobs[job.seq].kind == "Other"
    assert engine.payload(engine.jobs[job.seq]) == LARGE


def test_a_payload_that_changes_during_its_commit_stays_in_memory(scene, store):
    job = scene.push(payload=LARGE)
    store.prepare(scene.engine.take_changes(), scene.engine)
    scene.engine.update(job, payload=LARGE[::-1])
    store.commit()
    for seq, payload in store.take_stored_payloads().items():
        scene.engine.payloads.move_out_of_memory(seq, payload)
    assert scene.engine.payload(job) == LARGE[::-1]
    commit(scene.engine, store)
    assert scene.engine.payload(job) == LARGE[::-1]
    assert rows(store) == {job.seq: LARGE[::-1]}


@pytest.mark.parametrize("when", ["begin", "commit"])
def test_a_refused_change_set_leaves_all_payloads(scene, store, open_store, when):
    for n in range(4):
        scene.push(f"job-{n}", payload=LARGE + bytes([n]))
    commit(scene.engine, store)
    before = durable_state(scene.engine)
    store.fail = when
    scene.engine.cancel(scene.engine.find("job-0"), scene.now)
    scene.engine.update(scene.engine.find("job-1"), payload=b"small")
    scene.engine.update(scene.engine.find("job-2"), payload=LARGE[::-1])
    scene.push("new", payload=LARGE)
    assert not commit_or_revert(scene.engine, store)
    store.fail = ""
    scene.engine.resume(scene.now)
    now = durable_state(scene.engine)
    assert now["jobs"] == before["jobs"]
    scene.push("later", payload=LARGE)
    commit(scene.engine, store)
    assert durable_state(recover(open_store()))["jobs"] == durable_state(scene.engine)["jobs"]


def test_a_refused_flush_leaves_all_payloads(scene, store, open_store):
    scene.push("a", payload=LARGE)
    commit(scene.engine, store)
    before = durable_state(scene.engine)["jobs"]
    scene.engine.flush(scene.now)
    refused(scene, store)
    assert durable_state(scene.engine)["jobs"] == before
    assert durable_state(recover(open_store()))["jobs"] == before


def test_a_full_disk_while_the_payload_is_written(scene, store):
    kept = scene.push("kept", payload=LARGE)
    commit(scene.engine, store)
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages + 20}")
    scene.push("too large", payload=LARGE * 100)
    assert not commit_or_revert(scene.engine, store)
    assert [job.jid for job in scene.engine.jobs.values()] == ["kept"]
    assert scene.engine.payload(scene.engine.jobs[kept.seq]) == LARGE
    store._db.execute("PRAGMA max_page_count = 1000000")
    scene.engine.resume(scene.now)
    large = scene.push("large", payload=LARGE * 100)
    commit(scene.engine, store)
    assert scene.engine.payload(large) == LARGE * 100


def test_the_payload_of_a_removed_job_is_empty(scene, store):
    """A long command may still use the job."""
    job = scene.push(payload=LARGE)
    commit(scene.engine, store)
    scene.engine.cancel(job, scene.now)
    assert scene.engine.payload(job) == LARGE
    commit(scene.engine, store)
    assert scene.engine.payload(job) == b""
    assert scene.engine.payload_part(job, 0, 10) == b""


def test_a_job_of_an_older_format_keeps_its_payload_until_it_changes(scene, folder, open_store):
    store = SqliteStore(folder, sync=False, max_inline_payload=1 << 30)
    store.load()
    job = scene.push(payload=LARGE)
    commit(scene.engine, store)
    store.close()
    downgrade(folder, 3)
    store = open_store()
    engine = recover(store)
    job = engine.jobs[job.seq]
    assert job.inline_payload == LARGE
    engine.update(job, retries=2)
    commit(engine, store)
    assert (job.stored_size, engine.payload(job)) == (len(LARGE), LARGE)
    engine = recover(open_store())
    assert engine.payload(engine.jobs[job.seq]) == LARGE


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE payloads SET payload = zeroblob(length(payload))",
        "UPDATE payloads SET payload = x'00'",
        "DELETE FROM payloads",
        "UPDATE payloads SET seq = seq + 1",
    ],
)
def test_damage_is_found_at_startup_and_by_the_check(scene, store, folder, open_store, statement):
    scene.push(payload=LARGE)
    commit(scene.engine, store)
    open_store.close()
    db = sqlite3.connect(folder / "millrace.db", isolation_level=None)
    db.execute(statement)
    db.close()
    assert check_folder(folder).problems
    with pytest.raises(StoreDamaged):
        open_store().load()


def test_damage_during_operation_is_found_by_the_reader(scene, store):
    job = scene.push(payload=LARGE)
    commit(scene.engine, store)
    store._db.execute("UPDATE payloads SET payload = zeroblob(length(payload))")
    with pytest.raises(PayloadDamaged, match="payload of job 1"):
        scene.engine.payload(job)


def test_damage_to_the_payload_is_found_by_the_reader_of_a_part(scene, store):
    job = scene.push(payload=LARGE)
    commit(scene.engine, store)
    assert scene.engine.payload_part(job, len(LARGE) - 5, 50) == LARGE[-5:]
    store._db.execute("UPDATE payloads SET payload = zeroblob(length(payload))")
    with pytest.raises(PayloadDamaged, match="payload of job 1"):
        scene.engine.payload_part(job, 100, 50)


# A large database: a start does not read its payloads


@pytest.fixture
def large_database(monkeypatch):
    monkeypatch.setattr(millrace.store.sqlite.reader, "MAX_VERIFIED_BYTES", 0)


def edit(folder, statement: str) -> None:
    db = sqlite3.connect(folder / "millrace.db", isolation_level=None)
    assert db.execute(statement).rowcount == 1
    db.close()


@pytest.mark.usefixtures("large_database")
def test_a_damaged_payload_of_a_large_database_is_found_when_it_is_read(
    scene, store, folder, open_store
):
    damaged, other = scene.push("damaged", payload=LARGE), scene.push("other", payload=LARGE)
    commit(scene.engine, store)
    open_store.close()
    edit(folder, f"UPDATE payloads SET payload = zeroblob({len(LARGE)}) WHERE seq = {damaged.seq}")
    assert f"payload of job {damaged.seq}" in check_folder(folder).problems[0]
    engine = recover(open_store())
    text = f"the payload of job {damaged.seq} is damaged: it does not match its checksum"
    with pytest.raises(PayloadDamaged, match=text):
        engine.payload(engine.jobs[damaged.seq])
    assert engine.payload(engine.jobs[other.seq]) == LARGE


@pytest.mark.usefixtures("large_database")
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE payloads SET payload = x'00' WHERE seq = 2",
        "UPDATE payloads SET sum = sum + 1 WHERE seq = 2",
        "DELETE FROM payloads WHERE seq = 2",
        "UPDATE payloads SET seq = 9 WHERE seq = 2",
        "INSERT INTO payloads VALUES (9, 0, x'00')",
        "INSERT INTO payloads VALUES (9, 0, x'')",
    ],
)
def test_wrong_rows_of_a_large_database_are_found_at_startup(
    scene, store, folder, open_store, change
):
    for n in range(3):
        scene.push(f"job-{n}", payload=LARGE)
    commit(scene.engine, store)
    open_store.close()
    edit(folder, change)
    assert check_folder(folder).problems
    with pytest.raises(StoreDamaged, match="payloads"):
        open_store().load()


def test_a_read_does_not_hold_the_log(scene, store):
    job = scene.push(payload=LARGE)
    commit(scene.engine, store)
    assert scene.engine.payload(job) == LARGE
    busy, *_ = store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert not busy


def test_events_have_the_size_of_the_payload(scene: Scene, store):
    scene.push(payload=LARGE)
    commit(scene.engine, store)
    scene.lease()
    (event,) = scene.engine.change_set.events
    assert event[17] == len(LARGE)


# Reading ahead


def selects(store, engine, jobs) -> int:
    """The number of statements that read the payloads of jobs, one after the other."""
    statements: list[str] = []
    store.payload_reader._open().set_trace_callback(statements.append)
    for job in jobs:
        assert engine.payload(job) == payload_of(job.seq)
    store.payload_reader._open().set_trace_callback(None)
    return len(statements)


def payload_of(seq: int) -> bytes:
    return b"%d " % seq * 100


def pushed_small(scene, store, count: int) -> list:
    store.max_inline_payload = 100
    jobs = [scene.push(payload=payload_of(scene.engine.next_seq)) for _ in range(count)]
    commit(scene.engine, store)
    assert all(job.stored_size for job in jobs)
    return jobs


def test_small_payloads_in_order_are_read_together(scene, store):
    jobs = pushed_small(scene, store, 200)
    assert selects(store, scene.engine, jobs) < 10
    assert selects(store, scene.engine, jobs[::-40]) == 5


def test_large_payloads_are_not_read_ahead(scene, store):
    for n in range(20):
        scene.push(f"large-{n}", payload=LARGE)
    commit(scene.engine, store)
    for n in range(20):
        assert scene.engine.payload(scene.engine.find(f"large-{n}")) == LARGE
        assert not store.payload_reader._ahead


def test_a_damaged_payload_does_not_affect_the_jobs_before_it(scene, store):
    jobs = pushed_small(scene, store, 20)
    store._db.execute("UPDATE payloads SET payload = zeroblob(length(payload)) WHERE seq = 9")
    for job in jobs:
        if job.seq == 9:
            with pytest.raises(PayloadDamaged, match="payload of job 9"):
                scene.engine.payload(job)
        else:
            assert scene.engine.payload(job) == payload_of(job.seq)


def test_a_payload_that_was_read_ahead_and_replaced_is_read_again(scene, store):
    jobs = pushed_small(scene, store, 20)
    assert scene.engine.payload(jobs[0])
    assert scene.engine.payload(jobs[1])
    assert jobs[5].seq in store.payload_reader._ahead
    scene.engine.update(jobs[5], payload=b"new " * 100)
    commit(scene.engine, store)
    assert scene.engine.payload(jobs[5]) == b"new " * 100
