"""RFC 3339 times in UTC, to and from microseconds since 1970."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _LastTime:
    """The last time and its text: consecutive times are often equal, or in the same second."""

    __slots__ = ("second", "second_text", "text", "time")

    def __init__(self) -> None:
        self.time = self.second = 0
        self.second_text = "1970-01-01T00:00:00"
        self.text = "1970-01-01T00:00:00Z"


_last: Final = _LastTime()


def format_rfc3339(microseconds: int) -> str:
    """Format a time as Go does, without trailing zeros: `2026-11-15T19:43:51.45Z`."""
    last = _last
    if microseconds == last.time:
        return last.text
    second = microseconds // 1_000_000
    if second != last.second:
        try:
            last.second_text = (_EPOCH + timedelta(seconds=second)).isoformat()[:19]
        except OverflowError:
            last.second_text = _far_second(second)
        last.second = second
    last.time = microseconds
    fraction = microseconds - second * 1_000_000
    if fraction:
        # Much faster than a format specification in compiled code.
        digits = str(1_000_000 + fraction)[1:].rstrip("0")
        last.text = last.second_text + "." + digits + "Z"
    else:
        last.text = last.second_text + "Z"
    return last.text


#: The Gregorian calendar repeats every 400 years. A year that `datetime` cannot represent is
#: shifted by whole cycles.
_CYCLE_YEARS: Final = 400
_CYCLE: Final = timedelta(days=146_097)
_CYCLE_SECONDS: Final = 146_097 * 86_400


def _far_second(second: int) -> str:
    """A second before the year 1 or after the year 9999, as Go prints it."""
    cycles = second // _CYCLE_SECONDS
    text = (_EPOCH + timedelta(seconds=second - cycles * _CYCLE_SECONDS)).isoformat()[:19]
    year = int(text[:4]) + _CYCLE_YEARS * cycles
    return f"{'-' if year < 0 else ''}{abs(year):04d}{text[4:]}"


#: The parts of Go's RFC3339Nano layout in order: a pattern, and the name in Go's errors.
_PARTS: Final = (
    (re.compile(r"[0-9]{4}"), "2006"),
    (re.compile(r"-"), "-"),
    (re.compile(r"[0-9]{2}"), "01"),
    (re.compile(r"-"), "-"),
    (re.compile(r"[0-9]{2}"), "02"),
    (re.compile(r"T"), "T"),
    (re.compile(r"[0-9]{2}"), "15"),
    (re.compile(r":"), ":"),
    (re.compile(r"[0-9]{2}"), "04"),
    (re.compile(r":"), ":"),
    (re.compile(r"[0-9]{2}(?:[.,][0-9]+)?"), "05"),
    (re.compile(r"Z|[+-][0-9]{2}:[0-9]{2}"), "Z07:00"),
)
_LAYOUT: Final = "2006-01-02T15:04:05.999999999Z07:00"


def parse_rfc3339(text: str) -> int:
    """Parse a time into microseconds. Raise ValueError with the message of Go's time.Parse."""
    message = f'parsing time "{text}" as "{_LAYOUT}": '
    found: list[str] = []
    rest = text
    for pattern, name in _PARTS:
        match = pattern.match(rest)
        if match is None:
            raise ValueError(f'{message}cannot parse "{rest}" as "{name}"')
        found.append(match.group())
        rest = rest[match.end() :]
    if rest:
        raise ValueError(f'parsing time "{text}": extra text: "{rest}"')
    year, month, day, hour, minute = (int(found[i]) for i in (0, 2, 4, 6, 8))
    second, _, fraction = found[10].replace(",", ".").partition(".")
    try:
        # The year 0 is valid, and an offset can move the time outside the range of `datetime`.
        moment = datetime(year % 400 + 400, month, day, hour, minute, int(second), tzinfo=UTC)
        span = moment - _EPOCH - _offset(found[11]) + (year // 400 - 1) * _CYCLE
    except ValueError:
        raise ValueError(f'parsing time "{text}": value out of range') from None
    return span // timedelta(microseconds=1) + int(fraction[:6].ljust(6, "0"))


def _offset(zone: str) -> timedelta:
    if zone == "Z":
        return timedelta()
    hours, minutes = int(zone[1:3]), int(zone[4:6])
    if hours > 23 or minutes > 59:
        raise ValueError(zone)
    span = timedelta(hours=hours, minutes=minutes)
    return span if zone[0] == "+" else -span
