"""Patterns in the syntax of Redis: `*`, `?`, `[a-z]`, `[^a]`, and a backslash before a literal
character.

A pattern is compiled to a regular expression without backtracking: each part between two stars is
searched for once, after the position of the previous part. The cost is at most the length of the
name times the length of the longest part. If this part is long and the product is large, a matcher
that takes one step per byte of the name searches for the parts instead.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from .errors import ClientError

#: Maximum length of a pattern.
MAX_PATTERN: Final = 1000
#: LinearMatcher is used if the longest part exceeds the first limit and the product of the lengths
#: of name and part exceeds the second.
MAX_REGEX_PART: Final = 32
MAX_REGEX_STEPS: Final = 65_536

Matcher = Callable[[bytes], object]


def check_pattern(word: bytes) -> bytes:
    if len(word) > MAX_PATTERN:
        raise ClientError(f"ERR a pattern may have at most {MAX_PATTERN} bytes")
    return word


@lru_cache(maxsize=256)
def matcher(pattern: bytes) -> Matcher:
    """Return a function that returns a true value for matching names."""
    parts = _parts(pattern)
    head, *middle = parts
    expression = b"".join(head)
    if middle:
        tail = b"".join(middle.pop())
        between = [b"(?>.*?%b)" % b"".join(part) for part in middle if part]
        expression += b"".join(between) + b".*" + tail
    match = re.compile(expression, re.DOTALL).fullmatch
    longest = max(map(len, parts))
    if longest <= MAX_REGEX_PART:
        return match

    def choose(name: bytes) -> object:
        if len(name) * longest <= MAX_REGEX_STEPS:
            return match(name)
        return linear_matcher(pattern).matches(name)

    return choose


@lru_cache(maxsize=16)
def linear_matcher(pattern: bytes) -> "LinearMatcher":
    return LinearMatcher(_parts(pattern))


class LinearMatcher:
    """Matches a name with one step per byte, however long the parts of the pattern are."""

    def __init__(self, parts: list[list[bytes]]) -> None:
        self._first, *rest = map(_Part, parts)
        self._last = rest.pop() if rest else None
        self._middle = [part for part in rest if part.length]

    def matches(self, name: bytes) -> bool:
        first, last = self._first, self._last
        if not first.matches_at(name, 0):
            return False
        if last is None:
            return len(name) == first.length
        position, end = first.length, len(name) - last.length
        for part in self._middle:
            position = part.find(name, position, end)
            if position < 0:
                return False
        return position <= end and last.matches_at(name, end)


class _Part:
    """The characters between two stars, as one bit mask for each byte value."""

    def __init__(self, characters: list[bytes]) -> None:
        self.length = len(characters)
        self._masks = [0] * 256
        for position, expression in enumerate(characters):
            for byte in _bytes_of(expression):
                self._masks[byte] |= 1 << position

    def matches_at(self, name: bytes, position: int) -> bool:
        if position < 0 or position + self.length > len(name):
            return False
        masks = self._masks
        return all(masks[name[position + place]] >> place & 1 for place in range(self.length))

    def find(self, name: bytes, start: int, end: int) -> int:
        """Return the end of the first match after `start`, or -1. Bit n of `state` is set if the
        first n + 1 characters match the bytes read last.
        """
        masks, done, state = self._masks, 1 << (self.length - 1), 0
        for position in range(start, end):
            state = (state << 1 | 1) & masks[name[position]]
            if state & done:
                return position + 1
        return -1


@lru_cache(maxsize=512)
def _bytes_of(expression: bytes) -> list[int]:
    """Return the bytes that an expression for one character matches."""
    is_one = re.compile(expression, re.DOTALL).fullmatch
    return [byte for byte in range(256) if is_one(bytes((byte,)))]


def _parts(pattern: bytes) -> list[list[bytes]]:
    """Return the parts between the stars, with an expression for each character."""
    parts: list[list[bytes]] = [[]]
    position, end = 0, len(pattern)
    while position < end:
        character = pattern[position : position + 1]
        position += 1
        if character == b"*":
            parts.append([])
        elif character == b"?":
            parts[-1].append(b".")
        elif character == b"[":
            one, position = _parse_bracket_set(pattern, position)
            parts[-1].append(one)
        else:
            if character == b"\\" and position < end:
                character = pattern[position : position + 1]
                position += 1
            parts[-1].append(re.escape(character))
    return parts


def _parse_bracket_set(pattern: bytes, position: int) -> tuple[bytes, int]:
    """Return the expression for a bracket set, and its end. The closing bracket is optional."""
    end = len(pattern)
    negated = pattern[position : position + 1] == b"^"
    position += negated
    members: set[int] = set()
    while position < end and pattern[position] != 0x5D:
        if pattern[position] == 0x5C and position + 1 < end:
            members.add(pattern[position + 1])
            position += 2
        elif position + 2 < end and pattern[position + 1] == 0x2D:
            low, high = sorted((pattern[position], pattern[position + 2]))
            members.update(range(low, high + 1))
            position += 3
        else:
            members.add(pattern[position])
            position += 1
    if negated:
        members = set(range(256)) - members
    if not members:
        return b"(?!)", position + 1
    return b"[%b]" % b"".join(b"\\x%02x" % member for member in sorted(members)), position + 1
