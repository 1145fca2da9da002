"""The control socket in the data folder, for the user who owns the folder."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SocketPathInUse(Exception):
    """A file that is not a socket has the path of the control socket."""


def control_socket_path(folder: Path) -> Path:
    return folder / "control"


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """A short name for `path`: the address of a socket has at most 107 bytes."""
    if sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def remove_socket(path: Path) -> None:
    """Remove a socket that a killed process left behind. Requires the lock of the folder."""
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    except FileNotFoundError:
        pass


def remove_stale_socket(path: Path) -> None:
    """Remove an old socket; any other file is left alone and raises an error."""
    remove_socket(path)
    if os.path.lexists(path):
        raise SocketPathInUse(f"{path} is not a socket. Move or delete the file and start again.")
