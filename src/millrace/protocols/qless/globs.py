"""Patterns as Redis has them: `*`, `?`, `[a-z]`, `[^a]`, and a backslash that takes any of it back.

A pattern becomes a regular expression that never tries anything twice: each part between two stars
is looked for once, from where the one before it was found.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from millrace.protocols.errors import ClientError

#: Longer ones are refused: nobody has names like that.
MOST_PATTERN: Final = 1000

Matcher = Callable[[bytes], object]


def pattern_of(word: bytes) -> bytes:
    if len(word) > MOST_PATTERN:
        raise ClientError(f"ERR a pattern may have {MOST_PATTERN} bytes")
    return word


@lru_cache(maxsize=256)
def matcher(pattern: bytes) -> Matcher:
    """Call it with a name; what it returns is true if the name matches."""
    parts = _parts(pattern)
    head, *middle = parts
    expression = head
    if middle:
        tail = middle.pop()
        expression += b"".join(b"(?>.*?%b)" % part for part in middle if part) + b".*" + tail
    return re.compile(expression, re.DOTALL).fullmatch


def _parts(pattern: bytes) -> list[bytes]:
    """What stands between the stars, each part an expression that has one length."""
    parts = [b""]
    at, end = 0, len(pattern)
    while at < end:
        sign = pattern[at : at + 1]
        at += 1
        if sign == b"*":
            parts.append(b"")
        elif sign == b"?":
            parts[-1] += b"."
        elif sign == b"[":
            one, at = _one_of(pattern, at)
            parts[-1] += one
        else:
            if sign == b"\\" and at < end:
                sign = pattern[at : at + 1]
                at += 1
            parts[-1] += re.escape(sign)
    return parts


def _one_of(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The expression for what stands in brackets, and where it ends; they need not be closed."""
    end = len(pattern)
    negated = pattern[at : at + 1] == b"^"
    at += negated
    members: set[int] = set()
    while at < end and pattern[at] != 0x5D:
        if pattern[at] == 0x5C and at + 1 < end:
            members.add(pattern[at + 1])
            at += 2
        elif at + 2 < end and pattern[at + 1] == 0x2D:
            low, high = sorted((pattern[at], pattern[at + 2]))
            members.update(range(low, high + 1))
            at += 3
        else:
            members.add(pattern[at])
            at += 1
    if negated:
        members = set(range(256)) - members
    if not members:
        return b"(?!)", at + 1
    return b"[%b]" % b"".join(b"\\x%02x" % member for member in sorted(members)), at + 1
