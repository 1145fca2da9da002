"""Records the file operations of a process in a folder, or makes them fail (record.c does both).

The process must be started with the library preloaded before the C library:

    subprocess.run([sys.executable, script], env=preloaded(os.environ))

Within the process a Recorder controls the library. A separate server process is controlled by its
environment (`recording_server`), and its record is read afterwards.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("record.c")

# The kinds of operations, as numbered in record.c.
OPEN, WRITE, TRUNCATE, SYNC, UNLINK, RENAME, NOTE, FAILED = range(1, 9)
# The operations that can fail.
#: REPORTS: the data is written, but an error is returned.
WRITES, SYNCS, OPENS, REPORTS = 1, 2, 4, 8

_HEADER = struct.Struct("=IIQQQ")


class Operation(NamedTuple):
    """`file` is an inode. `data` is the written data, the name of the opened or removed file, both
    names of a rename separated by NUL, or a note.
    """

    kind: int
    flag: int
    file: int
    offset: int
    data: bytes

    @property
    def name(self) -> str:
        return self.data.decode()


def missing() -> str:
    """The reason why recording is not possible here; empty if it is."""
    if sys.platform != "linux":
        return "LD_PRELOAD as used here needs Linux"
    if shutil.which("gcc") is None:
        return "gcc not found: install it (Debian: apt-get install gcc libc6-dev)"
    return ""


def compiled(source: Path, *options: str) -> Path:
    """A library compiled from this source, once per version of the source and options of gcc."""
    digest = hashlib.sha256(source.read_bytes() + " ".join(options).encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}-{source.stem}-{digest}.so"
    if not library.exists():
        aside = library.with_suffix(f".{os.getpid()}")
        command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-pthread"]
        subprocess.run([*command, *options, "-o", aside, source], check=True)
        aside.rename(library)
    return library


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "LD_PRELOAD": str(compiled(SOURCE))}


def is_preloaded() -> bool:
    return str(compiled(SOURCE)) in os.environ.get("LD_PRELOAD", "")


def recording_server(folder: Path, log: Path) -> dict[str, str]:
    """Variables for the environment of a server."""
    return preloaded({"DISK_RECORD_FOLDER": os.path.realpath(folder), "DISK_RECORD_LOG": str(log)})


class Recorder:
    """Controls the library within its own process."""

    def __init__(self) -> None:
        if not is_preloaded():
            raise RuntimeError("cannot record: this process was started without preloaded()")
        self._library = ctypes.CDLL(str(compiled(SOURCE)))
        self._library.disk_note.restype = None
        self._library.disk_fail.restype = None
        self._library.disk_fail.argtypes = [
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
            ctypes.c_long,
        ]

    @contextlib.contextmanager
    def record(self, folder: Path, log: Path) -> Iterator[None]:
        """Record to a new `log` the operations on files of `folder` that are opened from now on."""
        path = os.path.realpath(folder).encode()
        if error := self._library.disk_record(path, os.fsencode(log)):
            raise OSError(error, os.strerror(error), str(log))
        try:
            yield
        finally:
            self.heal()
            self._library.disk_record(b"", None)

    def note(self, text: str) -> None:
        """Add a note to the record, for example the number of the last finished commit."""
        self._library.disk_note(text.encode())

    def fail(
        self, what: int, error: int = errno.ENOSPC, *, after: int = 0, count: int = -1
    ) -> None:
        """The next `after` of these operations succeed, then `count` fail; -1: all until `heal`.

        A full disk accepts the first half of a large write.
        """
        self._library.disk_fail(what, error, after, count)

    def heal(self) -> None:
        self._library.disk_fail(0, 0, 0, 0)


def read_record(log: Path) -> list[Operation]:
    """All operations. The last one may be missing if the process was killed."""
    return list(_operations(log.read_bytes()))


def _operations(record: bytes) -> Iterable[Operation]:
    at = 0
    while at + _HEADER.size <= len(record):
        kind, flag, file, offset, length = _HEADER.unpack_from(record, at)
        at += _HEADER.size
        if at + length > len(record):
            return
        yield Operation(kind, flag, file, offset, record[at : at + length])
        at += length
