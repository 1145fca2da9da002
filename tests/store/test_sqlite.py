"""The SQLite store: its tables, and its behaviour under failures."""

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from failing_stores import FailingSqliteStore
from millrace.engine.events import EVENT_VERSION
from millrace.engine.statistics import Statistics
from millrace.store import (
    DataFolderInUse,
    SqliteStore,
    StoreDamaged,
    StoreError,
    StoreWriteFailed,
    SyncFailed,
)
from millrace.store.records import decode_any
from millrace.store.sqlite import schema
from millrace.store.sqlite import store as sqlite
from millrace.store.sqlite.error_translation import translate_errors
from older_formats import downgrade
from scene import SECOND, Scene, commit, commit_or_revert, days_of, durable_state, recover

pytestmark = pytest.mark.usefixtures("small_generations")


@pytest.fixture
def store(open_store) -> FailingSqliteStore:
    store = open_store()
    store.load()
    return store


@pytest.fixture
def scene() -> Scene:
    return Scene()


#: The format after this one.
NEXT = schema.SCHEMA + 1


def count(store: SqliteStore, table: str) -> int:
    return store._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def fold(scene: Scene, store: SqliteStore) -> None:
    """Commit short-lived jobs until every earlier turn is folded."""
    for _ in range(20):
        for _ in range(4):
            scene.push("passing", "passing")
        commit(scene.engine, store)
        scene.engine.remove_queue("passing", scene.now)
        commit(scene.engine, store)
    assert count(store, "turns") < 20


def outbox(store: SqliteStore) -> list[tuple[int, list]]:
    """Every event with its id."""
    rows = store._db.execute("SELECT first, count, version, events FROM outbox ORDER BY first")
    found = []
    for first, number, version, blob in rows.fetchall():
        events = decode_any(blob)
        assert len(events) == number
        assert version == EVENT_VERSION
        found += list(enumerate(events, first))
    return found


def damage(folder: Path, statement: str, *values: object) -> None:
    db = sqlite3.connect(folder / "millrace.db")
    with db:
        db.execute(statement, values)
    db.close()


# Rows written


def test_turns_are_folded_into_tables_and_deleted(scene, store):
    for n in range(100):
        scene.push(f"job-{n}")
        commit(scene.engine, store)
        assert count(store, "turns") <= 12
    assert count(store, "jobs") >= 80
    fold(scene, store)
    assert count(store, "jobs") >= 100


def test_removed_jobs_leave_no_rows(scene, store):
    for n in range(50):
        scene.push(f"job-{n}")
        commit(scene.engine, store)
    while (job := scene.lease()) is not None:
        scene.complete(job)
        commit(scene.engine, store)
    fold(scene, store)
    seqs = {seq for (seq,) in store._db.execute("SELECT seq FROM jobs")}
    assert not seqs & set(range(1, 51))
    assert count(store, "jobs") + count(store, "states") < 30


def test_a_job_completed_within_a_generation_is_never_in_a_table(scene, store):
    statements = traced(store)
    scene.push("short-lived")
    commit(scene.engine, store)
    scene.complete(scene.lease())
    commit(scene.engine, store)
    fold(scene, store)
    assert not [s for s in statements if "INTO jobs" in s and "VALUES (1," in s]


def traced(store: SqliteStore) -> list[str]:
    """Every statement from now on, with its values."""
    statements: list[str] = []
    store._db.set_trace_callback(statements.append)
    return statements


