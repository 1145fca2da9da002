"""From the outbox to the lake: everything, once, in files of bounded size."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kept import Kept, assert_exactly_once, kept

from millrace.journal import outbox, shipment
from millrace.journal.identity import NAME, identity
from millrace.journal.landing import FOLDER, Landed, landed
from millrace.journal.status import look
from millrace.store.errors import StoreDamaged, StoreError


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def work(tmp_path: Path, lake: Path) -> Iterator[Kept]:
    with kept(tmp_path / "data", lake) as made:
        yield made


def test_everything_is_shipped_once_and_as_it_was(work: Kept, lake: Path) -> None:
    work.work(5)
    work.work(7)
    assert work.ship() == [(1, 36)]
    assert work.ship() == []
    work.work(2)
    assert work.ship() == [(37, 42)]
    assert_exactly_once(lake, identity(work.folder), work.rows)


def test_files_have_at_most_so_many_events_also_of_one_commit(work: Kept, lake: Path) -> None:
    work.work(1)
    work.work(6)
    assert work.ship(most=5) == [(1, 5), (6, 10), (11, 15), (16, 20), (21, 21)]
    assert_exactly_once(lake, identity(work.folder), work.rows)


def test_files_have_about_so_many_bytes(work: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipment, "MOST_BYTES", 1000)
    for _ in range(6):
        work.work(2)
    assert work.ship() == [(1, 12), (13, 24), (25, 36)]


def test_looks_are_short(work: Kept, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is made of many of them, and the rows of a look need not end where a file does."""
    monkeypatch.setattr(outbox, "LOOK", 700)
    monkeypatch.setattr(shipment, "_TOGETHER", 10)
    for _ in range(20):
        work.work(2)
    assert work.ship(most=50) == [(1, 50), (51, 100), (101, 120)]
    assert_exactly_once(lake, identity(work.folder), work.rows)


def test_a_reader_holds_nothing_up(work: Kept) -> None:
    """While it has read only a part, the log can still begin anew."""
    work.work(3)
    reading = outbox.read(work.folder, 1)
    next(reading)
    busy, *_ = work.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert not busy


def test_what_was_shipped_is_known_without_files(work: Kept, lake: Path) -> None:
    """Somebody may have moved them away: the mark tells."""
    work.work(2)
    work.ship()
    for path in (lake / FOLDER).glob("ev-*"):
        path.unlink()
    work.work(1)
    assert work.ship() == [(7, 9)]


@pytest.mark.parametrize("mark", [None, "", "{", '{"server": "x", "last": 1}'])
def test_what_was_shipped_is_known_without_a_mark(work: Kept, lake: Path, mark: str | None) -> None:
    """A kill between the rename and the mark, or a mark that is damaged: the files tell."""
    work.work(2)
    work.ship()
    (path,) = (lake / FOLDER).glob("_shipped-*")
    path.unlink() if mark is None else path.write_text(mark)
    work.work(1)
    assert work.ship() == [(7, 9)]


def test_a_damaged_row_is_not_shipped(work: Kept, lake: Path) -> None:
    work.work(1)
    work.work(1)
    work.store._db.execute("UPDATE outbox SET sum = sum + 1 WHERE first = 4")
    with pytest.raises(StoreDamaged, match="event 4 is not as it was written"):
        work.ship()
    assert landed(lake) == []


def test_a_hole_is_not_shipped_over(work: Kept, lake: Path) -> None:
    for _ in range(3):
        work.work(1)
    work.store._db.execute("DELETE FROM outbox WHERE first = 4")
    with pytest.raises(StoreDamaged, match="event 4 is missing"):
        work.ship()
    assert landed(lake) == []


def test_what_had_to_go_leaves_a_gap_that_is_told(work: Kept, lake: Path) -> None:
    """More than outbox_max waited: the oldest were dropped."""
    for _ in range(5):
        work.work(1)
    work.ship(most=3)
    for _ in range(5):
        work.work(1)
    work.store._unshipped = 22  # as if nothing had to wait for the lake
    work.store.trims = True
    work.trim()
    with shipment.Shipment(work.folder, lake, 1000) as shipping:
        (sealed,) = shipping.ship()
    assert (sealed.landed.first, sealed.landed.last, sealed.missing) == (22, 30, 6)


