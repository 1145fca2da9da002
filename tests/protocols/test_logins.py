"""Wrong passwords are counted by address, in bounded memory."""

import pytest

from millrace.protocols.logins import (
    GUESS_PERIOD,
    MAX_ADDRESSES,
    MAX_GUESSES,
    MAX_GUESSES_PER_ADDRESS,
    LoginLimiter,
    TooManyGuesses,
)

START = 100.0


def test_the_limit_of_one_address():
    limiter = LoginLimiter()
    now = START
    for n in range(MAX_GUESSES_PER_ADDRESS):
        limiter.check("192.0.2.1", now)
        assert limiter.count_wrong_password("192.0.2.1", str(n), now)
        now += 1
    with pytest.raises(TooManyGuesses) as caught:
        limiter.check("192.0.2.1", now)
    assert caught.value.seconds == GUESS_PERIOD - MAX_GUESSES_PER_ADDRESS
    limiter.check("192.0.2.2", now)
    now = START + GUESS_PERIOD
    limiter.check("192.0.2.1", now)
    limiter.count_wrong_password("192.0.2.1", "x", now)
    with pytest.raises(TooManyGuesses):
        limiter.check("192.0.2.1", now)


def test_a_repeated_password_counts_once():
    limiter = LoginLimiter()
    assert limiter.count_wrong_password("192.0.2.1", "old password", START)
    for _ in range(100):
        assert not limiter.count_wrong_password("192.0.2.1", "old password", START)
    limiter.check("192.0.2.1", START)
    assert limiter.count_wrong_password("192.0.2.2", "old password", START)
    assert limiter.count_wrong_password("192.0.2.1", "another", START)


def test_the_limit_of_all_addresses():
    limiter = LoginLimiter()
    for n in range(MAX_GUESSES):
        limiter.check("192.0.2.99", START)
        limiter.count_wrong_password(f"198.51.100.{n}", "x", START)
    with pytest.raises(TooManyGuesses):
        limiter.check("192.0.2.99", START)


def test_an_ipv6_network_counts_as_one_address():
    limiter = LoginLimiter()
    for n in range(MAX_GUESSES_PER_ADDRESS):
        limiter.count_wrong_password(f"2001:db8:1:2::{n:x}", str(n), START)
    with pytest.raises(TooManyGuesses):
        limiter.check("2001:db8:1:2:ffff::1", START)
    limiter.check("2001:db8:1:3::1", START)
    for n in range(MAX_GUESSES_PER_ADDRESS):
        limiter.count_wrong_password("::ffff:192.0.2.1", str(n), START)
    with pytest.raises(TooManyGuesses):
        limiter.check("192.0.2.1", START)


def test_a_clock_set_back_locks_out_no_client():
    limiter = LoginLimiter()
    for n in range(MAX_GUESSES_PER_ADDRESS):
        limiter.count_wrong_password("192.0.2.1", str(n), START)
    limiter.check("192.0.2.1", START - 1)


def test_the_number_of_addresses_is_bounded():
    limiter = LoginLimiter()
    for n in range(5 * MAX_ADDRESSES):
        limiter.count_wrong_password(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", "x", START + n)
    assert len(limiter._by_address) == len(limiter._last) == MAX_ADDRESSES
    assert len(limiter._guess_times) == MAX_GUESSES


@pytest.mark.sources_only("it reads all attributes")
def test_no_password_is_stored():
    limiter = LoginLimiter()
    limiter.count_wrong_password("192.0.2.1", "nearly the password", START)
    assert "nearly" not in repr(vars(limiter))