def test_a_change_of_state_never_rewrites_the_payload(scene, store):
    payload = b"[" + b"7" * 50_000 + b"]"
    job = scene.push("large", payload=payload)
    commit(scene.engine, store)
    fold(scene, store)
    (record,) = store._db.execute("SELECT record FROM jobs WHERE seq = 1").fetchone()
    statements = traced(store)
    for _ in range(3):
        assert scene.lease() is job
        commit(scene.engine, store)
        scene.engine.renew(job, scene.now + 60 * SECOND, scene.now)
        commit(scene.engine, store)
        scene.fail(job)
        fold(scene, store)
        scene.advance_to(job.due_at)
        scene.engine.kill(job, scene.now)
        commit(scene.engine, store)
        scene.engine.retry_now(job, scene.now)
        commit(scene.engine, store)
    fold(scene, store)
    store._db.set_trace_callback(None)
    assert any("INTO states" in statement for statement in statements)
    assert not [s for s in statements if " jobs " in s and s.startswith(("UPDATE", "REPLACE"))]
    assert not [s for s in statements if " INTO jobs " in s and "VALUES (1," in s]
    assert max(map(len, statements)) < 10_000, "no statement contains the payload"
    assert store._db.execute("SELECT record FROM jobs WHERE seq = 1").fetchone() == (record,)
    assert store.load_jobs([1]).jobs[1].stored_size == len(payload)
    assert scene.engine.payload(job) == payload
    assert store.load_jobs([1]).jobs[1].failures == 3


def test_a_turn_with_a_change_holds_no_payload(scene, store):
    scene.push(payload=b"[" + b"7" * 4000 + b"]")
    commit(scene.engine, store)
    scene.lease()
    commit(scene.engine, store)
    sizes = [size for (size,) in store._db.execute("SELECT length(changes) FROM turns ORDER BY id")]
    assert sizes[-2] > 4000
    assert sizes[-1] < 500


def test_a_restart_folds_all_turns(scene, store, open_store):
    for n in range(10):
        scene.push(f"job-{n}")
        scene.advance(1)
    commit(scene.engine, store)
    again = open_store()
    again.load()
    assert count(again, "jobs") == 10
    assert count(again, "turns") == 1


def test_a_restart_without_changes_writes_nothing(scene, store, open_store):
    scene.push()
    commit(scene.engine, store)
    open_store().load()
    again = open_store()
    statements = traced(again)
    again.load()
    assert not [s for s in statements if s.startswith(("INSERT", "DELETE", "UPDATE"))]


# The outbox


def test_every_event_is_in_the_outbox_once_with_an_increasing_id(scene, store, open_store):
    expected = []
    for n in range(30):
        scene.push(f"job-{n}")
        if n % 3:
            scene.complete(scene.lease())
        expected += [(row[1], row[3]) for row in scene.engine.change_set.events]
        commit(scene.engine, store)
        if n % 10 == 9:
            now, store = scene.now, open_store()
            scene = Scene(recover(store))
            scene.now = now
    found = outbox(store)
    assert [number for number, _ in found] == list(range(1, len(expected) + 1))
    assert [(event[1], event[3]) for _, event in found] == expected


@pytest.mark.parametrize("when", ["begin", "commit"])
def test_event_ids_have_no_gap_after_a_failure(scene, store, when):
    for fail in (when, "", when, ""):
        store.fail = fail
        scene.push("refused" if fail else "kept")
        assert commit_or_revert(scene.engine, store) == (not fail)
        scene.engine.unavailable_reason = ""
    assert [(number, event[3]) for number, event in outbox(store)] == [(1, "kept"), (2, "kept")]


def test_the_outbox_is_bounded_and_loses_the_oldest(open_store):
    store = open_store(outbox_max=10_000)
    store.load()
    scene = Scene()
    for n in range(500):
        scene.push(f"job-{n}")
        commit(scene.engine, store)
        scene.complete(scene.lease())
        commit(scene.engine, store)
        size = store._db.execute("SELECT total(length(events)) FROM outbox").fetchone()[0]
        assert size <= 10_000 + 6000  # a generation is added
    ids = [number for number, _ in outbox(store)]
    assert ids == list(range(ids[0], 1501))
    assert len(ids) > 20


def test_a_smaller_bound_holds_after_a_restart(scene, store, open_store):
    for n in range(100):
        scene.push(f"job-{n}")
        commit(scene.engine, store)
    store = open_store(outbox_max=2000)
    scene = Scene(recover(store))
    fold(scene, store)
    assert store._db.execute("SELECT total(length(events)) FROM outbox").fetchone()[0] < 6000


