"""How long things took: every slot where the last one ends, percentiles near the truth."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.spans import (
    SLOTS,
    Durations,
    Lately,
    Measured,
    below,
    limit,
    percentiles,
    slot,
)


def test_slots_begin_where_the_last_one_ends():
    assert [slot(limit(n) - 1) for n in range(SLOTS - 4)] == list(range(SLOTS - 4))
    assert [slot(limit(n)) for n in range(SLOTS - 5)] == list(range(1, SLOTS - 4))


@given(st.integers(0, 2**64))
def test_a_slot_is_not_much_wider_than_the_spans_in_it(span):
    where = slot(span)
    assert span < limit(where)
    assert where < 4 or limit(where) <= 1.25 * span + 1


@pytest.mark.parametrize("span", [-1, -(10**9)])
def test_a_clock_that_went_back_counts_as_no_time(span):
    assert slot(span) == 0


def test_nothing_has_no_percentiles():
    assert percentiles({}, {}) == (0, 0, 0, 0)


@pytest.mark.parametrize("spread", [10, 10**4, 10**8])
def test_percentiles_are_near_the_truth(spread):
    random, durations = Random(spread), Durations()
    spans = sorted(random.randrange(spread) for _ in range(2000))
    for span in spans:
        durations.add(span)
    count, *found = durations.lately()
    assert count == 2000
    for part, known in zip((0.5, 0.95, 0.99), found, strict=True):
        assert known == pytest.approx(spans[int(2000 * part) - 1], rel=0.15, abs=1)


@given(st.lists(st.integers(0, 2**40)), st.integers(2, 45))
def test_how_many_are_below_a_power_of_two(spans, power):
    durations = Durations()
    for span in spans:
        durations.add(span)
    assert below(durations.counts, power) == sum(span < 1 << power for span in spans)
    assert sum(durations.counts) == len(spans)
    assert durations.sum == sum(spans)


def test_lately_is_one_or_two_windows():
    measured = Measured()
    measured.commits.add(5)
    measured.lag.add(5)
    measured.turn()
    measured.commits.add(5)
    assert measured.commits.lately()[0] == 2
    measured.turn()
    assert measured.commits.lately()[0] == 1
    assert measured.lag.lately()[0] == 0
    assert sum(measured.commits.counts) == 2


def test_queues_in_which_nothing_happens_are_forgotten():
    lately = Lately()
    lately.of("a")[0][3] = 7
    lately.turn()
    lately.of("b")[1][4] = 1
    assert lately.waited("a") == (7, 3, 3, 3)
    assert lately.ran("b")[0] == 1
    assert lately.ran("a")[0] == lately.waited("nobody")[0] == 0
    lately.turn()
    assert lately.waited("a")[0] == 0
    assert len(lately) == 1
