"""Wrong passwords are counted by where they come from, in bounded memory."""

import pytest

from millrace.web.guesses import (
    MOST_ADDRESSES,
    MOST_FROM_ALL,
    MOST_FROM_ONE,
    WITHIN,
    Guesses,
    TooMany,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_so_many_from_one_address_then_none_for_a_while():
    clock = Clock()
    guesses = Guesses(clock)
    for n in range(MOST_FROM_ONE):
        guesses.check("192.0.2.1")
        assert guesses.add("192.0.2.1", str(n))
        clock.now += 1
    with pytest.raises(TooMany) as caught:
        guesses.check("192.0.2.1")
    assert caught.value.seconds == WITHIN - MOST_FROM_ONE
    guesses.check("192.0.2.2")
    clock.now = 100.0 + WITHIN
    guesses.check("192.0.2.1")
    guesses.add("192.0.2.1", "x")
    with pytest.raises(TooMany):
        guesses.check("192.0.2.1")


def test_the_same_again_and_again_is_one_guess():
    guesses = Guesses(Clock())
    assert guesses.add("192.0.2.1", "old password")
    for _ in range(100):
        assert not guesses.add("192.0.2.1", "old password")
    guesses.check("192.0.2.1")
    assert guesses.add("192.0.2.2", "old password")
    assert guesses.add("192.0.2.1", "another")


def test_so_many_from_all_together():
    guesses = Guesses(Clock())
    for n in range(MOST_FROM_ALL):
        guesses.check("192.0.2.99")
        guesses.add(f"198.51.100.{n}", "x")
    with pytest.raises(TooMany):
        guesses.check("192.0.2.99")


def test_whoever_has_a_network_has_one_address():
    guesses = Guesses(Clock())
    for n in range(MOST_FROM_ONE):
        guesses.add(f"2001:db8:1:2::{n:x}", str(n))
    with pytest.raises(TooMany):
        guesses.check("2001:db8:1:2:ffff::1")
    guesses.check("2001:db8:1:3::1")
    for n in range(MOST_FROM_ONE):
        guesses.add("::ffff:192.0.2.1", str(n))
    with pytest.raises(TooMany):
        guesses.check("192.0.2.1")


def test_only_so_many_addresses_are_remembered():
    clock = Clock()
    guesses = Guesses(clock)
    for n in range(5 * MOST_ADDRESSES):
        guesses.add(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", "x")
        clock.now += 1
    assert len(guesses._by) == len(guesses._last) == MOST_ADDRESSES
    assert len(guesses._all) == MOST_FROM_ALL


def test_what_was_guessed_is_not_kept():
    guesses = Guesses(Clock())
    guesses.add("192.0.2.1", "nearly the password")
    assert "nearly" not in repr(vars(guesses))
