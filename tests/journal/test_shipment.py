"""From the outbox to the lake: each event once, in commits of bounded size."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kept import Kept, assert_exactly_once, kept

from millrace.journal import shipment
from millrace.journal.identity import NAME, identity
from millrace.journal.old_lake import FOLDER, Landed
from millrace.journal.position import last_shipped
from millrace.journal.status import shipping_status
from millrace.store import folders
from millrace.store.errors import StoreDamaged, StoreError
from millrace.store.sqlite import outbox_reader


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def work(tmp_path: Path, lake: Path) -> Iterator[Kept]:
    with kept(tmp_path / "data", lake) as made:
        yield made


def test_all_events_are_shipped_once_and_unchanged(work: Kept, lake: Path) -> None:
    work.work(5)
    work.work(7)
    assert work.ship() == [(1, 36)]
    assert work.ship() == []
    work.work(2)
    assert work.ship() == [(37, 42)]
    assert_exactly_once(lake, identity(work.folder), work.rows)


def test_a_commit_to_the_lake_has_a_maximum_number_of_events(work: Kept, lake: Path) -> None:
    work.work(1)
    work.work(6)
    assert work.ship(most=5) == [(1, 5), (6, 10), (11, 15), (16, 20), (21, 21)]
    assert_exactly_once(lake, identity(work.folder), work.rows)


def test_a_commit_to_the_lake_has_a_maximum_size(
    work: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipment, "MAX_COMMIT_BYTES", 1000)
    for _ in range(6):
        work.work(2)
    assert work.ship() == [(1, 12), (13, 24), (25, 36)]


def test_reads_of_the_outbox_are_short(
    work: Kept, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit needs several reads, and a read need not end where a commit does."""
    monkeypatch.setattr(outbox_reader, "MAX_READ_BYTES", 700)
    monkeypatch.setattr(shipment, "CONVERSION_BATCH_SIZE", 10)
    for _ in range(20):
        work.work(2)
    assert work.ship(most=50) == [(1, 50), (51, 100), (101, 120)]
    assert_exactly_once(lake, identity(work.folder), work.rows)


def test_a_reader_does_not_block_a_checkpoint(work: Kept) -> None:
    """The log can restart while a reader has read only a part."""
    work.work(3)
    reading = folders.outbox_reader(work.folder).read(1)
    next(reading)
    busy, *_ = work.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert not busy


def test_a_lake_of_format_1_is_continued_after_its_last_event(work: Kept, lake: Path) -> None:
    """According to the names of the files, or to the mark if the files were moved away."""
    server = identity(work.folder)
    (lake / FOLDER).mkdir(parents=True)
    (lake / FOLDER / Landed(server, 1, 6).name).write_text("six events")
    work.work(3)
    assert work.ship() == [(7, 9)]
    (lake / FOLDER / f"_shipped-{server}.json").write_text(f'{{"server": "{server}", "last": 12}}')
    assert last_shipped(lake, server) == 12
    work.work(2)
    assert work.ship() == [(13, 15)]


@pytest.mark.parametrize("mark", ["", "{", '{"server": "x"}'])
def test_a_damaged_mark_of_format_1_is_ignored(work: Kept, lake: Path, mark: str) -> None:
    server = identity(work.folder)
    (lake / FOLDER).mkdir(parents=True)
    (lake / FOLDER / Landed(server, 1, 6).name).write_text("six events")
    (lake / FOLDER / f"_shipped-{server}.json").write_text(mark)
    work.work(3)
    assert work.ship() == [(7, 9)]


