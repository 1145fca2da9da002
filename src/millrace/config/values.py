"""Value types of the configuration: how a value is read, and how it is written as TOML.

A raw value is a TOML value, or the text of a variable or flag. A string is valid in every source:
`port = "7419"` in the file equals MILLRACE_FAKTORY_PORT=7419.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
#: An empty server uses about half of this.
MIN_MEMORY = 128 * MIB


class ValueType(NamedTuple):
    """Reads a value from its raw form and writes it as TOML."""

    read: Callable[[Any], Any]
    write: Callable[[Any], str]
    secret: bool = False


def quoted(text: str) -> str:
    """`text` as a JSON string, which is also a TOML string."""
    # A path can contain bytes that are not UTF-8.
    return msgspec.json.encode(text.encode("utf-8", "backslashreplace").decode()).decode()


def invalid_value(expected: str, got: object) -> ValueError:
    if isinstance(got, list | dict):
        text = "a list" if isinstance(got, list) else "a table"
    elif isinstance(got, bool):
        text = str(got).lower()
    else:
        text = quoted(got) if isinstance(got, str) else str(got)
    if len(text) > 80:
        text = text[:77] + "..."
    return ValueError(f"expected {expected}, got {text}")


_SIZE = re.compile(r"([0-9]{1,15})\s*(?:b|([kmgt])(i?)b)?", re.IGNORECASE)


def parse_size(value: object) -> int:
    """Bytes, from a number or a string: "64MiB" (powers of 1024), "1GB" (powers of 1000)."""
    size = -1
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        number, scale, binary = match.groups(default="")
        size = int(number) * (1024 if binary else 1000) ** ("kmgt".find(scale.lower() or "-") + 1)
    if not 0 <= size < 1 << 62:  # the limit of the store
        raise invalid_value('a size such as 65536, "64MiB" or "1GB"', value)
    return size


def toml_size(size: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size and size % unit == 0:
            return f'"{size // unit}{name}"'
    return str(size)


_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(ms|s|m|h|d|)")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1000}


def parse_duration(value: object) -> float:
    """Seconds, from a number or a string such as "500ms", "30s", "2m", "1h" or "1d"."""
    seconds: float = -1
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _MILLISECONDS[match[2]] / 1000
    # Timers overflow above about 32 years. NaN compares false and is refused too.
    if not 0 <= seconds <= 1e9:
        raise invalid_value('a duration such as 1.5 (seconds), "500ms", "30s", "2m" or "1h"', value)
    return float(seconds)


def toml_duration(seconds: float) -> str:
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
    return toml_duration(seconds) if seconds else '"off"'


def _read_memory(value: object) -> int:
    if isinstance(value, str) and value.strip().lower() == "auto":
        return 0
    size = parse_size(value)
    if size < MIN_MEMORY:
        raise invalid_value(f'"auto" or a size of at least {toml_size(MIN_MEMORY)}', value)
    return size


def _write_memory(size: int) -> str:
    return toml_size(size) if size else '"auto"'


def _read_mode(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"0?[0-7]{3}", value.strip()):
        return int(value, 8)
    raise invalid_value('permissions in quotes such as "0660"', value)


def _whole(value: object) -> int | None:
    """`value` as an integer from 0 to 2^53 - 1, or None."""
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
        raise invalid_value('a port 0-65535 or "off"', value)
    return port


def _read_switch(value: object) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    if word is True or word in {"true", "yes", "on", "1"}:
        return True
    if word is False or word in {"false", "no", "off", "0"}:
        return False
    raise invalid_value("true or false", value)


def _read_host(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w.:%-]+", value):
        raise invalid_value("a host name or address to listen on", value)
    return value


def _read_path(value: object) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise invalid_value("a path", value)
    return Path(value)


def _read_optional_path(value: object) -> str:
    return "" if value == "" else str(_read_path(value))


def _read_location(value: object) -> str:
    """A path or a URI; as a path, a URI would lose a slash."""
    path = _read_optional_path(value)
    return value if isinstance(value, str) and "://" in value else path


def _read_text(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise invalid_value("printable text", value)
    return value


def _read_secret(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a quoted string (the value is not shown)")  # noqa: TRY004
    return value


def _read_patterns(value: object) -> tuple[str, ...]:
    """Glob patterns: a list, or a string that contains a JSON list or words."""
    words = value
    if isinstance(value, str):
        try:
            words = msgspec.json.decode(value, type=list[str])
        except msgspec.MsgspecError:
            words = value.split()
    if not isinstance(words, list | tuple) or not all(
        isinstance(word, str) and word and word.isprintable() for word in words
    ):
        raise invalid_value('a list of queue names such as ["mail", "signup*"]', value)
    return tuple(words)


def _write_patterns(patterns: tuple[str, ...]) -> str:
    return f"[{', '.join(map(quoted, patterns))}]"


ROLES = ("read", "operate", "admin")
#: Names that the audit log uses for requests without a token.
_RESERVED_NAMES = ("password", "anybody")
MAX_TOKENS = 64
_TOKEN = re.compile(rf"({'|'.join(ROLES)})[ \t]+([\w.@-]{{1,64}})[ \t]+(\S{{16,512}})")


class Token(NamedTuple):
    """One access token of the HTTP API."""

    role: Literal["read", "operate", "admin"]
    name: str
    secret: str


def parse_tokens(text: str) -> list[Token]:
    """Parse tokens such as `read grafana 4b1d..., admin ops 77ac...`."""
    entries = [entry.strip() for entry in re.split(r"[,\n]", text)]
    found: list[Token] = []
    for number, entry in enumerate(filter(None, entries), 1):
        if (match := _TOKEN.fullmatch(entry)) is None:
            raise ValueError(
                f"token {number}: expected a role ({', '.join(ROLES)}), a name and a secret of at "
                "least 16 characters (the value is not shown)"
            )
        token = Token(*match.groups())  # type: ignore[arg-type]
        if token.name in _RESERVED_NAMES:
            raise ValueError(f"token {number}: the name {token.name} is reserved")
        if any(token.name == other.name for other in found):
            raise ValueError(f"token {number}: the name {token.name} is used twice")
        if any(token.secret == other.secret for other in found):
            raise ValueError(f"token {number} ({token.name}): the secret is used twice")
        found.append(token)
    if len(found) > MAX_TOKENS:
        raise ValueError(f"expected at most {MAX_TOKENS} tokens, not {len(found)}")
    return found


def _read_tokens(value: object) -> str:
    text = "\n".join(map(_read_secret, value)) if isinstance(value, list) else _read_secret(value)
    if not text.startswith("/"):  # otherwise the path of a file
        parse_tokens(text)
    return text


def _at_least(
    minimum: float, name: str, read: Callable[[Any], Any], write: Callable[[Any], str]
) -> ValueType:
    def checked(value: object) -> Any:
        found = read(value)
        if found is None or found < minimum:
            raise invalid_value(f"a {name} of at least {write(minimum)}", value)
        return found

    return ValueType(checked, write)


def min_count(minimum: int) -> ValueType:
    return _at_least(minimum, "whole number", _whole, str)


def min_size(minimum: int) -> ValueType:
    return _at_least(minimum, "size", parse_size, toml_size)


def min_duration(minimum: float) -> ValueType:
    return _at_least(minimum, "duration", parse_duration, toml_duration)


def choice(literal: Any) -> ValueType:
    words = get_args(literal)

    def read(value: object) -> str:
        word = value.strip().lower() if isinstance(value, str) else None
        if word not in words:
            raise invalid_value("one of " + ", ".join(map(quoted, words)), value)
        return str(word)

    return ValueType(read, quoted)


Port = Annotated[
    int | None, ValueType(_read_port, lambda port: quoted("off") if port is None else str(port))
]
Switch = Annotated[bool, ValueType(_read_switch, lambda on: str(on).lower())]
Host = Annotated[str, ValueType(_read_host, quoted)]
Folder = Annotated[Path, ValueType(_read_path, lambda path: quoted(str(path)))]
OptionalPath = Annotated[str, ValueType(_read_optional_path, quoted)]
Location = Annotated[str, ValueType(_read_location, quoted)]
FileMode = Annotated[int, ValueType(_read_mode, lambda mode: f'"{mode:04o}"')]
Text = Annotated[str, ValueType(_read_text, quoted)]
Patterns = Annotated[tuple[str, ...], ValueType(_read_patterns, _write_patterns)]
Duration = Annotated[float, ValueType(parse_duration, toml_duration)]
#: An interval; 0 means never.
Period = Annotated[float, ValueType(_read_period, _write_period)]
#: A limit on memory; 0 means automatic.
MemorySize = Annotated[int, ValueType(_read_memory, _write_memory)]
Password = Annotated[str, ValueType(_read_secret, quoted, secret=True)]
Tokens = Annotated[str, ValueType(_read_tokens, quoted, secret=True)]
Durability = Literal["fsync", "os", "memory"]
LogLevel = Literal["debug", "info", "warning", "error"]
Dialect = Literal["spec", "original"]
