"""Sealed files: whole, named by what is in them, and never written over."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.engine.events import EVENT_VERSION
from millrace.journal import columns, schema
from millrace.journal.landing import Landed, landed
from millrace.journal.sealing import OtherContent, seal, sweep
from scene import Scene

SERVER = "0a1b"


def events(first: int, count: int, *, jid: str = "job") -> pa.Table:
    scene = Scene()
    for number in range(count):
        scene.push(f"{jid}-{number}")
    return columns.table(SERVER, first, EVENT_VERSION, scene.engine.batch.events)


def names(lake: Path) -> list[str]:
    return sorted(path.name for path in (lake / "landing").iterdir())


def test_a_file_is_named_by_its_events_and_holds_them(tmp_path: Path) -> None:
    table = events(5, 3)
    assert seal(tmp_path, table) == Landed(SERVER, 5, 7)
    assert landed(tmp_path) == [Landed(SERVER, 5, 7)]
    assert names(tmp_path) == [Landed(SERVER, 5, 7).name]
    found = pq.read_table(tmp_path / "landing" / Landed(SERVER, 5, 7).name)
    assert found.equals(table)
    assert found.schema.equals(schema.arrow())


def test_times_can_be_skipped_by(tmp_path: Path) -> None:
    """So that a reader of one day need not look at the others: statistics, and zstd."""
    path = tmp_path / "landing" / seal(tmp_path, events(1, 3)).name
    column = pq.read_metadata(path).row_group(0).column(schema.NAMES.index("time"))
    assert (column.physical_type, column.compression) == ("INT64", "ZSTD")
    assert column.statistics.has_min_max


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    """As after a kill between the rename and the mark."""
    path = tmp_path / "landing" / seal(tmp_path, events(1, 3)).name
    before = (path.stat().st_ino, path.read_bytes())
    assert seal(tmp_path, events(1, 3)) == Landed(SERVER, 1, 3)
    assert (path.stat().st_ino, path.read_bytes()) == before


def test_other_content_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "landing" / seal(tmp_path, events(1, 3)).name
    before = path.read_bytes()
    with pytest.raises(OtherContent, match="other events"):
        seal(tmp_path, events(1, 3, jid="another"))
    assert path.read_bytes() == before


def test_what_is_no_parquet_is_not_written_over_either(tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    path = tmp_path / "landing" / Landed(SERVER, 1, 3).name
    path.write_text("mine")
    with pytest.raises(OtherContent):
        seal(tmp_path, events(1, 3))
    assert path.read_text() == "mine"


def test_a_gap_is_not_sealed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="are not 3"):
        seal(tmp_path, pa.concat_tables([events(1, 2), events(4, 1)]))
    assert landed(tmp_path) == []


def test_what_was_half_written_is_swept_but_only_one_s_own(tmp_path: Path) -> None:
    seal(tmp_path, events(1, 3))
    mine, another = Landed(SERVER, 4, 5), Landed("ffff", 4, 5)
    for each in (mine, another):
        (tmp_path / "landing" / f".{each.name}.tmp").write_bytes(b"PAR1")
    sweep(tmp_path, SERVER)
    assert names(tmp_path) == [f".{another.name}.tmp", Landed(SERVER, 1, 3).name]


def test_what_is_half_written_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / f".{Landed(SERVER, 1, 3).name}.tmp").write_bytes(b"PAR1")
    seal(tmp_path, events(1, 3))
    assert names(tmp_path) == [Landed(SERVER, 1, 3).name]


def test_what_cannot_be_written_takes_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("millrace.journal.sealing.sync", full)
    with pytest.raises(OSError, match="No space left"):
        seal(tmp_path, events(1, 3))
    assert names(tmp_path) == []
