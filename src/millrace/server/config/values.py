"""How values of the configuration are read, and written as TOML.

A raw value is what TOML gave, or the text of a variable or flag. Texts are understood in all of
them: `port = "7419"` in the file and MILLRACE_FAKTORY_PORT=7419 mean the same.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Kind(NamedTuple):
    """How a type of value is read from its raw form and written as TOML."""

    read: Callable[[Any], Any]
    write: Callable[[Any], str]
    secret: bool = False


class About(NamedTuple):
    """What a key is for, in words, and whether `millrace serve` has a flag for it."""

    text: str
    flag: bool = False


def quoted(text: str) -> str:
    """`text` as a string of JSON and of TOML."""
    # A path may hold bytes that are no UTF-8; showing it must not fail.
    return msgspec.json.encode(text.encode("utf-8", "backslashreplace").decode()).decode()


def unexpected(expected: str, got: object) -> ValueError:
    if isinstance(got, list | dict):
        shown = "a list" if isinstance(got, list) else "a table"
    elif isinstance(got, bool):
        shown = str(got).lower()
    else:
        shown = quoted(got) if isinstance(got, str) else str(got)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return ValueError(f"expected {expected}, got {shown}")


_SIZE = re.compile(r"([0-9]{1,15})\s*(?:b|([kmgt])(i?)b)?", re.IGNORECASE)


def parse_size(value: object) -> int:
    """Bytes, from a number or a text like "64MiB" (powers of 1024) or "1GB" (powers of 1000)."""
    size = -1
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        number, scale, binary = match.groups(default="")
        size = int(number) * (1024 if binary else 1000) ** ("kmgt".find(scale.lower() or "-") + 1)
    if not 0 <= size < 1 << 62:  # what a store can keep
        raise unexpected('a size such as 65536, "64MiB" or "1GB"', value)
    return size


def write_size(size: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size and size % unit == 0:
            return f'"{size // unit}{name}"'
    return str(size)


_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(ms|s|m|h|d|)")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1000}


def parse_duration(value: object) -> float:
    """Seconds, from a number or a text like "500ms", "30s", "2m", "1h" or "1d"."""
    seconds: float = -1
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _MILLISECONDS[match[2]] / 1000
    # Timers overflow somewhere above this (32 years). NaN compares false and ends here too.
    if not 0 <= seconds <= 1e9:
        raise unexpected('a duration such as 1.5 (seconds), "500ms", "30s", "2m" or "1h"', value)
    return float(seconds)


def write_duration(seconds: float) -> str:
    for unit in ("h", "m", "s", "ms"):
        amount = seconds * 1000 / _MILLISECONDS[unit]
        if amount >= 1 and amount == round(amount):
            return f'"{round(amount)}{unit}"'
    return str(seconds)


def _read_period(value: object) -> float:
    if isinstance(value, str) and value.strip().lower() == "off":
        return 0.0
    return parse_duration(value)


def _write_period(seconds: float) -> str:
    return write_duration(seconds) if seconds else '"off"'


def _whole(value: object) -> int | None:
    """`value` as a number from 0 to what any store can keep, or None."""
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,15}\s*", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        return None
    return value


def _read_port(value: object) -> int | None:
    if isinstance(value, str) and value.strip().lower() == "off":
        return None
    port = _whole(value)
    if port is None or port > 65535:
        raise unexpected('a port 0-65535 or "off"', value)
    return port


def _read_switch(value: object) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    if word is True or word in {"true", "yes", "on", "1"}:
        return True
    if word is False or word in {"false", "no", "off", "0"}:
        return False
    raise unexpected("true or false", value)


def _read_host(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w.:%-]+", value):
        raise unexpected("a host name or address to listen on", value)
    return value


def _read_path(value: object) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise unexpected("a path", value)
    return Path(value)


def _read_optional_path(value: object) -> str:
    return "" if value == "" else str(_read_path(value))


def _read_text(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise unexpected("a text", value)
    return value


def _read_secret(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a text in quotes (what stands there is not shown)")  # noqa: TRY004
    return value


ROLES = ("read", "operate", "admin")
#: What the audit log calls those who have no token.
_OTHERS = ("password", "anybody")
#: All of them are told to the web room at once.
MOST_TOKENS = 64
_TOKEN = re.compile(rf"({'|'.join(ROLES)})[ \t]+([\w.@-]{{1,64}})[ \t]+(\S{{16,512}})")


class Token(NamedTuple):
    """Who may do what over HTTP."""

    role: str
    name: str
    secret: str


def parse_tokens(text: str) -> list[Token]:
    """`read grafana 4b1d..., admin ops 77ac...`"""
    entries = [entry.strip() for entry in re.split(r"[,\n]", text)]
    found: list[Token] = []
    for number, entry in enumerate(filter(None, entries), 1):
        if (match := _TOKEN.fullmatch(entry)) is None:
            raise ValueError(
                f"token {number} is not a role ({', '.join(ROLES)}), a name and a secret of at "
                "least 16 characters (what stands there is not shown)"
            )
        token = Token(*match.groups())
        if token.name in _OTHERS:
            raise ValueError(f"token {number} is named {token.name}, as the audit log names others")
        if any(token.name == other.name for other in found):
            raise ValueError(f"token {number} is named {token.name}, as one before it is")
        if any(token.secret == other.secret for other in found):
            raise ValueError(f"token {number} ({token.name}) has the secret of one before it")
        found.append(token)
    if len(found) > MOST_TOKENS:
        raise ValueError(f"expected at most {MOST_TOKENS} tokens, not {len(found)}")
    return found


def _read_tokens(value: object) -> str:
    text = "\n".join(map(_read_secret, value)) if isinstance(value, list) else _read_secret(value)
    if not text.startswith("/"):  # the path of a file
        parse_tokens(text)
    return text


def count_from(least: int) -> Kind:
    def read(value: object) -> int:
        number = _whole(value)
        if number is None or number < least:
            raise unexpected(f"a whole number of at least {least}", value)
        return number

    return Kind(read, str)


def size_from(least: int) -> Kind:
    def read(value: object) -> int:
        size = parse_size(value)
        if size < least:
            raise unexpected(f"a size of at least {write_size(least)}", value)
        return size

    return Kind(read, write_size)


def duration_from(least: float) -> Kind:
    def read(value: object) -> float:
        seconds = parse_duration(value)
        if seconds < least:
            raise unexpected(f"a duration of at least {write_duration(least)}", value)
        return seconds

    return Kind(read, write_duration)


def choice(literal: Any) -> Kind:
    words = get_args(literal)

    def read(value: object) -> str:
        word = value.strip().lower() if isinstance(value, str) else None
        if word not in words:
            raise unexpected("one of " + ", ".join(map(quoted, words)), value)
        return str(word)

    return Kind(read, quoted)


Port = Annotated[
    int | None, Kind(_read_port, lambda port: quoted("off") if port is None else str(port))
]
Switch = Annotated[bool, Kind(_read_switch, lambda on: str(on).lower())]
Host = Annotated[str, Kind(_read_host, quoted)]
Folder = Annotated[Path, Kind(_read_path, lambda path: quoted(str(path)))]
OptionalPath = Annotated[str, Kind(_read_optional_path, quoted)]
Text = Annotated[str, Kind(_read_text, quoted)]
Duration = Annotated[float, Kind(parse_duration, write_duration)]
#: How often; 0 is never.
Period = Annotated[float, Kind(_read_period, _write_period)]
Password = Annotated[str, Kind(_read_secret, quoted, secret=True)]
Tokens = Annotated[str, Kind(_read_tokens, quoted, secret=True)]
Durability = Literal["fsync", "os", "memory"]
LogLevel = Literal["debug", "info", "warning", "error"]
Dialect = Literal["spec", "original"]