def test_the_recorded_size_of_the_outbox_is_exact(scene, store, open_store):
    def recorded_and_actual(store):
        return store._summary.outbox_bytes, int(
            store._db.execute("SELECT total(length(events)) FROM outbox").fetchone()[0]
        )

    for n in range(40):
        scene.push(f"job-{n}")
        commit(scene.engine, store)
    recorded, actual = recorded_and_actual(store)
    assert recorded == actual
    store = open_store(outbox_max=1000)
    scene = Scene(recover(store))
    fold(scene, store)
    recorded, actual = recorded_and_actual(store)
    assert recorded == actual
    store = open_store()
    store.load()
    assert recorded_and_actual(store) == (actual, actual)
    store.load_jobs([1])
    assert recorded_and_actual(store) == (actual, actual)


# Statistics


def busy_day(scene: Scene, store: SqliteStore) -> list[tuple]:
    """Generate a few hundred events over several days and return them."""
    events = []
    for n in range(120):
        scene.push(f"job-{n}", "ab"[n % 2], retries=(25, -1, 0)[n % 3])
        scene.advance(n * 10)
        job = scene.lease("a", "b")
        scene.advance(n * 20)
        if n % 3 and job.state == 3:
            scene.complete(job)
        elif job.state == 3:
            scene.fail(job)
        events += scene.engine.change_set.events
        commit(scene.engine, store)
    return events


def test_statistics_after_a_restart_equal_a_fold_over_all_events(scene, store, open_store):
    events = busy_day(scene, store)
    expected = Statistics()
    expected.add_events(events)
    assert len(expected.days) > 2
    assert days_of(scene.engine.statistics) == days_of(expected)
    store = open_store()
    assert days_of(store.load().statistics) == days_of(expected)
    assert days_of(open_store().load().statistics) == days_of(expected)


def test_statistics_are_right_although_the_outbox_lost_its_oldest(open_store):
    store, scene = open_store(outbox_max=3000), Scene()
    store.load()
    events = busy_day(scene, store)
    assert outbox(store)[0][0] > 1
    expected = Statistics()
    expected.add_events(events)
    assert days_of(open_store().load().statistics) == days_of(expected)


def test_statistics_are_right_after_a_failure_in_the_middle(scene, store, open_store):
    events = busy_day(scene, store)
    for when in ("begin", "commit"):
        store.fail = when
        scene.pushed_and_leased("refused", "c")
        assert not commit_or_revert(scene.engine, store)
        scene.engine.unavailable_reason = store.fail = ""
    events += busy_day(scene, store)
    expected = Statistics()
    expected.add_events(events)
    assert days_of(scene.engine.statistics) == days_of(expected)
    assert days_of(open_store().load().statistics) == days_of(expected)


def test_old_statistics_are_dropped(scene, store, open_store):
    scene.pushed_and_leased("old", "old")
    commit(scene.engine, store)
    fold(scene, store)
    assert count(store, "stats") == 1
    scene.now += 32 * 86_400 * SECOND
    scene.pushed_and_leased("new", "new")
    commit(scene.engine, store)
    fold(scene, store)
    assert [queue for queue, _ in open_store().load().statistics.days] == ["new"]


# Crashes


def copied(folder: Path, tmp_path: Path) -> SqliteStore:
    """The store as a process killed at this point leaves it."""
    crashed = tmp_path / "crashed"
    shutil.copytree(folder, crashed)
    return SqliteStore(crashed, sync=False)


def test_committed_changes_survive_a_kill(scene, store, folder, tmp_path):
    for n in range(20):
        scene.push(f"job-{n}")
        commit(scene.engine, store)
    scene.complete(scene.lease())
    commit(scene.engine, store)
    crashed = copied(folder, tmp_path)
    assert durable_state(recover(crashed)) == durable_state(scene.engine)
    crashed.close()


