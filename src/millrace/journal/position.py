"""The last shipped event of a server, found without the library that writes the lake.

The server process reads this number at start and must not load that library. The newest entries of
the log nearly always contain the number; otherwise it is in a checkpoint, and the library reads it.
"""

from pathlib import Path
from typing import Final

from .location import EVENTS, LOG, LakeLocation, is_remote, log_actions, log_entries
from .old_lake import last_landed

#: The number of entries to read before the library is used.
MAX_ENTRIES: Final = 200


def last_shipped(lake: LakeLocation, server: str) -> int:
    """Return the last event of a server in the lake; 0 if there is none."""
    if is_remote(lake):
        return _opened(lake, server)
    assert isinstance(lake, Path)
    return max(_last_committed(lake, server), last_landed(lake, server))


def _last_committed(lake: Path, server: str) -> int:
    folder = lake / EVENTS / LOG
    if not folder.is_dir():
        return 0
    names = log_entries(folder)
    for name in reversed(names[-MAX_ENTRIES:]):
        try:
            content = (folder / name).read_bytes()
        except FileNotFoundError:
            break  # maintenance has removed old entries
        found = _transaction(content, server)
        if found is not None:
            return found
    if len(names) <= MAX_ENTRIES and names and int(names[0].split(".")[0]) == 0:
        return 0  # all entries of the log were read
    return _opened(lake, server)


def _opened(lake: LakeLocation, server: str) -> int:
    from .events_table import EventsTable  # noqa: PLC0415 - loads deltalake

    return EventsTable(lake).position(server)


def _transaction(content: bytes, server: str) -> int | None:
    """The position that an entry sets; None for other entries and for an incomplete one."""
    if server.encode() not in content:
        return None
    try:
        actions = log_actions(content)
    except ValueError:
        return None
    for action in actions:
        transaction = action.get("txn", {})
        if transaction.get("appId") == server:
            return int(transaction["version"])
    return None
