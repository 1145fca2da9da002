"""TimerHeap: in order, one moment per key, and no leaks."""

from random import Random

from millrace.engine.timers import TimerHeap


def due(timers: TimerHeap, now: int, most: int = 1000) -> list[object]:
    return list(timers.due(now, most))


def test_nothing_is_due_when_nothing_is_set():
    timers = TimerHeap()
    assert timers.next() is None
    assert due(timers, 10**18) == []
    assert len(timers) == 0


def test_keys_come_in_the_order_of_their_moments():
    timers = TimerHeap()
    for key, when in (("c", 30), ("a", 10), ("b", 20)):
        timers.set(key, when)
    assert timers.next() == 10
    assert due(timers, 30) == ["a", "b", "c"]


def test_a_key_is_due_at_its_moment_and_not_before():
    timers = TimerHeap()
    timers.set("a", 10)
    assert due(timers, 9) == []
    assert due(timers, 10) == ["a"]


def test_equal_moments_come_in_the_order_in_which_they_were_set():
    timers = TimerHeap()
    for key in (5, ("alarm", "x"), "text", -3):  # of kinds that cannot be compared
        timers.set(key, 10)
    assert due(timers, 10) == [5, ("alarm", "x"), "text", -3]


def test_a_key_given_is_forgotten():
    timers = TimerHeap()
    timers.set("a", 10)
    assert due(timers, 10) == ["a"]
    assert due(timers, 10) == []
    assert timers.when("a") is None


def test_at_most_so_many_are_given_at_once():
    timers = TimerHeap()
    for key in range(5):
        timers.set(key, key)
    assert due(timers, 10, most=3) == [0, 1, 2]
    assert due(timers, 10, most=3) == [3, 4]


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


def test_a_cancelled_key_never_comes():
    timers = TimerHeap()
    timers.set("a", 10)
    timers.set("b", 20)
    timers.cancel("a")
    timers.cancel("unknown")
    assert timers.next() == 20
    assert due(timers, 30) == ["b"]


def test_a_key_cancelled_while_others_are_being_given_does_not_come():
    timers = TimerHeap()
    timers.set("a", 10)
    timers.set("b", 10)
    given = timers.due(10, 1000)
    assert next(given) == "a"
    timers.cancel("b")
    assert list(given) == []


def test_a_key_set_while_others_are_being_given_comes_if_it_is_due():
    timers = TimerHeap()
    timers.set("a", 10)
    given = timers.due(10, 1000)
    assert next(given) == "a"
    timers.set("b", 5)
    timers.set("c", 11)
    assert list(given) == ["b"]


def test_clearing_forgets_everything():
    timers = TimerHeap()
    timers.set("a", 10)
    timers.clear()
    assert len(timers) == 0
    assert due(timers, 10) == []


def test_stale_of_cancelled_keys_are_collected():
    timers = TimerHeap()
    for n in range(100_000):
        timers.set(n, 10**15)
        timers.cancel(n)
    assert len(timers) == 0
    assert timers.stale <= 2048


def test_stale_of_moved_keys_are_collected():
    timers = TimerHeap()
    for n in range(100_000):
        timers.set(n % 10, 10**15 - n)
    assert len(timers) == 10
    assert timers.stale <= 2048
    assert timers.next() == 10**15 - 99_999


def test_collecting_loses_nobody():
    timers = TimerHeap()
    for n in range(5000):
        timers.set(("kept", n), n)
        for moved in range(4):
            timers.set("moved", 10**9 + moved)
    assert due(timers, 10**8, most=10_000) == [("kept", n) for n in range(5000)]
    assert timers.stale <= 2 * len(timers) + 2048


def test_a_thousand_random_changes_agree_with_a_plain_dictionary():
    random, timers, model = Random(7), TimerHeap(), {}
    now = 0
    for _ in range(20_000):
        key, what = random.randrange(40), random.randrange(10)
        if what < 6:
            model[key] = now + random.randrange(100)
            timers.set(key, model[key])
        elif what < 8:
            model.pop(key, None)
            timers.cancel(key)
        else:
            now += random.randrange(20)
            given = due(timers, now)
            moments = [model.pop(key) for key in given]
            assert moments == sorted(moments)
            assert all(moment <= now for moment in moments)
            assert all(moment > now for moment in model.values())
        assert timers.next() == min(model.values(), default=None)
        assert len(timers) == len(model)
