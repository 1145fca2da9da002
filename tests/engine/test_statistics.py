"""Statistics agree with a second method and do not depend on the batches of events."""

import statistics as plain
from random import Random

import pytest

from millrace.engine import durations
from millrace.engine.durations import RecentDurations
from millrace.engine.states import DEAD, GONE, LEASED, SCHEDULED
from millrace.engine.statistics import (
    DAY,
    HISTOGRAM_BUCKETS,
    HISTORY_DAYS,
    DurationSummary,
    Statistics,
    histogram_slot,
)
from millrace.store.records import decode_any, encode
from scene import START, Scene, days_of

SECOND = 1_000_000
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
TODAY = START // DAY


def event(kind: str, queue: str = "default", at: int = START, wait=0, run=0, state=0) -> tuple:
    head = (at, kind, 1, "job-1", queue, "SomeJob", 3, 3, "worker-1", 1)
    return (*head, state, 0, at, at, wait, run, 0, 2)


def folded(*events: tuple) -> Statistics:
    statistics = Statistics()
    statistics.add_events(events)
    return statistics


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000])
def test_mean_and_variance_agree_with_the_statistics_module(count):
    random = Random(count)
    durations = [random.randrange(10**10) for _ in range(count)]
    spread = DurationSummary()
    spread.add_all(durations)
    seconds = [span / SECOND for span in durations]
    assert spread.count == count
    assert spread.mean == pytest.approx(plain.fmean(seconds))
    assert spread.variance == pytest.approx(plain.variance(seconds) if count > 1 else 0)


def test_the_variance_of_large_equal_spans_is_zero():
    spread = DurationSummary()
    spread.add_all([604_799 * SECOND + 999_999] * 1000)
    assert spread.variance == pytest.approx(0, abs=1e-9)


def test_an_empty_spread_has_no_variance():
    assert DurationSummary().variance == 0
    assert DurationSummary().mean == 0


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (-5, 0),
        (0, 0),
        (SECOND - 1, 0),
        (SECOND, 1),
        (59 * SECOND, 59),
        (MINUTE - 1, 59),
        (MINUTE, 60),
        (2 * MINUTE - 1, 60),
        (2 * MINUTE, 61),
        (59 * MINUTE, 118),
        (HOUR - 1, 118),
        (HOUR, 119),
        (2 * HOUR - 1, 119),
        (2 * HOUR, 120),
        (23 * HOUR, 141),
        (DAY - 1, 141),
        (DAY, 142),
        (2 * DAY - 1, 142),
        (6 * DAY, 147),
        (7 * DAY - 1, 147),
        (7 * DAY, None),
        (70 * DAY, None),
    ],
)
def test_a_span_is_counted_in_its_slot(span, expected):
    assert histogram_slot(span) == expected


def test_the_148_slots_are_contiguous():
    borders = [n * SECOND for n in range(60)]
    borders += [n * MINUTE for n in range(1, 60)]
    borders += [n * HOUR for n in range(1, 24)]
    borders += [n * DAY for n in range(1, 7)]
    assert [histogram_slot(border) for border in borders] == list(range(HISTOGRAM_BUCKETS))
    assert [histogram_slot(border - 1) for border in borders[1:]] == list(
        range(HISTOGRAM_BUCKETS - 1)
    )


@pytest.mark.parametrize("span", [0, 1, SECOND - 1, SECOND, MINUTE, HOUR, DAY, 7 * DAY - 1])
def test_the_histogram_uses_the_slots(span):
    spread = DurationSummary()
    spread.add_all([span, span])
    assert spread.histogram == {histogram_slot(span): 2}


def test_a_span_beyond_a_week_counts_without_a_slot():
    spread = DurationSummary()
    spread.add_all([7 * DAY])
    assert spread.count == 1
    assert spread.histogram == {}


def test_spreads_do_not_share_a_histogram():
    one, other = DurationSummary(), DurationSummary()
    one.add_all([5])
    assert other.histogram == {}


def test_a_lease_counts_the_wait_and_a_success_the_run():
    statistics = folded(event("leased", wait=3 * SECOND), event("completed", run=5 * SECOND))
    day = statistics.days["default", TODAY]
    assert (day.wait.count, day.wait.mean) == (1, 3)
    assert (day.run.count, day.run.mean) == (1, 5)
    assert (day.failures, day.failed, day.retries) == (0, 0, 0)


def test_failures_counts_attempts_and_failed_counts_dead_jobs():
    day = folded(
        event("failed", state=SCHEDULED),
        event("failed", state=DEAD),
        event("failed", state=GONE),
        event("expired", state=SCHEDULED),
        event("expired", state=DEAD),
    ).days["default", TODAY]
    assert day.failures == 5
    assert day.failed == 2
    assert day.retries == 2


