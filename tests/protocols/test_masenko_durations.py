"""Durations in the format of Go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocols.masenko import durations

MS = 1_000_000
S = 1000 * MS


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1ns", 1),
        ("1us", 1000),
        ("1\u00b5s", 1000),
        ("1\u03bcs", 1000),
        ("1ms", MS),
        ("1s", S),
        ("1m", 60 * S),
        ("1h", 3600 * S),
        ("1m30s", 90 * S),
        ("1h0m0.5s", 3600 * S + 500 * MS),
        ("4.999912s", 4_999_912_000),
        ("49.98ms", 49_980_000),
        ("999.1\u00b5s", 999_100),
        (".5s", 500 * MS),
        ("5.s", 5 * S),
        ("0", 0),
        ("-0", 0),
        ("+5s", 5 * S),
        ("-1.5s", -1500 * MS),
        ("-2m3.5s", -123_500 * MS),
        ("1s1s", 2 * S),
        ("0.0000000000000000000001s", 0),
        ("9223372036854775807ns", (1 << 63) - 1),
        ("0000000000000000000000000000001s", S),
    ],
)
def test_durations(text, nanoseconds):
    assert durations.parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    ["", "-", "+", "1", "5 s", "s", ".s", "1.s.", "1S", "1d", "1.5", "1e7", "--1s", "1s ", " 1s", "1s-1s",
     "9223372036854775808ns", "3000000h", "\u0663s", "1" * 300 + "ns", "1ns" * 200, "x", "1\u00b5", "00"],
)  # fmt: skip
def test_invalid_durations(text):
    with pytest.raises(ValueError):
        durations.parse_duration(text)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1500, "1.5\u00b5s"),
        (500 * MS, "500ms"),
        (1_500_000, "1.5ms"),
        (S, "1s"),
        (1500 * MS, "1.5s"),
        (45 * S, "45s"),
        (60 * S, "1m0s"),
        (90 * S, "1m30s"),
        (3600 * S, "1h0m0s"),
        (3_661_000_001_000, "1h1m1.000001s"),
    ],
)
def test_durations_are_formatted_as_in_go(nanoseconds, text):
    assert durations.format_duration(nanoseconds) == text


@given(st.integers(0, 1 << 62))
def test_a_formatted_duration_parses_to_the_same_value(nanoseconds):
    assert durations.parse_duration(durations.format_duration(nanoseconds)) == nanoseconds
