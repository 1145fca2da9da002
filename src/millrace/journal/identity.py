"""The identity of a server: an id that is assigned to a data folder once.

Numbers of jobs and events start at 1 in each folder, and a lake may contain events of several
servers. The file `journal-id` contains the id. A backup does not include this file: a copy
continues independently, so it is another server.

A data folder that was restored from an older copy assigns numbers again that the lake has already.
Events with such a number would be taken for shipped, and lost. So the folder gets a new id.
"""

import logging
import secrets
from pathlib import Path
from typing import Final

from millrace.durable_files import write_whole
from millrace.store.errors import StoreError

from .location import LakeLocation
from .position import last_shipped

log = logging.getLogger(__name__)

NAME: Final = "journal-id"
_DIGITS: Final = frozenset("0123456789abcdef")


def identity(folder: Path) -> str:
    """Return the id of the folder. Create it if there is none."""
    return known_identity(folder) or new_identity(folder)


def known_identity(folder: Path) -> str:
    """Return the id of the folder; empty if there is none yet."""
    path = folder / NAME
    try:
        known = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        known = ""
    if not known or not _DIGITS.issuperset(known):
        raise StoreError(
            f"{path} is damaged: it must contain hexadecimal digits. If you remove it, the folder "
            "continues as another server"
        )
    return known


def new_identity(folder: Path) -> str:
    """Create a new random id, which replaces an existing one."""
    new = secrets.token_hex(8)
    write_whole(folder / NAME, f"{new}\n".encode())
    return new


def check_restored_copy(folder: Path, lake: LakeLocation, next_event: int) -> None:
    """Assign a new id if the lake has the event `next_event`, which the store is about to write."""
    server = known_identity(folder)
    if not server:
        return
    try:
        last = last_shipped(lake, server)
    except Exception as error:  # an object store raises no narrower class
        log.warning(
            "Cannot compare the lake %s with the data folder: %s. If the folder was restored from "
            "a backup, delete %s/journal-id before the next start.",
            lake, error, folder,
        )  # fmt: skip
        return
    if last >= next_event:
        replace_identity(folder, server, last, next_event)


def replace_identity(folder: Path, server: str, last: int, next_event: int) -> str:
    """Assign a new id to a restored copy. The lake has the events of the old id up to `last`."""
    new = new_identity(folder)
    log.warning(
        "The lake has events of server %s up to %d, but the data folder ends at %d: it was "
        "restored from an older copy. It continues as server %s.",
        server, last, next_event - 1, new,
    )  # fmt: skip
    return new
