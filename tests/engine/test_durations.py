"""Histograms of durations: slots without gaps, and percentiles close to the exact values."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.durations import (
    BUCKET_COUNT,
    Durations,
    RecentDurations,
    ServerDurations,
    count_below,
    duration_slot,
    percentiles,
    slot_limit,
)


def test_slots_are_contiguous():
    assert [duration_slot(slot_limit(n) - 1) for n in range(BUCKET_COUNT - 4)] == list(
        range(BUCKET_COUNT - 4)
    )
    assert [duration_slot(slot_limit(n)) for n in range(BUCKET_COUNT - 5)] == list(
        range(1, BUCKET_COUNT - 4)
    )


@given(st.integers(0, 2**64))
def test_a_slot_is_not_much_wider_than_the_spans_in_it(span):
    where = duration_slot(span)
    assert span < slot_limit(where)
    assert where < 4 or slot_limit(where) <= 1.25 * span + 1


@pytest.mark.parametrize("span", [-1, -(10**9)])
def test_a_negative_duration_counts_as_zero(span):
    assert duration_slot(span) == 0


def test_an_empty_histogram_has_zero_percentiles():
    assert percentiles({}, {}) == (0, 0, 0, 0)


@pytest.mark.parametrize("spread", [10, 10**4, 10**8])
def test_percentiles_are_close_to_the_exact_values(spread):
    random, durations = Random(spread), Durations()
    spans = sorted(random.randrange(spread) for _ in range(2000))
    for span in spans:
        durations.add(span)
    count, *found = durations.recent_percentiles()
    assert count == 2000
    for part, known in zip((0.5, 0.95, 0.99), found, strict=True):
        assert known == pytest.approx(spans[int(2000 * part) - 1], rel=0.15, abs=1)


@given(st.lists(st.integers(0, 2**40)), st.integers(2, 45))
def test_below_counts_durations_under_a_power_of_two(spans, power):
    durations = Durations()
    for span in spans:
        durations.add(span)
    assert count_below(durations.counts, power) == sum(span < 1 << power for span in spans)
    assert sum(durations.counts) == len(spans)
    assert durations.sum == sum(spans)


def test_recent_covers_one_or_two_windows():
    measured = ServerDurations()
    measured.commits.add(5)
    measured.lag.add(5)
    measured.next_window()
    measured.commits.add(5)
    assert measured.commits.recent_percentiles()[0] == 2
    measured.next_window()
    assert measured.commits.recent_percentiles()[0] == 1
    assert measured.lag.recent_percentiles()[0] == 0
    assert sum(measured.commits.counts) == 2


def test_queues_without_events_are_forgotten():
    recent = RecentDurations()
    recent.add_waits("a", [3] * 7)
    recent.next_window()
    recent.add_runs("b", [4])
    assert recent.wait_percentiles("a") == (7, 3, 3, 3)
    assert recent.run_percentiles("b")[0] == 1
    assert recent.run_percentiles("a")[0] == recent.wait_percentiles("nobody")[0] == 0
    recent.next_window()
    assert recent.wait_percentiles("a")[0] == 0
    assert len(recent) == 1
