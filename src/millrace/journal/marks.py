"""How far each server's events are in the lake: told by the names of the files, and by a mark.

The mark `landing/_shipped-SERVER.json` is for when files were moved away. It is written after the
file that it tells of, so it never tells more than was shipped.
"""

from pathlib import Path

import msgspec

from millrace.lasting import write_whole

from .landing import FOLDER, landed


class Mark(msgspec.Struct):
    """All events of a server to the `last` are shipped."""

    server: str
    last: int


def last_shipped(lake: Path, server: str) -> int:
    """The last event of a server that is in the lake; 0 if none is."""
    files = [each.last for each in landed(lake) if each.server == server]
    return max([_read_mark(lake, server), *files])


def write_mark(lake: Path, server: str, last: int) -> None:
    write_whole(_path(lake, server), msgspec.json.encode(Mark(server, last)))


def _read_mark(lake: Path, server: str) -> int:
    try:
        return msgspec.json.decode(_path(lake, server).read_bytes(), type=Mark).last
    except (FileNotFoundError, msgspec.DecodeError):
        return 0  # the files tell the same


def _path(lake: Path, server: str) -> Path:
    return lake / FOLDER / f"_shipped-{server}.json"
