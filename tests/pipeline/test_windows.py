"""Windows: every event is in exactly one, none is too large, and each flush ends one."""

from datetime import UTC, date, datetime
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from millrace.journal.table_files import File
from millrace.pipeline.windows import Flush, Window, days, file_ends, lease_days, windows

TIME = datetime(2026, 11, 14, tzinfo=UTC)


def file(server: str, first: int, last: int, day: date, leased: datetime | None = None) -> File:
    return File(Path(f"{server}-{first}"), last - first + 1, 1, day, server, first, last, leased)


@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 50), st.integers(0, 50))),
    st.sets(st.tuples(st.sampled_from("abc"), st.integers(1, 100))),
    st.integers(1, 20),
    st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(1, 100)).map(sorted)),
)
@example({"a": (37, 44), "b": (0, 25)}, set(), 3, {"a": [82]})  # a file ends after the history
def test_windows_divide_the_history(
    ranges: dict[str, tuple[int, int]],
    flushed: set[tuple[str, int]],
    limit: int,
    ends: dict[str, list[int]],
) -> None:
    start = {server: first for server, (first, _) in ranges.items()}
    end = {server: first + count for server, (first, count) in ranges.items()}
    flushes = [
        Flush(server, event, TIME)
        for server, event in sorted(flushed)
        if server in end and start[server] < event <= end[server]
    ]
    found = list(windows(start, end, flushes, limit, ends))
    position = start
    for window in found:
        assert window.start == position
        assert 0 < window.events <= limit
        position = window.end
    assert position == end
    assert sorted(flush for window in found for flush in window.flushes) == flushes
    for window in found:
        for flush in flushes:
            inside = window.start[flush.server] < flush.event_id <= window.end[flush.server]
            assert inside == (flush in window.flushes)
            assert not inside or window.end[flush.server] == flush.event_id


def test_a_window_reads_only_files_with_its_events() -> None:
    day = date(2026, 11, 14)
    all_ = [file("a", 1, 10, day), file("a", 11, 20, day), file("b", 1, 5, day)]
    window = Window({"a": 10, "b": 5}, {"a": 12, "b": 5})
    assert window.files(all_) == [all_[1]]
    assert window.condition() == "(server = 'a' AND event_id > 10 AND event_id <= 12)"


def test_windows_end_with_files() -> None:
    """Then no query has a condition on event numbers, which would be compiled for each window."""
    day = date(2026, 11, 14)
    all_ = [file("a", first, first + 6, day) for first in range(1, 29, 7)]
    found = list(windows({"a": 0}, {"a": 28}, (), 10, file_ends(all_)))
    assert [window.end["a"] for window in found] == [7, 14, 21, 28]
    assert all(window.covers(window.files(all_)) for window in found)
    large = [file("a", 1, 28, day)]
    found = list(windows({"a": 0}, {"a": 28}, (), 10, file_ends(large)))
    assert [window.end["a"] for window in found] == [10, 20, 28]
    assert not any(window.covers(window.files(large)) for window in found)


def test_files_of_one_shipment_are_not_divided() -> None:
    """A shipment has a file for each day. Around midnight their ranges of events overlap."""
    first, second = date(2026, 11, 14), date(2026, 11, 15)
    all_ = [file("a", 1, 6, first), file("a", 4, 9, second), file("a", 10, 20, second)]
    assert file_ends(all_) == {"a": [9, 20]}
    found = list(windows({"a": 0}, {"a": 20}, (), 11, file_ends(all_)))
    assert [window.end["a"] for window in found] == [9, 20]
    assert all(window.covers(window.files(all_)) for window in found)


def test_servers_share_a_window_in_proportion() -> None:
    found = list(windows({"a": 0, "b": 0}, {"a": 30, "b": 10}, (), 20))
    assert [window.end for window in found] == [{"a": 15, "b": 5}, {"a": 30, "b": 10}]


def test_no_window_has_only_a_small_rest() -> None:
    found = list(windows({"a": 0}, {"a": 101}, (), 100))
    assert [window.events for window in found] == [51, 50]


def test_leases_are_busy_from_their_first_day() -> None:
    day = date(2026, 11, 14)
    leased = datetime(2026, 11, 12, 23, tzinfo=UTC)
    files = [file("a", 1, 2, day, leased)]
    assert days(files) == ["2026-11-14"]
    assert lease_days(files) == ["2026-11-12", "2026-11-13", "2026-11-14"]


def test_an_unset_clock_touches_one_month() -> None:
    unset = datetime(1970, 1, 1, tzinfo=UTC)
    assert len(lease_days([file("a", 1, 2, date(2026, 11, 14), unset)])) == 32
    assert lease_days([file("a", 1, 2, date(1, 1, 1), unset)]) == ["0001-01-01"]
