"""The configuration file: its tables, and the line on which each of its keys stands."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class UnreadableFileError(Exception):
    """The file is not there, may not be read, or is no TOML."""


class Document(NamedTuple):
    """A parsed file: its tables, and the line on which each table and key begins."""

    path: Path
    tables: dict[str, Any]
    lines: dict[tuple[str, ...], int]

    def source(self, *keys: str) -> str:
        """Where a key stands, as `millrace.toml:7`."""
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
        # Nested beyond Python's stack, or a number of thousands of digits.
        raise UnreadableFileError(f"{path}: not valid TOML: {error}") from error


def _syntax_error(message: str, text: str) -> tuple[str, int]:
    """The parser says where in words: "(at line 3, column 7)" or "(at end of document)"."""
    what, _, where = message.rpartition(" (at ")
    if numbers := re.fullmatch(r"line (\d+), column (\d+)\)", where):
        return f"{what} (column {numbers[2]})", int(numbers[1])
    return f"{what} (at the end of the file)", text.rstrip("\n").count("\n") + 1


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The line on which each table and key of a valid TOML text begins.

    The parser does not tell, so the text is parsed once more, statement by statement. A statement
    ends with the first line up to which it parses: line breaks inside of one stand in multi-line
    strings and lists only, and neither parses while it is open.
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
    """Every key inside of `value`, the outer before the inner; `[[x]]` counts as `[x]`."""
    if path:
        yield path
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _paths(inner, (*path, name))
