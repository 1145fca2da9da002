"""TimerHeap: ordered, one time per key, no leaks."""

from random import Random

from millrace.engine.timers import SWEEP_BATCH_SIZE, TimerHeap


def due(timers: TimerHeap, now: int, limit: int = 1000) -> list[object]:
    return list(timers.due(now, limit))


def test_an_empty_heap_has_no_due_key():
    timers = TimerHeap()
    assert timers.next() is None
    assert due(timers, 10**18) == []
    assert len(timers) == 0


def test_keys_are_due_in_the_order_of_their_times():
    timers = TimerHeap()
    for key, when in (("c", 30), ("a", 10), ("b", 20)):
        timers.set(key, when)
    assert timers.next() == 10
    assert due(timers, 30) == ["a", "b", "c"]


def test_a_key_is_due_at_its_time_and_not_before():
    timers = TimerHeap()
    timers.set("a", 10)
    assert due(timers, 9) == []
    assert due(timers, 10) == ["a"]


def test_keys_with_equal_times_are_due_in_the_order_in_which_they_were_set():
    timers = TimerHeap()
    for key in (5, ("alarm", "x"), "text", -3):  # types without an order
        timers.set(key, 10)
    assert due(timers, 10) == [5, ("alarm", "x"), "text", -3]


def test_a_returned_key_is_removed():
    timers = TimerHeap()
    timers.set("a", 10)
    assert due(timers, 10) == ["a"]
    assert due(timers, 10) == []
    assert timers.when("a") is None


def test_due_returns_a_limited_number_of_keys():
    timers = TimerHeap()
    for key in range(5):
        timers.set(key, key)
    assert due(timers, 10, limit=3) == [0, 1, 2]
    assert due(timers, 10, limit=3) == [3, 4]


def test_setting_a_key_again_moves_it():
    timers = TimerHeap()
    timers.set("a", 10)
    timers.set("b", 15)
    timers.set("a", 20)
    assert len(timers) == 2
    assert timers.when("a") == 20
    assert due(timers, 15) == ["b"]
    assert due(timers, 20) == ["a"]


def test_a_key_can_be_moved_forward():
    timers = TimerHeap()
    timers.set("a", 20)
    timers.set("a", 10)
    assert due(timers, 10) == ["a"]
    assert due(timers, 20) == []


def test_a_cancelled_key_is_never_due():
    timers = TimerHeap()
    timers.set("a", 10)
    timers.set("b", 20)
    timers.cancel("a")
    timers.cancel("unknown")
    assert timers.next() == 20
    assert due(timers, 30) == ["b"]


def test_a_key_cancelled_during_iteration_is_not_returned():
    timers = TimerHeap()
    timers.set("a", 10)
    timers.set("b", 10)
    given = timers.due(10, 1000)
    assert next(given) == "a"
    timers.cancel("b")
    assert list(given) == []


def test_a_key_set_during_iteration_is_returned_if_due():
    timers = TimerHeap()
    timers.set("a", 10)
    given = timers.due(10, 1000)
    assert next(given) == "a"
    timers.set("b", 5)
    timers.set("c", 11)
    assert list(given) == ["b"]


def test_clear_removes_all_keys():
    timers = TimerHeap()
    timers.set("a", 10)
    timers.clear()
    assert len(timers) == 0
    assert due(timers, 10) == []


def test_stale_entries_of_cancelled_keys_are_collected():
    timers = TimerHeap()
    for n in range(100_000):
        timers.set(n, 10**15)
        timers.cancel(n)
    assert len(timers) == 0
    assert timers.stale <= 2048


def test_stale_entries_of_moved_keys_are_collected():
    timers = TimerHeap()
    for n in range(100_000):
        timers.set(n % 10, 10**15 - n)
    assert len(timers) == 10
    assert timers.stale <= 2048
    assert timers.next() == 10**15 - 99_999


def test_collection_keeps_all_live_keys():
    timers = TimerHeap()
    for n in range(5000):
        timers.set(("kept", n), n)
        for moved in range(4):
            timers.set("moved", 10**9 + moved)
    assert due(timers, 10**8, limit=10_000) == [("kept", n) for n in range(5000)]
    assert timers.stale <= 2 * len(timers) + 2048


def test_stale_entries_are_removed_in_small_steps():
    timers, count, longest = TimerHeap(), 50_000, 0
    for n in range(count):
        timers.set(n, 10**12 + n)
    for n in range(2 * count):
        before = len(timers.heap)
        timers.set(n % count, 10**12 + n // 2)
        longest = max(longest, before - len(timers.heap))
        assert timers.stale <= 2 * count
    assert 0 < longest <= SWEEP_BATCH_SIZE
    assert due(timers, 10**15, limit=count) == sorted(
        range(count), key=lambda n: ((count + n) // 2, n)
    )


def test_a_sweep_keeps_the_order_of_the_heap():
    random, timers, model = Random(3), TimerHeap(), {}
    for step in range(60_000):
        key = random.randrange(500)
        if random.random() < 0.9:
            model[key] = (random.randrange(10**6), step)
            timers.set(key, model[key][0])
        else:
            model.pop(key, None)
            timers.cancel(key)
        if step % 1000 == 0:
            assert not [problem for problem in timers.problems() if problem is not None]
    assert timers.stale <= 4 * len(model) + 2048
    assert due(timers, 10**7) == sorted(model, key=model.__getitem__)


def test_a_thousand_random_changes_agree_with_a_plain_dictionary():
    random, timers, model = Random(7), TimerHeap(), {}
    now = 0
    for _ in range(20_000):
        key, action = random.randrange(40), random.randrange(10)
        if action < 6:
            model[key] = now + random.randrange(100)
            timers.set(key, model[key])
        elif action < 8:
            model.pop(key, None)
            timers.cancel(key)
        else:
            now += random.randrange(20)
            given = due(timers, now)
            times = [model.pop(key) for key in given]
            assert times == sorted(times)
            assert all(time <= now for time in times)
            assert all(time > now for time in model.values())
        assert timers.next() == min(model.values(), default=None)
        assert len(timers) == len(model)


def test_the_timers_of_jobs_are_cleared_and_the_others_stay():
    timers, others = TimerHeap(), ["text", ("alarm", "x"), -3]
    for key in (5, 0, *others, "due", "cancelled"):
        timers.set(key, 10 if key == "due" else 20)
    timers.cancel("cancelled")
    assert due(timers, 10) == ["due"]
    live, heap = timers.clear_jobs()
    assert {5, 0} < live.keys()
    assert len(heap) >= 5
    assert timers.keys() == others
    timers.set(7, 20)
    assert due(timers, 20) == [*others, 7]
    timers.clear_jobs()
    assert timers.keys() == []