def test_events_without_times_or_failures_are_not_counted():
    kinds = ("pushed", "due", "renewed", "released", "requeued", "killed", "cancelled", "purged")
    assert folded(*(event(kind) for kind in kinds)).days == {}


def test_queues_and_days_are_separate():
    statistics = folded(
        event("leased", "a"),
        event("leased", "b"),
        event("leased", "a"),
        event("leased", "a", at=START + DAY),
        event("leased", "b", at=START + DAY),
        event("leased", "a"),
    )
    counts = {key: day.wait.count for key, day in statistics.days.items()}
    assert counts == {
        ("a", TODAY): 3,
        ("b", TODAY): 1,
        ("a", TODAY + 1): 1,
        ("b", TODAY + 1): 1,
    }


def test_a_day_ends_at_midnight():
    midnight = (TODAY + 1) * DAY
    statistics = folded(event("leased", at=midnight - 1), event("leased", at=midnight))
    assert sorted(statistics.days) == [("default", TODAY), ("default", TODAY + 1)]


def lively_scene(*, records: bool = True) -> Scene:
    """A scene with all counted events, over two days and three queues."""
    scene = Scene()
    scene.engine.records_transitions = records
    for n in range(60):
        queue = "abc"[n % 3]
        scene.push(f"job-{n}", queue, retries=(25, 0, -1)[n % 7 % 3])
        scene.advance(n * 7)
        job = scene.lease(queue)
        scene.advance(n * 13 % 1700)
        if n % 4:
            scene.complete(job)
        elif n % 8:
            scene.fail(job)
        else:
            scene.advance(2000)
    return scene


def test_stored_events_count_like_original_tuples():
    events = lively_scene().engine.change_set.events
    direct, read_back = Statistics(), Statistics()
    direct.add_events(events)
    read_back.add_events(decode_any(encode(events)))
    assert direct.days
    assert days_of(direct) == days_of(read_back)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_change_set_boundaries_do_not_change_the_statistics(size):
    events = lively_scene().engine.change_set.events
    whole, pieces = Statistics(), Statistics()
    whole.add_events(events)
    for start in range(0, len(events), size):
        pieces.add_events(events[start : start + size])
    assert days_of(whole) == days_of(pieces)
    assert whole.dirty == pieces.dirty == set(whole.days)


def test_live_statistics_equal_those_of_the_events():
    engine = lively_scene().engine
    counted, recent = folded(*engine.change_set.events), measured(*engine.change_set.events)
    live = engine.current_statistics()
    assert live.days
    assert days_of(live) == days_of(counted)
    assert totals_of(live) == totals_of(counted)
    assert live.dirty == counted.dirty
    assert figures(engine.recent_durations) == figures(recent)


def figures(recent: RecentDurations) -> list[object]:
    sums = recent.pushed, recent.failed, recent.wait_sum, recent.run_sum
    return [
        *sums,
        recent.waits,
        recent.runs,
        *map(recent.wait_percentiles, "abc"),
        *map(recent.run_percentiles, "abc"),
    ]


def test_an_engine_that_records_no_transitions_has_the_same_statistics():
    recorded, plain = lively_scene().engine, lively_scene(records=False).engine
    change_set = plain.change_set
    assert recorded.change_set.events
    assert change_set.event_count == len(recorded.change_set.events)
    recorded_jobs = [seq for part in change_set.touched_seqs() for seq in part]
    assert (change_set.events, recorded_jobs) == ([], [])
    assert plain.version == recorded.version
    assert days_of(plain.current_statistics()) == days_of(recorded.current_statistics())
    assert figures(plain.recent_durations) == figures(recorded.recent_durations)
    assert list(plain.jobs) == list(recorded.jobs)


def test_a_renewed_lease_and_a_flush_are_not_recorded_without_transitions():
    scene = Scene()
    scene.engine.records_transitions = False
    job = scene.pushed_and_leased()
    scene.engine.renew(job, scene.now + MINUTE, scene.now)
    assert scene.engine.change_set.event_count == 3
    scene.engine.flush(scene.now)
    assert scene.engine.change_set.event_count == 4
    assert scene.engine.change_set.events == []
    assert scene.engine.current_statistics().days == {}


def test_a_day_changed_again_is_dirty_again():
    statistics = folded(event("leased"), event("leased", "other"))
    statistics.dirty.clear()
    statistics.add_events([event("pushed"), event("completed")])
    assert statistics.dirty == {("default", TODAY)}


