"""The socket in the data folder: for whoever may read the folder, whatever ports there are."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SocketPathInUse(Exception):
    """Something that is not ours is where the socket must be."""


def socket_of(folder: Path) -> Path:
    return folder / "control"


@contextmanager
def beside(path: Path) -> Iterator[str]:
    """A name for `path` that is short enough for a socket, however deep its folder is."""
    if sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def sweep(path: Path) -> None:
    """Remove a socket that a killed process left behind. Whoever has the folder's lock may."""
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    except FileNotFoundError:
        pass


def make_room(path: Path) -> None:
    """The same for whoever makes one there: what is no socket is somebody's, and stays."""
    sweep(path)
    if os.path.lexists(path):
        raise SocketPathInUse(f"{path} is no socket of a server's: remove it, or move it elsewhere")
