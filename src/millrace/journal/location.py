"""The location of a lake: a folder, or the URI of an object store such as `s3://bucket/lake`.

This module also reads the log of a table without the library that writes it.
"""

import json
import re
from pathlib import Path
from typing import Any, Final, TypeGuard

#: A folder is a Path, the URI of an object store is text.
LakeLocation = Path | str

#: The table of the events, and the folder of a table's log with its entries.
EVENTS: Final = "events"
LOG: Final = "_delta_log"
_ENTRY: Final = re.compile(r"\d{20}\.json")
_REMOTE: Final = re.compile(r"[a-z][a-z0-9+.-]*://")
#: `deltalake` cannot open such paths.
_UNSUPPORTED: Final = re.compile(r"[\[\]\\]|%[0-9A-Fa-f]{2}")


def parse_location(text: str) -> LakeLocation:
    """The location that a setting or an argument names."""
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    return text.rstrip("/") if _REMOTE.match(text) else Path(text)


def is_remote(lake: LakeLocation) -> TypeGuard[str]:
    return isinstance(lake, str)


def check_location(lake: LakeLocation) -> None:
    """Raise OSError if the tables of the lake cannot be opened there."""
    found = _UNSUPPORTED.search(str(lake.absolute() if isinstance(lake, Path) else lake))
    if found:
        raise OSError(f"The path of the lake must not contain {found[0]}: {lake}")


def log_actions(content: bytes) -> list[dict[str, Any]]:
    """The actions of a log entry. Raises ValueError if the entry is incomplete."""
    return [json.loads(line) for line in content.splitlines() if line.strip()]


def log_entries(log: Path) -> list[str]:
    """The names of a log's entries, the newest last."""
    return sorted(path.name for path in log.iterdir() if _ENTRY.fullmatch(path.name))
