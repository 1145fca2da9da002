"""Times as text, and back."""

import importlib.util
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import millrace
from millrace.protocols.times import format_rfc3339, parse_rfc3339

SECOND = 1_000_000
#: 1970 to the end of 9999
MOMENTS = st.integers(0, 253_402_300_799_999_999)


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (100_000, "1970-01-01T00:00:00.1Z"),
        (999_999, "1970-01-01T00:00:00.999999Z"),
        (1_794_771_831_450_000, "2026-11-15T19:43:51.45Z"),
        (951_782_400_000_000, "2000-02-29T00:00:00Z"),
        (253_402_300_799_000_000, "9999-12-31T23:59:59Z"),
        (-62_135_596_800_000_000, "0001-01-01T00:00:00Z"),
    ],
)
def test_rfc3339(microseconds, text):
    assert format_rfc3339(microseconds) == text
    assert parse_rfc3339(text) == microseconds


@given(MOMENTS)
@example(0)
def test_a_formatted_time_can_be_parsed(time_micros):
    text = format_rfc3339(time_micros)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{0,5}[1-9])?Z", text)
    assert parse_rfc3339(text) == time_micros


@given(st.lists(MOMENTS | st.integers(0, 3 * SECOND), min_size=2, max_size=6))
def test_earlier_calls_do_not_matter(times_micros):
    fresh = [_fresh().format_rfc3339(time_micros) for time_micros in times_micros]
    assert [format_rfc3339(time_micros) for time_micros in times_micros] == fresh


@pytest.mark.parametrize("time_micros", [-1, -500_000, -1_000_000])
def test_times_before_1970_in_the_first_call(time_micros):
    assert _fresh().format_rfc3339(time_micros).startswith("1969-12-31T23:59:59")


#: A compiled module can be loaded only under its name.
SOURCE = Path(millrace.__file__).parent / "protocols" / "times.py"


def _fresh():
    """The module in its initial state."""
    spec = importlib.util.spec_from_file_location("times_afresh", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2026-11-15T19:43:51+00:00", "2026-11-15T19:43:51Z"),
        ("2026-11-15T20:43:51+01:00", "2026-11-15T19:43:51Z"),
        ("2026-11-15T14:13:51-05:30", "2026-11-15T19:43:51Z"),
        ("2026-11-15T00:30:00+14:00", "2026-11-14T10:30:00Z"),
        ("2026-11-15T19:43:51.1234567891234Z", "2026-11-15T19:43:51.123456Z"),
        ("2026-11-15T19:43:51,5Z", "2026-11-15T19:43:51.5Z"),
        ("2026-11-15T19:43:51.000Z", "2026-11-15T19:43:51Z"),
    ],
)
def test_parse(text, same):
    assert parse_rfc3339(text) == parse_rfc3339(same)


def test_early_times_can_be_parsed():
    assert parse_rfc3339("0001-01-01T00:00:00Z") < parse_rfc3339("1969-12-31T23:59:59Z") < 0


LAYOUT = "2006-01-02T15:04:05.999999999Z07:00"


@pytest.mark.parametrize(
    ("text", "remaining_text", "part"),
    [
        ("", "", "2006"),
        ("x", "x", "2006"),
        ("202-01-01", "202-01-01", "2006"),
        ("2026/11/15", "/11/15", "-"),
        ("2026-1-15T", "1-15T", "01"),
        ("2026-11-15", "", "T"),
        ("2026-11-15 19:43:51Z", " 19:43:51Z", "T"),
        ("2026-11-15t19:43:51Z", "t19:43:51Z", "T"),
        ("2026-11-15T19:43Z", "Z", ":"),
        ("2026-11-15T19:43:51", "", "Z07:00"),
        ("2026-11-15T19:43:51z", "z", "Z07:00"),
        ("2026-11-15T19:43:51+0100", "+0100", "Z07:00"),
        ("2026-11-15T19:43:51.Z", ".Z", "Z07:00"),
    ],
)
def test_the_go_message_for_an_invalid_time(text, remaining_text, part):
    with pytest.raises(ValueError) as error:
        parse_rfc3339(text)
    assert str(error.value) == (
        f'parsing time "{text}" as "{LAYOUT}": cannot parse "{remaining_text}" as "{part}"'
    )


@pytest.mark.parametrize(
    "text",
    [
        "2026-13-01T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-02-29T00:00:00Z",
        "2026-04-31T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:60:00Z",
        "2026-01-01T00:00:60Z",
        "2026-01-01T00:00:00+00:60",
        "2026-01-01T00:00:00+25:00",
    ],
)
def test_out_of_range(text):
    with pytest.raises(ValueError, match="out of range"):
        parse_rfc3339(text)


@pytest.mark.parametrize("extra", [" ", "Z", "x", "\n", "+01:00"])
def test_extra_text(extra):
    with pytest.raises(ValueError, match="extra text"):
        parse_rfc3339("2026-11-15T19:43:51Z" + extra)


@pytest.mark.parametrize("zero", ["\u0660", "\uff10", "\u0966"])
def test_only_ascii_digits_are_digits(zero):
    with pytest.raises(ValueError, match="cannot parse"):
        parse_rfc3339(f"2026-11-{zero}{zero}T00:00:00Z")


@given(st.text(max_size=40))
def test_any_text_is_a_time_or_a_value_error(text):
    try:
        time_micros = parse_rfc3339(text)
    except ValueError:
        return
    assert parse_rfc3339(format_rfc3339(time_micros)) == time_micros


@pytest.mark.parametrize(
    ("text", "microseconds", "printed"),
    [
        ("0000-01-01T00:00:00Z", -62_167_219_200_000_000, "0000-01-01T00:00:00Z"),
        ("0000-01-01T00:00:00+01:00", -62_167_222_800_000_000, "-0001-12-31T23:00:00Z"),
        ("0000-02-29T12:00:00.5Z", -62_162_078_399_500_000, "0000-02-29T12:00:00.5Z"),
        ("0001-01-01T00:00:00+00:01", -62_135_596_860_000_000, "0000-12-31T23:59:00Z"),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000_000, "9999-12-31T23:59:59Z"),
        ("9999-12-31T23:59:59-01:00", 253_402_304_399_000_000, "10000-01-01T00:59:59Z"),
    ],
)
def test_the_first_and_the_last_years(text, microseconds, printed):
    assert parse_rfc3339(text) == microseconds
    assert format_rfc3339(microseconds) == printed


@pytest.mark.parametrize("text", ["0001-02-29T00:00:00Z", "1900-02-29T00:00:00Z"])
def test_invalid_days(text):
    with pytest.raises(ValueError, match="out of range"):
        parse_rfc3339(text)


@given(st.integers(0, 9999), st.integers(1, 12), st.integers(1, 28), st.integers(0, 86_399))
def test_every_year_survives_the_round_trip(year, month, day, second):
    text = f"{year:04d}-{month:02d}-{day:02d}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
    assert format_rfc3339(parse_rfc3339(text)) == text