def test_a_kill_between_prepare_and_commit_loses_only_the_prepared_changes(
    scene, store, folder, tmp_path
):
    for n in range(20):
        scene.push(f"job-{n}")
        commit(scene.engine, store)
    before = durable_state(scene.engine)
    events = outbox(store)
    for n in range(20):
        scene.push(f"new-{n}", payload=b"x" * 10_000)
    scene.complete(scene.lease())
    store.prepare(scene.engine.take_changes(), scene.engine)
    crashed = copied(folder, tmp_path)
    assert durable_state(recover(crashed)) == before
    assert outbox(crashed) == events
    crashed.close()


# A full disk


def fill(store: SqliteStore) -> None:
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")


def free_space(store: SqliteStore) -> None:
    store._db.execute("PRAGMA max_page_count = 1000000")


def test_a_full_disk_refuses_a_change_set_without_loss(scene, store, open_store):
    for n in range(30):
        scene.push(f"job-{n}")
        commit(scene.engine, store)
    before = durable_state(scene.engine)
    fill(store)
    scene.push("large", payload=b"x" * 100_000)
    scene.lease()
    assert not commit_or_revert(scene.engine, store)
    assert scene.engine.unavailable_reason == "disk full"
    assert durable_state(scene.engine) | {"next_seq": 0} == before | {"next_seq": 0}
    free_space(store)
    scene.engine.resume(scene.now)
    scene.push("afterwards", payload=b"x" * 100_000)
    assert commit_or_revert(scene.engine, store)
    fold(scene, store)
    assert durable_state(recover(open_store())) == durable_state(scene.engine)


def test_a_store_on_a_full_disk_can_be_read(scene, store):
    for n in range(30):
        scene.push(f"job-{n}", payload=b"x" * 5000)
        commit(scene.engine, store)
    fill(store)
    assert durable_state(recover(store)) == durable_state(scene.engine)
    free_space(store)
    scene = Scene(recover(store))
    scene.push("afterwards")
    commit(scene.engine, store)
    assert durable_state(recover(store)) == durable_state(scene.engine)


def test_commits_are_refused_repeatedly_while_the_disk_stays_full(scene, store, open_store):
    scene.push("kept")
    commit(scene.engine, store)
    before = durable_state(scene.engine)
    fill(store)
    for n in range(5):
        scene.engine.unavailable_reason = ""
        scene.push(f"large-{n}", payload=b"x" * 100_000)
        assert not commit_or_revert(scene.engine, store)
    assert durable_state(recover(open_store())) == before


def test_a_successful_probe_leaves_no_file(store, folder):
    assert store.can_write()
    assert not (folder / "probe").exists()


def test_a_probe_fails_on_a_full_disk(store, folder, monkeypatch):
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    assert not store.can_write()
    assert not (folder / "probe").exists()


def test_a_change_set_that_cannot_be_encoded_does_not_block_later_ones(scene, store):
    job = scene.push()
    commit(scene.engine, store)
    job.due_at = 1 << 80  # no command creates this value
    scene.lease()
    with pytest.raises((StoreError, OverflowError)):
        commit(scene.engine, store)
    job.due_at = 0
    scene.push("afterwards")
    commit(scene.engine, store)
    assert count(store, "turns") >= 2


# Translated errors


def sqlite_error(code: int, name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_FULL, StoreWriteFailed),
        (sqlite3.SQLITE_IOERR_WRITE, StoreWriteFailed),
        (sqlite3.SQLITE_IOERR_READ, StoreWriteFailed),
        (sqlite3.SQLITE_BUSY, StoreWriteFailed),
        (sqlite3.SQLITE_LOCKED, StoreWriteFailed),
        (sqlite3.SQLITE_NOMEM, StoreWriteFailed),
        (sqlite3.SQLITE_IOERR_FSYNC, SyncFailed),
        (sqlite3.SQLITE_IOERR_DIR_FSYNC, SyncFailed),
        (sqlite3.SQLITE_CANTOPEN, StoreError),
        (sqlite3.SQLITE_CORRUPT, StoreDamaged),
        (sqlite3.SQLITE_NOTADB, StoreDamaged),
    ],
)
def test_each_sqlite_error_is_translated(code, expected):
    with pytest.raises(StoreError) as caught, translate_errors(Path("millrace.db")):
        raise sqlite_error(code, "SQLITE_X")
    assert type(caught.value) is expected


