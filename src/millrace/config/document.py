"""The configuration file: its tables and the line number of each key."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class UnreadableFileError(Exception):
    """The file does not exist, cannot be read, or is not TOML."""


class Document(NamedTuple):
    """A parsed file: its tables, and the first line of each table and key."""

    path: Path
    tables: dict[str, Any]
    lines: dict[tuple[str, ...], int]

    def source(self, *keys: str) -> str:
        """The position of a key, for example `millrace.toml:7`."""
        return f"{self.path}:{self.lines[keys]}"


def read_document(path: Path) -> Document:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UnreadableFileError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UnreadableFileError(f"{path}:{line}: not valid TOML: not UTF-8 text") from error
    try:
        return Document(path, tomllib.loads(text), _lines(text))
    except tomllib.TOMLDecodeError as error:
        what, line = _syntax_error(str(error), text)
        raise UnreadableFileError(f"{path}:{line}: not valid TOML: {what}") from error
    except (RecursionError, ValueError) as error:
        # Nested too deeply, or a number with thousands of digits.
        raise UnreadableFileError(f"{path}: not valid TOML: {error}") from error


def _syntax_error(message: str, text: str) -> tuple[str, int]:
    """Split the position, "(at line 3, column 7)" or "(at end of document)", from the message."""
    what, _, where = message.rpartition(" (at ")
    if numbers := re.fullmatch(r"line (\d+), column (\d+)\)", where):
        return f"{what} (column {numbers[2]})", int(numbers[1])
    return f"{what} (at the end of the file)", text.rstrip("\n").count("\n") + 1


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The first line of each table and key of a valid TOML text.

    The parser reports no positions, so this parses the text again, statement by statement. A
    statement ends with the first line at which it parses: only multi-line strings and lists
    contain line breaks, and neither parses while it is open.
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    statement, begin = "", 1
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        statement += line + "\n"
        try:
            paths = list(_paths(tomllib.loads(statement)))
        except tomllib.TOMLDecodeError:
            continue
        is_header = statement.lstrip().startswith("[")
        prefix = () if is_header else table
        for path in paths:
            lines.setdefault(prefix + path, begin)
        if is_header:
            table = paths[-1]
        statement, begin = "", number + 1
    return lines


def _paths(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key inside `value`, outer keys first; `[[x]]` counts as `[x]`."""
    if path:
        yield path
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _paths(inner, (*path, name))
