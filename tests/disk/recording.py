"""Records what a process does to the files of a folder, or makes it fail (record.c does both).

The process must have been started with the library in front of the C library's own calls:

    subprocess.run([sys.executable, script], env=preloaded(os.environ))

Within it a Recorder is told what to do. A server of its own process is told by its environment
(`recording_server`), and its record is read afterwards.
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

# What happened, as record.c numbers it.
OPEN, WRITE, TRUNCATE, SYNC, UNLINK, RENAME, NOTE, FAILED = range(1, 9)
# What can be made to fail.
WRITES, SYNCS, OPENS = 1, 2, 4

_HEADER = struct.Struct("=IIQQQ")


class Operation(NamedTuple):
    """`file` is an inode; `data` what was written, the name of what was opened or removed, both
    names of a renaming with a NUL between, or a note.
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
    """Why nothing can be recorded here; empty if it can."""
    if sys.platform != "linux":
        return "LD_PRELOAD as used here needs Linux"
    if shutil.which("gcc") is None:
        return "gcc not found: install it (Debian: apt-get install gcc libc6-dev)"
    return ""


def compiled(source: Path) -> Path:
    """A library made of this source, once for each of its versions."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}-{source.stem}-{digest}.so"
    if not library.exists():
        aside = library.with_suffix(f".{os.getpid()}")
        command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-pthread"]
        subprocess.run([*command, "-o", aside, source], check=True)
        aside.rename(library)
    return library


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "LD_PRELOAD": str(compiled(SOURCE))}


def is_preloaded() -> bool:
    return str(compiled(SOURCE)) in os.environ.get("LD_PRELOAD", "")


def recording_server(folder: Path, log: Path) -> dict[str, str]:
    """What to add to a server's environment."""
    return preloaded({"DISK_RECORD_FOLDER": os.path.realpath(folder), "DISK_RECORD_LOG": str(log)})


class Recorder:
    """Speaks to the library within its own process."""

    def __init__(self) -> None:
        if not is_preloaded():
            raise RuntimeError(
                "nothing can be recorded: this process was started without preloaded()"
            )
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
        """Write down to `log`, anew, what happens to the files of `folder` that are opened now."""
        path = os.path.realpath(folder).encode()
        if error := self._library.disk_record(path, os.fsencode(log)):
            raise OSError(error, os.strerror(error), str(log))
        try:
            yield
        finally:
            self.heal()
            self._library.disk_record(b"", None)

    def note(self, text: str) -> None:
        """Write down what the process knows at this point, such as which commit has returned."""
        self._library.disk_note(text.encode())

    def fail(
        self, what: int, error: int = errno.ENOSPC, *, after: int = 0, count: int = -1
    ) -> None:
        """Of these operations the next `after` succeed, then `count` fail; -1: all until healed.

        A full disk takes the first half of a large write.
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
