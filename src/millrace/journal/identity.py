"""Which server's events these are: an id that a data folder gets once.

Numbers of jobs and events begin at 1 in each folder, and a lake may have events of many. The id is
in the file `journal-id`, which a backup leaves out: a copy goes on by itself, so it is another one.
"""

import secrets
from pathlib import Path
from typing import Final

from millrace.lasting import write_whole
from millrace.store.errors import StoreError

NAME: Final = "journal-id"
_DIGITS: Final = frozenset("0123456789abcdef")


def identity(folder: Path) -> str:
    """The folder's id, made if it has none."""
    return known_identity(folder) or new_identity(folder)


def known_identity(folder: Path) -> str:
    """The same; empty if it has none yet."""
    path = folder / NAME
    try:
        known = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        known = ""
    if not known or not _DIGITS.issuperset(known):
        raise StoreError(
            f"{path} is damaged: it must hold a number in hexadecimal digits. Remove it, and what "
            "follows is told to be of another server"
        )
    return known


def new_identity(folder: Path) -> str:
    """Another id than any that there was."""
    made = secrets.token_hex(8)
    write_whole(folder / NAME, f"{made}\n".encode())
    return made
