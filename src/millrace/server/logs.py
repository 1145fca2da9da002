"""The log: text on a terminal, JSON lines otherwise.

Structured fields are passed as `log.info("text", extra={"fields": {"queue": "default"}})`.
"""

import logging
import os
import sys
import time
from typing import Any, TextIO

import msgspec

COLOURS = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[1;31m"}
DIM, RESET = "\x1b[2m", "\x1b[0m"


_always_json = False


def use_json(*, always: bool) -> None:
    """Write JSON to terminals too."""
    global _always_json
    _always_json = always


def is_console(stream: TextIO) -> bool:
    """Whether people read the stream: it is a terminal, and `serve --json` was not given."""
    return stream.isatty() and not _always_json


def setup(level: str, stream: TextIO | None = None) -> None:
    """Write records of at least `level` to `stream` (stderr). Replaces a previous setup."""
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    if is_console(stream):
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        handler.setFormatter(ConsoleFormatter(colours=not plain))
    else:
        handler.setFormatter(JsonFormatter())
    logging.getLogger().handlers[:] = [handler]
    set_level(level)


def set_level(level: str) -> None:
    logging.getLogger().setLevel(level.upper())


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return dict(getattr(record, "fields", None) or {})


def _level(record: logging.LogRecord) -> str:
    """Map the level of a record, which a library may define, to one of the four levels of the
    log.
    """
    if record.levelno >= logging.ERROR:
        return "error"
    if record.levelno >= logging.WARNING:
        return "warning"
    return "info" if record.levelno >= logging.INFO else "debug"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (RFC 3339, UTC, milliseconds), level, message, the fields."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": _level(record),
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        # Fields come last and do not replace the standard keys.
        line = entry | _fields(record) | entry
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except (TypeError, ValueError, RecursionError):
            # Text that is not UTF-8, or a value without a JSON form.
            readable = {_utf8(str(key)): _utf8(str(value)) for key, value in line.items()}
            return msgspec.json.encode(readable).decode()


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class ConsoleFormatter(logging.Formatter):
    """`12:01:02 info    message key=value`, in local time."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        level = _level(record)
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{self._in(DIM, clock)} {self._in(COLOURS[level], f'{level:<7}')} "
        line += _printable(record.getMessage())
        for key, value in _fields(record).items():
            line += f" {self._in(DIM, f'{key}=')}{_word(value)}"
        if record.exc_info:
            for row in self.formatException(record.exc_info).splitlines():
                line += "\n    " + _printable(row)
        return line

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{RESET}" if self._colours else text


def _printable(text: str) -> str:
    """Escape control characters, with which a client could write to the operator's terminal."""
    return text if text.isprintable() else repr(text)[1:-1]


def _word(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text and " " not in text else repr(text)