def test_old_days_are_forgotten_and_listed():
    statistics = folded(*(event("leased", at=START + n * DAY) for n in range(4)))
    forgotten = statistics.forget(TODAY + 2)
    assert sorted(forgotten) == [("default", TODAY), ("default", TODAY + 1)]
    assert sorted(statistics.days) == [("default", TODAY + 2), ("default", TODAY + 3)]
    assert statistics.dirty == set(statistics.days)


def test_a_second_flush_removes_nothing():
    flushed = event("flushed", queue="")
    statistics = folded(
        event("completed", run=SECOND), flushed, flushed, event("leased", wait=SECOND)
    )
    day = statistics.days["default", TODAY]
    assert (day.wait.count, day.run.count, day.failures, day.failed) == (1, 0, 0, 0)


def test_durations_of_interleaved_queues_are_counted_in_their_queues():
    durations = [("a", 1), ("b", 2), ("a", 3), ("b", 4)]
    events = [event("leased", queue=name, wait=span * SECOND) for name, span in durations]
    days = folded(*events).days
    assert (days["a", TODAY].wait.count, days["a", TODAY].wait.mean) == (2, 2)
    assert (days["b", TODAY].wait.count, days["b", TODAY].wait.mean) == (2, 3)


def measured(*events: tuple) -> RecentDurations:
    recent_counts = RecentDurations()
    Statistics().add_events(events, recent_counts)
    return recent_counts


@pytest.mark.parametrize("span", [0, 1, 3, 4, 7, 8, 999, 10**6, 10**12, 2**62])
def test_recent_durations_are_counted_in_the_slots_of_their_spans(span):
    recent_counts = measured(event("leased", wait=span), event("completed", run=span))
    assert (
        recent_counts.waits[durations.duration_slot(span)]
        == recent_counts.runs[durations.duration_slot(span)]
        == 1
    )
    assert (
        recent_counts.wait_percentiles("default")
        == recent_counts.run_percentiles("default")
        == durations.percentiles({durations.duration_slot(span): 1})
    )
    assert (recent_counts.wait_sum, recent_counts.run_sum) == (span, span)


def test_events_are_counted_since_the_start():
    recent_counts = measured(
        event("pushed"),
        event("pushed"),
        event("leased"),
        event("completed"),
        event("advanced"),
        event("failed", state=SCHEDULED),
        event("expired", state=LEASED),
        event("doomed", state=DEAD),
        event("flushed"),
        event("pushed"),
    )
    assert (recent_counts.pushed, recent_counts.completed, recent_counts.failed) == (3, 2, 1)
    assert len(recent_counts) == 0  # a flush removes all queues


def totals_of(statistics: Statistics) -> dict[int, tuple[int, int]]:
    return {day: (of.processed, of.failures) for day, of in statistics.totals().items()}


def test_totals_of_a_day_cover_all_queues():
    statistics = folded(
        event("completed", "a"),
        event("completed", "b"),
        event("failed", "a", state=SCHEDULED),
        event("expired", "a", state=LEASED),
        event("completed", "a", at=START + DAY),
    )
    assert totals_of(statistics) == {TODAY: (3, 1), TODAY + 1: (1, 0)}


def test_totals_are_the_same_when_days_were_read_from_a_store():
    events = lively_scene().engine.change_set.events
    direct, read = Statistics(), Statistics()
    direct.add_events(events[:90])
    read.days.update(direct.days)
    assert totals_of(read) == totals_of(direct)
    read = Statistics()
    read.days.update(direct.days)
    read.add_events(events[90:])
    direct = folded(*events)
    assert totals_of(read) == totals_of(direct)


def test_a_flush_forgets_the_totals():
    assert totals_of(folded(event("completed"), event("flushed"))) == {}


def test_totals_outlive_their_days_for_a_limited_time():
    statistics = folded(event("completed"))
    statistics.forget(TODAY + 1)
    assert statistics.days == {}
    assert totals_of(statistics) == {TODAY: (1, 0)}
    statistics.forget(TODAY + HISTORY_DAYS + 1)
    assert totals_of(statistics) == {}


def test_a_day_forgotten_before_the_first_read_is_in_the_totals():
    read = Statistics()
    read.days.update(folded(event("completed")).days)
    read.forget(TODAY + 1)
    assert totals_of(read) == {TODAY: (1, 0)}


def test_a_flush_counts_no_event_twice():
    scene = Scene()
    scene.complete(scene.pushed_and_leased())
    scene.engine.current_statistics()
    scene.push("job-2")
    scene.engine.flush(scene.now)
    scene.push("job-3")
    scene.engine.take_changes()
    recent = scene.engine.recent_durations
    assert (recent.pushed, recent.completed, sum(recent.waits)) == (3, 1, 1)
