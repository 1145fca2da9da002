"""What the journal knows of one job: in the outbox, in the lake, in both, within a time."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kept import Kept, kept

from millrace.journal import outbox, tracing
from millrace.journal.landing import FOLDER, landed
from millrace.journal.tracing import Traced, Wanted, not_shipped, shipped


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def work(tmp_path: Path, lake: Path) -> Iterator[Kept]:
    with kept(tmp_path / "data", lake) as made:
        yield made


def soon() -> float:
    return time.monotonic() + 60


def types(traced: Traced) -> list[str]:
    return [traced.events[number].type for number in sorted(traced.events)]


def test_what_is_not_shipped(work: Kept) -> None:
    work.work(5)
    found = not_shipped(work.folder, Wanted(3, ""), 1, soon())
    assert types(found) == ["pushed", "leased", "completed"]
    assert found.whole
    assert sorted(found.events) == [7, 8, 9]
    done = found.events[9]
    assert (done.jid, done.queue, done.before, done.state) == ("job-3", "queue-0", "leased", "gone")
    assert done.run_us == 11
    failed = not_shipped(work.folder, Wanted(0, "job-4"), 1, soon()).events[12]
    assert (failed.type, failed.error_message) == ("failed", "it broke")


def test_the_outbox_is_looked_at_from_its_end(work: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "TOGETHER", 4)
    for _ in range(5):
        work.work(3)
    for seq in range(1, 16):
        found = not_shipped(work.folder, Wanted(seq, ""), 1, soon())
        assert sorted(found.events) == [3 * seq - 2, 3 * seq - 1, 3 * seq]
        assert found.whole
    assert not not_shipped(work.folder, Wanted(1, ""), 1, 0.0).whole


def test_looks_into_the_outbox_are_short(work: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """However they are cut, nothing is missed; also if its number is in many other events."""
    monkeypatch.setattr(outbox, "LOOK", 300)
    for _ in range(12):
        work.work(2)
    for seq in range(1, 25):
        for wanted in (Wanted(seq, ""), Wanted(0, f"job-{seq}"), Wanted(seq, f"job-{seq}")):
            found = not_shipped(work.folder, wanted, 1, soon())
            assert sorted(found.events) == [3 * seq - 2, 3 * seq - 1, 3 * seq]
    assert not_shipped(work.folder, Wanted(3, "job-4"), 1, soon()).events == {}


def test_what_is_shipped(work: Kept, lake: Path) -> None:
    for _ in range(6):
        work.work(10)
        work.ship(most=20)
    for seq in (1, 17, 60):
        for wanted in (Wanted(seq, ""), Wanted(0, f"job-{seq}")):
            found, first, last = shipped(work.folder, lake, wanted, [], soon())
            assert sorted(found.events) == [3 * seq - 2, 3 * seq - 1, 3 * seq]
            assert (first, last, found.whole) == (1, 180, True)
    found, _, last = shipped(work.folder, lake, Wanted(61, ""), [], soon())
    assert found == ({}, True)
    assert not_shipped(work.folder, Wanted(60, ""), last + 1, soon()) == ({}, True)


def test_files_of_its_moments_come_first(work: Kept, lake: Path) -> None:
    """Whatever time there is, it is spent where something must be."""
    for _ in range(20):
        work.work(4)
        work.ship()
    paths = [lake / FOLDER / each.name for each in landed(lake)]
    assert len(paths) == 20
    events = shipped(work.folder, lake, Wanted(9, ""), [], soon())[0].events
    moment = events[min(events)].time
    turn = list(tracing._in_turn(paths, [moment]))
    assert turn[0] == paths[2]
    assert sorted(turn) == paths
    assert turn[2] == paths[-1]


def test_another_servers_events_are_not_taken_for_ours(
    work: Kept, lake: Path, tmp_path: Path
) -> None:
    work.work(2)
    work.ship()
    with kept(tmp_path / "other", lake) as other:
        other.work(1)
        other.ship()
        found, _, _ = shipped(other.folder, lake, Wanted(1, ""), [], soon())
        assert len(found.events) == 3
        assert shipped(other.folder, lake, Wanted(2, ""), [], soon())[0].events == {}


def test_a_file_that_can_be_read_again_has_its_events(work: Kept, lake: Path) -> None:
    work.work(2)
    work.ship()
    (file,) = landed(lake)
    path = lake / FOLDER / file.name
    content = path.read_bytes()
    path.write_bytes(b"no parquet")
    assert shipped(work.folder, lake, Wanted(1, ""), [], soon())[0].events == {}
    path.write_bytes(content)
    assert len(shipped(work.folder, lake, Wanted(1, ""), [], soon())[0].events) == 3


def test_damage_is_no_error(work: Kept, lake: Path, tmp_path: Path) -> None:
    work.work(2)
    work.ship()
    (file,) = landed(lake)
    (lake / FOLDER / file.name).write_bytes(b"no parquet")
    assert shipped(work.folder, lake, Wanted(1, ""), [], soon())[0].events == {}
    assert not_shipped(tmp_path / "nowhere", Wanted(1, ""), 1, soon()) == ({}, False)
    assert shipped(tmp_path / "nowhere", lake, Wanted(1, ""), [], soon())[0].events == {}
