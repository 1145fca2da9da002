"""Spans of time as Go writes them (`1m30s`, `49.98ms`), in nanoseconds."""

import re
from typing import Final

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # the micro sign
    "\u03bcs": 1_000,  # the Greek letter
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^.0-9]+)")
_MAX_DURATION: Final = (1 << 63) - 1
#: Longer durations are refused.
_MAX_TEXT: Final = 256


def parse_duration(text: str) -> int:
    """Parse a duration to nanoseconds: an optional sign, then numbers, each with a unit. Raise
    ValueError for other text.
    """
    rest = text[1:] if text[:1] in {"+", "-"} else text
    if rest == "0":
        return 0
    if not 0 < len(rest) <= _MAX_TEXT:
        raise ValueError(text)
    total = at = 0
    while at < len(rest):
        match = _PART.match(rest, at)
        if match is None:
            raise ValueError(text)
        whole, fraction, unit = match.groups()
        if not (whole or fraction) or unit not in _UNITS:
            raise ValueError(text)
        total += _UNITS[unit] * int(whole or "0")
        if fraction:
            total += _UNITS[unit] * int(fraction) // 10 ** len(fraction)
        if total > _MAX_DURATION:
            raise ValueError(text)
        at = match.end()
    return -total if text[0] == "-" else total


def format_duration(nanoseconds: int) -> str:
    """Format a duration as Go does: `45s`, `1m30s`, `1.5s`, `500ms`, `1h0m0s`."""
    if nanoseconds == 0:
        return "0s"
    for unit, size in (("ns", 1), ("\u00b5s", 1_000), ("ms", 1_000_000)):
        if nanoseconds < 1000 * size:
            return _decimal(nanoseconds, size) + unit
    minutes, rest = divmod(nanoseconds, 60_000_000_000)
    seconds = _decimal(rest, 1_000_000_000) + "s"
    if not minutes:
        return seconds
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + f"{minutes}m" + seconds


def _decimal(number: int, size: int) -> str:
    whole, fraction = divmod(number, size)
    digits = f"{fraction:0{len(str(size)) - 1}d}".rstrip("0") if fraction else ""
    return f"{whole}.{digits}" if digits else str(whole)