def test_a_foreign_write_lock_is_a_failure_and_not_damage(scene, store, folder):
    store._db.execute("PRAGMA busy_timeout = 20")
    other = sqlite3.connect(folder / "millrace.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    scene.push()
    with pytest.raises(StoreWriteFailed):
        commit(scene.engine, store)
    other.execute("ROLLBACK")
    other.close()


# One process per folder


def test_a_second_opener_is_refused(store, folder):
    with pytest.raises(DataFolderInUse) as caught:
        SqliteStore(folder)
    assert str(folder) in str(caught.value)
    assert str(os.getpid()) in str(caught.value)
    assert "--data" in str(caught.value)


def test_the_folder_is_locked_even_if_the_process_id_cannot_be_written(tmp_path, monkeypatch):
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    store = SqliteStore(tmp_path)
    with pytest.raises(DataFolderInUse, match="in use by process unknown"):
        SqliteStore(tmp_path)
    store.close()


def test_another_process_is_refused(store, folder):
    code = "import sys; from pathlib import Path; from millrace.store import SqliteStore\n"
    code += "SqliteStore(Path(sys.argv[1]))"
    ran = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=30
    )
    assert ran.returncode == 1
    assert f"in use by process {os.getpid()}" in ran.stderr


def test_a_refused_opener_changes_nothing(scene, store, folder, open_store):
    scene.push()
    commit(scene.engine, store)
    for _ in range(3):
        with pytest.raises(DataFolderInUse):
            SqliteStore(folder)
    assert (folder / "lock").read_text().strip() == str(os.getpid())
    assert durable_state(recover(open_store())) == durable_state(scene.engine)


def test_a_closed_store_can_be_opened_again(folder):
    for _ in range(2):
        SqliteStore(folder, sync=False).close()


def test_the_folder_is_created_private(tmp_path):
    folder = tmp_path / "some" / "where" / "data"
    SqliteStore(folder, sync=False).close()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match=r"cannot use the data folder .*file"):
        SqliteStore(tmp_path / "file")


def test_a_database_that_cannot_be_opened_is_named(folder):
    (folder / "millrace.db").mkdir(parents=True)
    for _ in range(2):  # the lock is released
        with pytest.raises(StoreError, match=r"cannot use .*millrace\.db: Is a directory"):
            SqliteStore(folder)


# Foreign files and files of other versions


def test_a_file_of_a_newer_version_is_refused(store, folder, open_store):
    store._db.execute(f"PRAGMA user_version = {schema.SCHEMA + 1}")
    with pytest.raises(StoreDamaged) as caught:
        open_store()
    text = str(caught.value)
    assert str(folder / "millrace.db") in text
    assert "newer" in text
    assert "backup" in text


def test_a_refused_file_is_not_changed_and_the_lock_is_released(store, folder, open_store):
    open_store.close()
    damage(folder, f"PRAGMA user_version = {schema.SCHEMA + 1}")
    for _ in range(2):  # a remaining lock would cause another error the second time
        with pytest.raises(StoreDamaged):
            open_store()
    damage(folder, f"PRAGMA user_version = {schema.SCHEMA}")
    assert open_store().load().jobs == {}


@pytest.mark.parametrize(
    "garbage", [b"this is no database at all, " * 100, b"SQLite format 3\x00" + b"\xff" * 4096]
)
def test_garbage_is_refused_with_its_path_and_a_remedy(folder, garbage):
    folder.mkdir()
    (folder / "millrace.db").write_bytes(garbage)
    with pytest.raises(StoreDamaged) as caught:
        SqliteStore(folder, sync=False)
    assert str(folder / "millrace.db") in str(caught.value)
    assert "backup" in str(caught.value)
    assert (folder / "millrace.db").read_bytes() == garbage


