"""The arguments of a command line: their syntax, their ranges, and their errors."""

import re
from sys import intern
from typing import Final
from urllib.parse import quote

from millrace.protocols.errors import ClientError
from millrace.protocols.times import format_rfc3339, parse_rfc3339

INVALID_ARGS: Final = "Invalid command args"
INVALID_FLAGS: Final = "Invalid command flags"
INVALID_PAYLOAD_SIZE: Final = "Invalid payload size"
INVALID_RESULT_SIZE: Final = "Invalid result size"
UNKNOWN_COMMAND: Final = "Unknown command"
DUPLICATE_JOB: Final = "Duplicate job"
DUPLICATE_RESULT: Final = "Duplicate result"

#: TTR, TTL and wait timeout are in milliseconds.
MAX_TTR: Final = 86_400_000
MAX_TTL: Final = (1 << 64) - 1
MAX_WAIT: Final = 86_400_000
MAX_LIMIT: Final = 100

_ID: Final = re.compile(rb"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_NAME: Final = re.compile(rb"[a-zA-Z0-9_.-]{1,255}")
#: Names that were checked before.
_valid_names: dict[bytes, str] = {}

Flags = dict[bytes, bytes]


def split_flags(words: list[bytes]) -> tuple[list[bytes], Flags, bool]:
    """Separate flags from arguments, and report whether the flags are well-formed. A word without
    `=`, such as `-x`, is an argument.
    """
    arguments: list[bytes] = []
    flags: Flags = {}
    well_formed = True
    for word in words:
        if word[:1] != b"-" or b"=" not in word:
            arguments.append(word)
            continue
        key, value = word[1:].split(b"=", 2)[:2]  # a second `=` and anything after it are ignored
        well_formed = well_formed and bool(key and value) and key not in flags
        flags[key] = value
    return arguments, flags, well_formed


# Numbers: decimal digits with optional leading zeros; parse_signed also accepts a sign


def parse_unsigned(word: bytes, maximum: int, error: str) -> int:
    if word.isdigit():
        if len(word) > 20:
            word = word.lstrip(b"0") or b"0"
        if len(word) <= 20 and (number := int(word)) <= maximum:
            return number
    raise ClientError(error)


def parse_signed(word: bytes) -> int | None:
    """A number of up to 18 digits with an optional sign, or None."""
    digits = word[1:] if word[:1] in {b"+", b"-"} else word
    if not digits.isdigit():
        return None
    if len(digits) > 18:
        digits = digits.lstrip(b"0") or b"0"
        if len(digits) > 18:
            return None
    return -int(digits) if word[:1] == b"-" else int(digits)


# Fields


def parse_job_id(word: bytes) -> str:
    """A UUID of any version as 8-4-4-4-12 hex digits, in lower case."""
    if len(word) != 36 or _ID.fullmatch(word) is None:
        raise ClientError("Invalid ID")
    return word.decode().lower()


def is_job_id(jid: str) -> bool:
    """Whether a Workq client can send this jid unchanged."""
    return (
        len(jid) == 36
        and jid.isascii()
        and _ID.fullmatch(jid.encode()) is not None
        and jid == jid.lower()
    )


def parse_name(word: bytes) -> str:
    known = _valid_names.get(word)
    if known is not None:
        return known
    if _NAME.fullmatch(word) is None:
        raise ClientError("Invalid Name")
    known = intern(word.decode())
    if len(_valid_names) < 10_000:
        _valid_names[word] = known
    return known


def write_name(name: str) -> bytes:
    """Return a queue name for a line. Characters that only other protocols allow are
    percent-encoded, such as `%0D`.
    """
    word = name.encode()
    return word if _NAME.fullmatch(word) else quote(name, safe="").encode()


def parse_ttr(word: bytes) -> int:
    """Milliseconds; `check_ttr` checks the range."""
    return parse_unsigned(word, MAX_TTL, "Invalid TTR")


def check_ttr(milliseconds: int) -> None:
    if not 1 <= milliseconds <= MAX_TTR:
        raise ClientError("Invalid TTR")


def parse_ttl(word: bytes) -> int:
    return parse_unsigned(word, MAX_TTL, "Invalid TTL")


def check_ttl(milliseconds: int) -> None:
    if milliseconds < 1:
        raise ClientError("Invalid TTL")


def parse_time(word: bytes) -> int:
    """`2020-02-02T00:00:00Z`, optionally with a fraction: microseconds since 1970."""
    if word.isascii() and word.endswith(b"Z"):
        try:
            return parse_rfc3339(word.decode())
        except ValueError:
            pass
    raise ClientError("Invalid Time")


def format_second(microseconds: int) -> bytes:
    """Format a time without fractions of a second: `2016-08-22T01:50:51Z`."""
    return format_rfc3339(microseconds // 1_000_000 * 1_000_000).encode()


def parse_wait_timeout(word: bytes) -> int:
    return parse_unsigned(word, MAX_WAIT, "Invalid wait timeout")


def parse_cursor_offset(word: bytes) -> int:
    return parse_unsigned(word, (1 << 32) - 1, "Invalid cursor offset")


def parse_limit(word: bytes) -> int:
    number = parse_unsigned(word, MAX_LIMIT, "Invalid limit")
    if not number:
        raise ClientError("Invalid limit")
    return number


# Flags


def parse_priority(flags: Flags, maximum: int) -> int:
    """From -2^31 to `maximum`; higher is sooner."""
    word = flags.get(b"priority")
    if word is None:
        return 0
    number = parse_signed(word)
    if number is None or not -(1 << 31) <= number <= maximum:
        raise ClientError("Invalid Priority")
    return number


def parse_max_attempts(flags: Flags) -> int:
    return parse_unsigned(flags.get(b"max-attempts", b"0"), 255, "Invalid Max Attempts")


def parse_max_fails(flags: Flags) -> int:
    return parse_unsigned(flags.get(b"max-fails", b"0"), 255, "Invalid Max Fails")
