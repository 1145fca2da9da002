from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.statistics import HISTOGRAM_BUCKETS, DurationSummary, histogram_slot
from millrace.records import DayTotals, Sample
from millrace.web.charts import error_rate, history, rates, slot_label, slots, spark

SECOND = 1_000_000


def sample(at: float, pushed: int = 0, completed: int = 0, failed: int = 0) -> Sample:
    return Sample(int(at * SECOND), pushed, completed, failed, 0, 0)


class TestRates:
    def test_without_samples_the_rates_are_zero(self):
        assert rates([]) == rates([sample(1, 5)]) == (0, 0, 0)

    def test_the_rate_covers_a_few_seconds(self):
        # The last sample is shortly after the previous one: that interval alone would be noise.
        samples = [sample(0), sample(5, 100, 50, 10), sample(10, 200, 90, 12), sample(10.1, 201)]
        assert rates(samples).pushed == 101 / 5.1

    def test_a_young_server(self):
        assert rates([sample(0), sample(2, 10, 4, 2)]) == (5, 2, 1)

    def test_never_below_zero(self):
        assert rates([sample(0, 100, 100, 100), sample(5)]) == (0, 0, 0)


class TestErrorRate:
    def test_without_ended_jobs_there_is_no_rate(self):
        assert error_rate([]) is None
        assert error_rate([sample(0, 1), sample(5, 9)]) is None

    def test_only_the_last_five_minutes_count(self):
        samples = [sample(0, 0, 0, 0), sample(100, 0, 0, 1000), sample(400, 0, 75, 1025)]
        assert error_rate(samples) == 0.25


def test_days_without_data_have_zeros():
    found = history([DayTotals(10, 5, 1), DayTotals(12, 7, 0)], today=12, most=4)
    assert [(d.day, d.processed, d.failures) for d in found] == [
        (9, 0, 0),
        (10, 5, 1),
        (11, 0, 0),
        (12, 7, 0),
    ]


class TestSpark:
    def test_a_path_from_left_to_right(self):
        assert spark([0, 5, 10]) == "M0 23 L50 12 L100 1"

    def test_a_single_number_is_a_line(self):
        assert spark([3]) == "M0 1 L100 1"

    def test_an_empty_chart(self):
        assert spark([]) == ""
        assert spark([0, 0]) == "M0 23 L100 23"

    @given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200))
    def test_the_line_stays_in_its_box(self, numbers):
        points = spark(numbers)[1:].split(" L")
        for point in points:
            x, y = map(float, point.split())
            assert 0 <= x <= 100
            assert 1 <= y <= 23


class TestSlots:
    def test_slots_have_labels(self):
        labels = {0: "0 to 1 s", 59: "59 to 60 s", 60: "1 to 2 min", 118: "59 to 60 min"}
        labels |= {119: "1 to 2 h", 141: "23 to 24 h", 142: "1 to 2 d", 147: "6 to 7 d"}
        assert {number: slot_label(number) for number in labels} == labels

    @given(st.integers(0, 7 * 86_400 - 1))
    def test_a_span_is_in_the_slot_of_its_label(self, seconds):
        number = histogram_slot(seconds * SECOND)
        first, unit = slot_label(number).split()[::3]
        size = {"s": 1, "min": 60, "h": 3600, "d": 86_400}[unit]
        assert int(first) * size <= seconds < (int(first) + 1) * size

    def test_only_filled_slots_are_listed_in_order(self):
        spread = DurationSummary(3, 1.0, 0.0, {147: 1, 0: 2, HISTOGRAM_BUCKETS: 9})
        assert slots(spread) == [(0, "0 to 1 s", 2), (147, "6 to 7 d", 1)]
