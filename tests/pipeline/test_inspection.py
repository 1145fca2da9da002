"""Landing files looked at before Spark reads them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from landings import SERVER, event, land

from millrace.journal import schema
from millrace.journal.landing import Landed, parsed
from millrace.pipeline.inspection import foreign, inspect, overlapping, torn
from millrace.pipeline.lake import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def name(first: int, last: int, server: str = SERVER) -> Landed:
    return Landed(server, first, last)


def test_a_file_that_is_what_its_name_says(lake):
    land(lake, [event(n) for n in range(7, 12)])
    assert inspect(lake, name(7, 11)) == (name(7, 11), 5, True, True, "")
    land(lake, [event(5)])
    assert inspect(lake, name(5, 5)).exact


@pytest.mark.parametrize(
    "rows",
    [
        [event(1), event(3)],
        [event(1), event(3), event(2)],
        [event(1), event(2), event(2)],
        [event(1), event(2), event(4)],
        [event(1), event(2, server="b2"), event(3)],
        [event(1), event(2, server=None), event(3)],
        [event(1), event(2) | {"event_id": None}, event(3)],
        [event(-(2**63)), event(2), event(2**63 - 1)],
    ],
    ids=["short", "disordered", "doubled", "beyond", "strange", "no server", "no number", "wide"],
)
def test_a_file_that_is_not(lake, rows):
    land(lake, rows, name=name(1, 3))
    looked = inspect(lake, name(1, 3))
    assert (looked.exact, looked.rows, looked.refused) == (False, len(rows), "")


@pytest.mark.parametrize(
    "odd",
    [{"queue": None}, {"wait_us": -1}, {"seq": -1}, {"time": None}],
    ids=["no queue", "negative wait", "negative number", "no time"],
)
def test_what_statistics_disprove(lake, odd):
    land(lake, [event(1), event(2, **odd), event(3)])
    looked = inspect(lake, name(1, 3))
    assert (looked.exact, looked.proved) == (True, False)


def test_statistics_prove_nothing_of_columns_that_are_not_there(lake):
    land(lake, [event(1)], drop=("source",))
    assert not inspect(lake, name(1, 1)).proved


def test_statistics_see_times_that_nobody_can_tell(lake):
    path = land(lake, [event(1)])
    rows = pq.ParquetFile(path).read()
    place = rows.schema.get_field_index("due")
    for moment, is_proved in ((253_402_300_800_000_000, False), (253_402_300_799_999_999, True)):
        due = pa.array([moment], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        pq.write_table(rows.set_column(place, rows.schema.field(place), due), path)
        assert inspect(lake, name(1, 1)).proved is is_proved


@pytest.mark.parametrize(("first", "last"), [(0, 3), (3, 2), (1, 2**63)])
def test_a_name_that_cannot_be(lake, first, last):
    assert inspect(lake, name(first, last)).refused == "its name says events that cannot be"


def test_files_that_cannot_be_read(lake):
    assert inspect(lake, name(1, 1)).refused == "it is not there any more"
    path = land(lake, [event(n) for n in range(1, 2000)])
    assert torn(lake, name(1, 1999)) == ""
    content = path.read_bytes()
    for left in (b"", b"PAR1", content[:-1], content[: len(content) // 2]):
        path.write_bytes(left)
        assert inspect(lake, name(1, 1999)).refused.startswith("it cannot be read: ")
        assert torn(lake, name(1, 1999)).startswith("it cannot be read: ")


def test_columns_may_be_missing_where_they_came_later_and_more_of_them_may_come():
    whole = schema.arrow()
    assert foreign(whole) == ""
    assert foreign(whole.append(pa.field("mood", pa.string()))) == ""
    assert foreign(whole.remove(whole.get_field_index("source"))) == ""
    assert foreign(whole.remove(whole.get_field_index("queue"))) == "it has no column `queue`"
    place = whole.get_field_index("seq")
    other = whole.set(place, pa.field("seq", pa.string()))
    assert foreign(other) == "its column `seq` is string, not int64"
    text = whole.set(whole.get_field_index("kind"), pa.field("kind", pa.large_string()))
    assert foreign(text) == ""
    seconds = whole.set(whole.get_field_index("time"), pa.field("time", pa.timestamp("ms", "UTC")))
    assert "timestamp[ms" in foreign(seconds)


@pytest.mark.parametrize(
    ("files", "others", "expected"),
    [
        ([(1, 3), (4, 6)], [], []),
        ([(1, 3), (3, 6)], [], [(1, 3), (3, 6)]),
        ([(1, 9), (2, 3), (5, 6), (10, 11)], [], [(1, 9), (2, 3), (5, 6)]),
        ([(4, 6)], [(1, 3), (7, 9)], []),
        ([(4, 6)], [(1, 4)], [(4, 6)]),
        ([(4, 6), (7, 8)], [(1, 100)], [(4, 6), (7, 8)]),
        ([(1, 5)], [(2, 3)], [(1, 5)]),
    ],
)
def test_files_that_share_events(files, others, expected):
    of_another = [name(first, last, "ff") for first, last in files]
    found = overlapping(
        [name(*each) for each in files], [*(name(*each) for each in others), *of_another]
    )
    assert found == {name(*each) for each in expected}


def test_names_of_sealed_files():
    assert parsed(name(1, 20).name) == name(1, 20)
    assert parsed("." + name(1, 20).name) is None
    assert parsed("ev-a1-1-2.parquet") is None
