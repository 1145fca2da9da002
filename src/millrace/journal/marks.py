"""The last shipped event of each server, according to the names of the files and to a mark.

The mark `landing/_shipped-SERVER.json` is needed if files were moved away. The shipper writes it
after the file, so it is never ahead of the shipped events.
"""

from pathlib import Path

import msgspec

from millrace.lasting import write_whole

from .landing import FOLDER, landed


class Mark(msgspec.Struct):
    """All events of a server up to `last` are shipped."""

    server: str
    last: int


def last_shipped(lake: Path, server: str) -> int:
    """Return the last event of a server in the lake; 0 if there is none."""
    files = [each.last for each in landed(lake) if each.server == server]
    return max([_read_mark(lake, server), *files])


def write_mark(lake: Path, server: str, last: int) -> None:
    write_whole(_path(lake, server), msgspec.json.encode(Mark(server, last)))


def _read_mark(lake: Path, server: str) -> int:
    try:
        return msgspec.json.decode(_path(lake, server).read_bytes(), type=Mark).last
    except (FileNotFoundError, msgspec.DecodeError):
        return 0  # the names of the files contain the same number


def _path(lake: Path, server: str) -> Path:
    return lake / FOLDER / f"_shipped-{server}.json"
