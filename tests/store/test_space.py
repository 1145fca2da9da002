"""Disk space: the reserve file, and space that the store returns after large removals."""

from pathlib import Path
from random import Random

import pytest

from millrace.engine.engine import Engine
from millrace.protocols.spec import protocol_rules
from millrace.store import SqliteStore
from millrace.store.sqlite import reserve
from millrace.store.sqlite import store as sqlite_store
from millrace.store.sqlite.reserve import Reserve
from scene import unit

NOW = 1_800_000_000_000_000


def test_the_reserve_is_allocated_released_and_restored(tmp_path: Path) -> None:
    held = Reserve(tmp_path)
    assert held.restore()
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= reserve.MAX_RESERVE_BYTES
    assert (tmp_path / "reserve").stat().st_mode & 0o777 == 0o600
    assert held.restore()
    assert held.release()
    assert not held.release()
    assert not (tmp_path / "reserve").exists()


def test_a_reserve_that_does_not_fit_is_not_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve, "MIN_FREE_BYTES", 1 << 60)
    assert not Reserve(tmp_path).restore()
    assert list(tmp_path.iterdir()) == []


def write(store: SqliteStore, engine: Engine) -> None:
    store.prepare(engine.take_changes(), engine)
    store.commit()


def size(folder: Path) -> int:
    return sum((folder / name).stat().st_size for name in ("millrace.db", "millrace.db-wal"))


def filled(folder: Path) -> tuple[SqliteStore, Engine]:
    store = SqliteStore(folder, sync=False)
    engine = Engine(Random(0), protocol_rules())
    store.load().fill(engine)
    for _ in range(40):
        for _ in range(500):
            engine.push(unit("", "q", payload=b"x" * 2000), NOW)
        write(store, engine)
    return store, engine


def test_a_flush_returns_space_to_the_disk(tmp_path: Path) -> None:
    store, engine = filled(tmp_path / "data")
    assert size(tmp_path / "data") > 30 << 20
    engine.flush(NOW)
    write(store, engine)
    assert size(tmp_path / "data") < 4 << 20
    store.close()


def test_a_flush_returns_space_after_its_events_are_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shrinking copies what remains. With many events it waits until they are deleted."""
    monkeypatch.setattr(sqlite_store, "MAX_SHRINK_COPY_BYTES", 1 << 20)
    store, engine = filled(tmp_path / "data")
    engine.flush(NOW)
    write(store, engine)
    assert size(tmp_path / "data") > 30 << 20
    store.outbox.mark_shipped(store.outbox.next_event)
    while store.outbox.has_shipped_events:
        write(store, engine)
    assert size(tmp_path / "data") < 4 << 20
    store.close()


def test_the_log_of_a_large_turn_is_truncated(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data", sync=False)
    engine = Engine(Random(0), protocol_rules())
    store.load().fill(engine)
    for _ in range(20_000):
        engine.push(unit("", "q", payload=b"x" * 3000), NOW)
    write(store, engine)
    log = tmp_path / "data" / "millrace.db-wal"
    assert log.stat().st_size > 60 << 20
    for _ in range(3):
        engine.push(unit("", "q"), NOW)
        write(store, engine)
    assert log.stat().st_size <= 17 << 20
    store.close()


def test_a_large_removal_returns_space_to_the_disk(tmp_path: Path) -> None:
    store, engine = filled(tmp_path / "data")
    engine.remove_queue("q", NOW)
    write(store, engine)
    for _ in range(1500):  # until the generation of the removal is complete
        engine.push(unit("", "q", payload=b"x" * 50_000), NOW)
        (job,) = engine.jobs.values()
        engine.cancel(job, NOW)
        write(store, engine)
        if size(tmp_path / "data") < 20 << 20:
            break
    else:
        pytest.fail(f"{size(tmp_path / 'data')} bytes")
    store.close()


def test_the_end_of_large_jobs_returns_space_to_the_disk(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data", sync=False)
    engine = Engine(Random(0), protocol_rules())
    store.load().fill(engine)
    for _ in range(70):
        engine.push(unit("", "q", payload=b"x" * (1 << 20)), NOW)
        write(store, engine)
    assert size(tmp_path / "data") > 70 << 20
    for job in list(engine.jobs.values()):
        engine.cancel(job, NOW)
        write(store, engine)
    assert size(tmp_path / "data") < 20 << 20
    store.close()