def test_an_entry_cut_by_a_power_failure_is_shipped_again(
    work: Kept, lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work.work(2)
    work.ship()
    work.work(1)
    work.ship()
    newest = max((lake / "events" / "_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-9])
    assert work.ship() == [(7, 9)]
    assert f"{newest.name} of the lake's log was incomplete" in caplog.text
    assert_exactly_once(lake, identity(work.folder), work.rows)


def test_a_damaged_row_is_not_shipped(work: Kept, lake: Path) -> None:
    work.work(1)
    work.work(1)
    work.store._db.execute("UPDATE outbox SET sum = sum + 1 WHERE first = 4")
    with pytest.raises(StoreDamaged, match="event 4 does not match its checksum"):
        work.ship()
    assert not lake.exists()


def test_a_hole_is_not_shipped_over(work: Kept, lake: Path) -> None:
    for _ in range(3):
        work.work(1)
    work.store._db.execute("DELETE FROM outbox WHERE first = 4")
    with pytest.raises(StoreDamaged, match="event 4 is missing"):
        work.ship()
    assert not lake.exists()


def test_dropped_events_leave_a_reported_gap(work: Kept, lake: Path) -> None:
    """More than outbox_max was pending: the oldest events were dropped."""
    for _ in range(5):
        work.work(1)
    work.ship(most=3)
    for _ in range(5):
        work.work(1)
    work.store.outbox.next_unshipped = 22  # as if no event waited for the lake
    work.store.outbox.has_shipped_events = True
    work.trim()
    with shipment.Shipment(work.folder, lake, 1000) as shipping:
        (shipped,) = shipping.ship()
    assert (shipped.first, shipped.last, shipped.missing) == (22, 30, 6)


def test_only_one_shipper_runs_at_a_time(
    work: Kept, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipment, "LOCK_TIMEOUT", 0.01)
    work.work(1)
    with (
        shipment.Shipment(work.folder, lake, 10),
        pytest.raises(StoreError, match="Another process ships the events"),
    ):
        work.ship()
    assert work.ship() == [(1, 3)]


def test_dropped_events_are_not_awaited(work: Kept, lake: Path) -> None:
    work.work(1)
    work.ship()
    work.work(2)
    work.store.outbox.mark_shipped(10)
    work.trim()
    with shipment.Shipment(work.folder, lake, 10) as shipping:
        assert list(shipping.ship(10)) == []
        assert shipping.next == 10


# Identity


def test_a_restored_copy_with_new_events_is_another_server(work: Kept, lake: Path) -> None:
    """Its server creates events before the shipper runs: the server's start position counts."""
    first = identity(work.folder)
    (lake / FOLDER).mkdir(parents=True)
    (lake / FOLDER / Landed(first, 1, 5).name).write_text("of another future")
    work.work(3)  # events 1 to 9, so that the lake seems to be behind
    with shipment.Shipment(work.folder, lake, 100, begun=4) as shipping:
        assert shipping.server != first
        assert [shipped.first for shipped in shipping.ship()] == [1]
    assert identity(work.folder) != first


def test_the_id_is_stable(work: Kept) -> None:
    first = identity(work.folder)
    assert len(first) == 16
    assert int(first, 16)
    assert identity(work.folder) == first
    assert (work.folder / NAME).read_text() == first + "\n"


@pytest.mark.parametrize("content", ["", "not hex", "\xff"])
def test_a_damaged_id_is_reported(work: Kept, content: str) -> None:
    (work.folder / NAME).write_text(content, "latin-1")
    with pytest.raises(StoreError, match="journal-id is damaged"):
        identity(work.folder)


def test_a_restored_copy_is_another_server(
    work: Kept, lake: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the old id, but the lake contains events that it never had."""
    work.work(2)
    (tmp_path / "copy").mkdir()
    work.store._db.execute("VACUUM INTO ?", (str(tmp_path / "copy" / "millrace.db"),))
    work.work(3)
    work.ship()
    old = identity(work.folder)
    (tmp_path / "copy" / NAME).write_text(old)
    with kept(tmp_path / "copy", lake) as copy:
        rows = work.rows[:6]
        assert copy.store.outbox.next_event == 7
        copy.work(1)
        assert copy.ship() == [(1, 9)]
        new = identity(copy.folder)
        assert_exactly_once(lake, new, rows + copy.rows)
    assert new != old
    assert f"It continues as server {new}" in caplog.text
    assert_exactly_once(lake, old, work.rows)


def test_a_copy_that_is_up_to_date_continues_as_the_same_server(work: Kept, lake: Path) -> None:
    work.work(2)
    work.ship()
    old = identity(work.folder)
    work.stop()
    work.start()
    assert work.ship() == []
    assert identity(work.folder) == old


def test_the_status_shows_the_progress(work: Kept, lake: Path) -> None:
    work.work(2)
    status = shipping_status(work.folder, lake)
    assert (status.server, status.next_event, status.next_shipped) == ("", 7, 1)
    assert status.bytes == work.store.outbox.size > 0
    work.ship(most=4)
    work.work(1)
    assert shipping_status(work.folder, lake)[1:3] == (10, 7)
    work.trim()
    assert shipping_status(work.folder, lake).bytes < status.bytes


def test_reading_the_status_changes_no_file(work: Kept, lake: Path) -> None:
    work.work(2)
    work.stop()
    before = sorted(work.folder.iterdir())
    assert shipping_status(work.folder, lake).next_event == 7
    assert sorted(work.folder.iterdir()) == before
    work.start()


def test_a_folder_without_events_ships_no_file(work: Kept, lake: Path) -> None:
    assert work.ship() == []
    assert not lake.exists()


def test_events_of_another_server_do_not_count(work: Kept, lake: Path) -> None:
    (lake / FOLDER).mkdir(parents=True)
    (lake / FOLDER / Landed("ff00", 1, 900).name).write_bytes(b"of another server")
    work.work(1)
    assert work.ship() == [(1, 3)]