def test_a_file_that_is_not_ours_stays_as_it_is(work: Kept, lake: Path) -> None:
    server = identity(work.folder)
    work.work(1)
    (lake / FOLDER).mkdir(parents=True)
    path = lake / FOLDER / Landed(server, 1, 3).name
    path.write_text("mine")
    work.work(1)
    # The file claims to have events to 3. What follows is shipped; it stays as it is.
    assert work.ship() == [(4, 6)]
    assert path.read_text() == "mine"


def test_one_at_a_time(work: Kept, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipment, "PATIENCE", 0.01)
    work.work(1)
    with (
        shipment.Shipment(work.folder, lake, 10),
        pytest.raises(StoreError, match="another process ships the events"),
    ):
        work.ship()
    assert work.ship() == [(1, 3)]


def test_events_that_are_all_gone_are_not_waited_for(work: Kept, lake: Path) -> None:
    work.work(1)
    work.ship()
    work.work(2)
    work.store.shipped(10)
    work.trim()
    with shipment.Shipment(work.folder, lake, 10) as shipping:
        assert list(shipping.ship(10)) == []
        assert shipping.next == 10


# Who it is


def test_a_restored_copy_is_another_server_also_if_it_has_gone_on_since(
    work: Kept, lake: Path
) -> None:
    """Its server makes events before the shipper looks: what counts is where the server began."""
    first = identity(work.folder)
    (lake / FOLDER).mkdir(parents=True)
    (lake / FOLDER / Landed(first, 1, 5).name).write_text("of another future")
    work.work(3)  # events 1 to 9, so that the lake seems to be behind
    with shipment.Shipment(work.folder, lake, 100, begun=4) as shipping:
        assert shipping.server != first
        assert [sealed.landed.first for sealed in shipping.ship()] == [1]
    assert identity(work.folder) != first


def test_the_id_stays(work: Kept) -> None:
    first = identity(work.folder)
    assert len(first) == 16
    assert int(first, 16)
    assert identity(work.folder) == first
    assert (work.folder / NAME).read_text() == first + "\n"


@pytest.mark.parametrize("content", ["", "not hex", "\xff"])
def test_a_damaged_id_is_told(work: Kept, content: str) -> None:
    (work.folder / NAME).write_text(content, "latin-1")
    with pytest.raises(StoreError, match="journal-id is damaged"):
        identity(work.folder)


def test_a_restored_copy_is_another_server(
    work: Kept, lake: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the old id, but the lake knows of events that it never had."""
    work.work(2)
    (tmp_path / "copy").mkdir()
    work.store._db.execute("VACUUM INTO ?", (str(tmp_path / "copy" / "millrace.db"),))
    work.work(3)
    work.ship()
    old = identity(work.folder)
    (tmp_path / "copy" / NAME).write_text(old)
    with kept(tmp_path / "copy", lake) as copy:
        rows = work.rows[:6]
        assert copy.store.next_event == 7
        copy.work(1)
        assert copy.ship() == [(1, 9)]
        new = identity(copy.folder)
        assert_exactly_once(lake, new, rows + copy.rows)
    assert new != old
    assert f"From here on it is server {new}" in caplog.text
    assert_exactly_once(lake, old, work.rows)


def test_a_copy_that_is_not_behind_goes_on_as_the_same(work: Kept, lake: Path) -> None:
    work.work(2)
    work.ship()
    old = identity(work.folder)
    work.stop()
    work.start()
    assert work.ship() == []
    assert identity(work.folder) == old


def test_the_status_says_how_far_it_is(work: Kept, lake: Path) -> None:
    work.work(2)
    status = look(work.folder, lake)
    assert (status.server, status.next_event, status.next_shipped) == ("", 7, 1)
    assert status.bytes == work.store.outbox_bytes > 0
    work.ship(most=4)
    work.work(1)
    assert look(work.folder, lake)[1:3] == (10, 7)
    work.trim()
    assert look(work.folder, lake).bytes < status.bytes


def test_looking_leaves_no_trace(work: Kept, lake: Path) -> None:
    work.work(2)
    work.stop()
    before = sorted(work.folder.iterdir())
    assert look(work.folder, lake).next_event == 7
    assert sorted(work.folder.iterdir()) == before
    work.start()


def test_nothing_is_shipped_of_a_folder_without_events(work: Kept, lake: Path) -> None:
    assert work.ship() == []
    assert landed(lake) == []


def test_only_one_s_own_files_count(work: Kept, lake: Path) -> None:
    (lake / FOLDER).mkdir(parents=True)
    (lake / FOLDER / Landed("ff00", 1, 900).name).write_bytes(b"of another server")
    work.work(1)
    assert work.ship() == [(1, 3)]
