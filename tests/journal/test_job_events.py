"""The events of one job: from the outbox, from the lake, from both, within a time limit."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kept import Kept, kept

from millrace.journal import job_events
from millrace.journal.identity import identity
from millrace.journal.job_events import JobEvents, JobKey, from_lake, from_outbox
from millrace.journal.old_lake import FOLDER, Landed
from millrace.store.sqlite import outbox_reader


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def work(tmp_path: Path, lake: Path) -> Iterator[Kept]:
    with kept(tmp_path / "data", lake) as made:
        yield made


def soon() -> float:
    return time.monotonic() + 60


def types(found: JobEvents) -> list[str]:
    return [found.events[number].type for number in sorted(found.events)]


def test_events_from_the_outbox(work: Kept) -> None:
    work.work(5)
    found = from_outbox(work.folder, JobKey(3, ""), 1, soon())
    assert types(found) == ["pushed", "leased", "completed"]
    assert found.complete
    assert sorted(found.events) == [7, 8, 9]
    done = found.events[9]
    assert (done.jid, done.queue, done.before, done.state) == ("job-3", "queue-0", "leased", "gone")
    assert done.run_us == 11
    failed = from_outbox(work.folder, JobKey(0, "job-4"), 1, soon()).events[12]
    assert (failed.type, failed.error_message) == ("failed", "it broke")


def test_the_outbox_is_searched_from_its_end(work: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_events, "OUTBOX_BATCH_SIZE", 4)
    for _ in range(5):
        work.work(3)
    for seq in range(1, 16):
        found = from_outbox(work.folder, JobKey(seq, ""), 1, soon())
        assert sorted(found.events) == [3 * seq - 2, 3 * seq - 1, 3 * seq]
        assert found.complete
    assert not from_outbox(work.folder, JobKey(1, ""), 1, 0.0).complete


def test_reads_of_the_outbox_are_short(work: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every division of the outbox gives the same events."""
    monkeypatch.setattr(outbox_reader, "MAX_READ_BYTES", 300)
    for _ in range(12):
        work.work(2)
    for seq in range(1, 25):
        for key in (JobKey(seq, ""), JobKey(0, f"job-{seq}"), JobKey(seq, f"job-{seq}")):
            found = from_outbox(work.folder, key, 1, soon())
            assert sorted(found.events) == [3 * seq - 2, 3 * seq - 1, 3 * seq]
    assert from_outbox(work.folder, JobKey(3, "job-4"), 1, soon()).events == {}


def test_events_in_the_lake(work: Kept, lake: Path) -> None:
    for _ in range(6):
        work.work(10)
        work.ship(most=20)
    for seq in (1, 17, 60):
        for key in (JobKey(seq, ""), JobKey(0, f"job-{seq}"), JobKey(seq, f"job-{seq}")):
            found, last = from_lake(work.folder, lake, key, soon())
            assert sorted(found.events) == [3 * seq - 2, 3 * seq - 1, 3 * seq]
            assert (last, found.complete) == (180, True)
    found, last = from_lake(work.folder, lake, JobKey(61, ""), soon())
    assert found == ({}, True)
    assert from_outbox(work.folder, JobKey(60, ""), last + 1, soon()) == ({}, True)


def test_an_event_is_the_same_from_the_outbox_and_from_the_lake(work: Kept, lake: Path) -> None:
    work.work(8)
    keys = [JobKey(seq, "") for seq in range(1, 9)]
    before = [from_outbox(work.folder, key, 1, soon()).events for key in keys]
    work.ship()
    assert [from_lake(work.folder, lake, key, soon())[0].events for key in keys] == before


def test_the_search_sees_later_shipments_and_a_new_lake(work: Kept, lake: Path) -> None:
    assert from_lake(work.folder, lake, JobKey(1, ""), soon()) == (({}, True), 0)
    work.work(1)
    work.ship()
    assert from_lake(work.folder, lake, JobKey(1, ""), soon())[1] == 3
    work.work(1)
    work.ship()
    assert len(from_lake(work.folder, lake, JobKey(2, ""), soon())[0].events) == 3
    shutil.rmtree(lake)
    assert from_lake(work.folder, lake, JobKey(1, ""), soon()) == (({}, True), 0)


def test_a_search_ends_at_its_time_limit(work: Kept, lake: Path) -> None:
    work.work(2)
    work.ship()
    found, _ = from_lake(work.folder, lake, JobKey(1, ""), 0.0)
    assert not found.complete


def test_text_with_quotes_is_an_id(work: Kept, lake: Path) -> None:
    work.work(1)
    work.ship()
    odd = JobKey(0, "job-1' OR 'a' = 'a")
    assert from_lake(work.folder, lake, odd, soon())[0] == ({}, True)


def test_events_of_another_server_are_not_returned(work: Kept, lake: Path, tmp_path: Path) -> None:
    work.work(2)
    work.ship()
    with kept(tmp_path / "other", lake) as other:
        other.work(1)
        other.ship()
        found, _ = from_lake(other.folder, lake, JobKey(1, ""), soon())
        assert len(found.events) == 3
        assert from_lake(other.folder, lake, JobKey(2, ""), soon())[0].events == {}


def test_a_lake_that_was_not_converted_is_not_complete(work: Kept, lake: Path) -> None:
    (lake / FOLDER).mkdir(parents=True)
    (lake / FOLDER / Landed(identity(work.folder), 1, 3).name).write_text("three events")
    assert not from_lake(work.folder, lake, JobKey(1, ""), soon())[0].complete
    work.work(2)
    work.ship()
    found, _ = from_lake(work.folder, lake, JobKey(2, ""), soon())
    assert (sorted(found.events), found.complete) == ([4, 5, 6], False)


def test_damaged_files_raise_no_error(work: Kept, lake: Path, tmp_path: Path) -> None:
    work.work(2)
    work.ship()
    (file,) = (lake / "events").rglob("*.parquet")
    file.write_bytes(b"no parquet")
    assert from_lake(work.folder, lake, JobKey(1, ""), soon())[0] == ({}, False)
    file.unlink()
    assert from_lake(work.folder, lake, JobKey(1, ""), soon())[0] == ({}, False)
    assert from_outbox(tmp_path / "nowhere", JobKey(1, ""), 1, soon()) == ({}, False)
    assert from_lake(tmp_path / "nowhere", lake, JobKey(1, ""), soon())[0].events == {}