@pytest.mark.parametrize(
    ("table", "column"), [("jobs", "record"), ("states", "record"), ("turns", "changes")]
)
@pytest.mark.parametrize("rubbish", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x90"])
def test_an_invalid_record_is_damage(scene, store, folder, open_store, table, column, rubbish):
    scene.push()
    commit(scene.engine, store)
    fold(scene, store)
    scene.lease()
    commit(scene.engine, store)
    fold(scene, store)
    assert count(store, table) > 0
    open_store.close()
    damage(folder, f"UPDATE {table} SET {column} = ?", rubbish)
    with pytest.raises(StoreDamaged, match=r"millrace\.db.*backup"):
        open_store().load()


def test_an_older_file_is_migrated_once(store, open_store, monkeypatch):
    seen = []

    def migrate(db: sqlite3.Connection) -> None:
        seen.append(db.execute("PRAGMA user_version").fetchone()[0])
        db.execute("CREATE TABLE more (seq INTEGER PRIMARY KEY)")

    monkeypatch.setattr(schema, "SCHEMA", NEXT)
    monkeypatch.setattr(schema, "MIGRATIONS", {NEXT - 1: migrate})
    more = {"more": "CREATE TABLE more (seq INTEGER PRIMARY KEY)"}
    monkeypatch.setattr(schema, "TABLES", schema.TABLES | more)
    monkeypatch.setitem(schema.TABLE_NAMES, NEXT, frozenset(schema.TABLES))
    for _ in range(2):
        store = open_store()
        assert store._db.execute("PRAGMA user_version").fetchone() == (NEXT,)
        assert count(store, "more") == 0
    assert seen == [NEXT - 1]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_of_an_older_format_is_migrated(scene, store, folder, open_store, version):
    for n in range(30):
        scene.push(f"job-{n}", "ba"[n % 2], payload=b"x" * n * 100)
        commit(scene.engine, store)
        if n % 3 == 2:
            scene.complete(scene.lease("b"))
            commit(scene.engine, store)
    open_store.close()
    downgrade(folder, version)
    store = open_store()
    engine = recover(store)
    assert durable_state(engine) == durable_state(scene.engine)
    assert list(engine.queues) == (["a", "b"] if version == 1 else ["b", "a"])
    engine.set_setting("a/b", b"kept")
    commit(engine, store)
    again = recover(open_store())
    assert durable_state(again) == durable_state(engine)
    assert again.settings == {"a/b": b"kept"}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_empty_file_of_an_older_format_is_migrated(store, folder, open_store, version):
    open_store.close()
    downgrade(folder, version)
    assert open_store().load().jobs == {}


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_wrong_format_number_starts_no_migration(scene, store, folder, open_store, version):
    scene.push()
    commit(scene.engine, store)
    open_store.close()
    damage(folder, f"PRAGMA user_version = {version}")
    with pytest.raises(StoreDamaged, match=rf"millrace\.db.*tables of format {version}.*backup"):
        open_store()
    damage(folder, f"PRAGMA user_version = {schema.SCHEMA}")
    assert durable_state(recover(open_store())) == durable_state(scene.engine)


def test_queues_are_loaded_in_the_order_of_their_creation(scene, store, open_store):
    for name in ("b", "a", "c"):
        scene.push(name, name)
    commit(scene.engine, store)
    scene.engine.pause("b", paused=True, now=scene.now)
    commit(scene.engine, store)
    scene.engine.remove_queue("a", scene.now)
    commit(scene.engine, store)
    scene.push("anew", "a")
    commit(scene.engine, store)
    assert list(recover(open_store()).queues) == ["b", "c", "a"]


def test_a_failed_migration_leaves_the_file_unchanged(scene, store, open_store, monkeypatch):
    scene.push()
    commit(scene.engine, store)

    def migrate(db: sqlite3.Connection) -> None:
        db.execute("DROP TABLE jobs")
        db.execute("no such statement")

    with monkeypatch.context() as patch:
        patch.setattr(schema, "SCHEMA", NEXT)
        patch.setattr(schema, "MIGRATIONS", {NEXT - 1: migrate})
        with pytest.raises(StoreDamaged):
            open_store()
    assert durable_state(recover(open_store())) == durable_state(scene.engine)


# Size


@pytest.mark.slow
def test_a_hundred_thousand_jobs_are_recovered_within_seconds(open_store, monkeypatch):
    monkeypatch.undo()  # generations of the default size
    store, scene = open_store(), Scene()
    store.load()
    for n in range(100_000):
        scene.push(f"job-{n}", payload=b"[" + b"7" * 198 + b"]")
        if n % 10_000 == 9999:
            commit(scene.engine, store)
    for source in ("from turns", "from tables"):
        store, notices = open_store(), []
        started = time.process_time()
        engine = recover(
            store, progress=lambda done, total, notices=notices: notices.append((done, total))
        )
        took = time.process_time() - started
        assert took < 5, f"{source}: {took:.1f} s of CPU time"
        assert len(engine.jobs) == 100_000
        assert notices[-1] == (100_000, 100_000)
    assert notices[0] == (50_000, 100_000)


# Large turns


def test_a_turn_above_the_limit_of_a_row_is_split(open_store, scene, monkeypatch):
    monkeypatch.setattr(sqlite, "MAX_TURN_BYTES", 10_000)
    store = open_store()
    store.load()
    changed = scene.push("changed", "other")
    cancelled = scene.push("gone", "other")
    commit(scene.engine, store)
    before = count(store, "turns")
    for number in range(10):
        scene.push(f"job-{number}", payload=b"[%s]" % (b"1" * 4000))
    scene.engine.kill(changed, scene.now)
    scene.engine.cancel(cancelled, scene.now)
    commit(scene.engine, store)
    assert count(store, "turns") - before > 3
    for number in range(4):  # later turns fold the jobs and delete the rows
        scene.complete(scene.lease())
        scene.push(f"later-{number}", payload=b"[%s]" % (b"1" * 4000))
        commit(scene.engine, store)
    state = durable_state(scene.engine)
    assert durable_state(recover(open_store())) == state


def test_a_record_above_the_sqlite_limit_is_refused_and_is_not_damage(store, scene):
    store._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    scene.push(payload=b"[%s]" % (b"1" * 200_000))
    assert not commit_or_revert(scene.engine, store)
    assert scene.engine.unavailable_reason == "a record is too large for the store"
    scene.engine.resume(scene.now)
    scene.push("small")
    assert commit_or_revert(scene.engine, store)


# Flush


def test_a_flush_deletes_the_rows_of_jobs_on_the_commit_thread(store, scene):
    """`prepare` runs on the loop, where the deletion of a million rows would delay all clients."""
    for n in range(20):
        scene.push(f"job-{n}")
        commit(scene.engine, store)
    fold(scene, store)
    before = count(store, "jobs")
    assert before > 15
    scene.engine.flush(scene.now)
    store.prepare(scene.engine.take_changes(), scene.engine)
    assert count(store, "jobs") == before
    store.commit()
    assert count(store, "jobs") == 0
    assert count(store, "turns") == 1


def test_the_jobs_of_a_turn_that_flushed_survive(store, scene, open_store):
    """They fill a generation by themselves, which must not be folded before the deletion."""
    scene.push("before")
    commit(scene.engine, store)
    fold(scene, store)
    scene.engine.flush(scene.now)
    for n in range(20):
        scene.push(f"job-{n}", payload=b"x" * 500)
    commit(scene.engine, store)
    expected = durable_state(scene.engine)
    assert durable_state(recover(open_store())) == expected
    assert len(expected["jobs"]) == 20


def test_a_failure_to_close_the_database_closes_the_other_files(folder, monkeypatch):
    def open_files() -> set[str]:
        descriptors = Path("/proc/self/fd").iterdir()
        links = {os.readlink(each) for each in descriptors if each.exists()}
        return {link for link in links if link.startswith(str(folder))}

    store = SqliteStore(folder)
    scene = Scene()
    scene.push("a")
    commit(scene.engine, store)
    files = store._files
    real_close = files.close

    def fail() -> None:
        real_close()
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(files, "close", fail)
    with pytest.raises(StoreError):
        store.close()
    assert open_files() == set()
