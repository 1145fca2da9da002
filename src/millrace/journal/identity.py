"""The identity of a server: an id that is assigned to a data folder once.

Numbers of jobs and events start at 1 in each folder, and a lake may contain events of several
servers. The file `journal-id` contains the id. A backup does not include this file: a copy
continues independently, so it is another server.
"""

import secrets
from pathlib import Path
from typing import Final

from millrace.durable_files import write_whole
from millrace.store.errors import StoreError

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
    made = secrets.token_hex(8)
    write_whole(folder / NAME, f"{made}\n".encode())
    return made
