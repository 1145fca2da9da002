"""The possible contents of files after a crash, given the operations on them (recording.py) so far.

The disk of this model keeps synced data. Of the writes to a file after its last sync it keeps any
part, in any order, down to single sectors. Of the names that were created, changed or removed since
the last sync of their folder it keeps the first ones.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random

from disk.recording import OPEN, RENAME, SYNC, TRUNCATE, UNLINK, WRITE, Operation

SECTOR = 512
#: 16 MiB of zeros. The store allocates it again, so no folder needs it.
RESERVE = "reserve"

#: The files of a folder, by name.
Files = dict[str, bytes]
Names = dict[str, "File"]


class File:
    """Its content, its synced content, and the operations since."""

    __slots__ = ("content", "pending", "synced")

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.synced = bytearray(content)
        self.pending: list[Operation] = []

    def do(self, operation: Operation) -> None:
        _apply(self.content, operation)
        self.pending.append(operation)

    def sync(self) -> None:
        for operation in self.pending:
            _apply(self.synced, operation)
        self.pending.clear()

    def after_crash(self, rng: Random, keep: float) -> bytes:
        """The synced content, and each later operation with the probability `keep`."""
        left = bytearray(self.synced)
        for operation in self.pending:
            if rng.random() < keep:
                _apply(left, operation)
            elif operation.kind == WRITE and rng.random() < 0.3:
                _tear(left, operation, rng)
        return bytes(left)


def _apply(content: bytearray, operation: Operation) -> None:
    if operation.kind == WRITE:
        _extend(content, operation.offset)
        content[operation.offset : operation.offset + len(operation.data)] = operation.data
    elif operation.offset <= len(content):
        del content[operation.offset :]
    else:
        _extend(content, operation.offset)


def _extend(content: bytearray, size: int) -> None:
    if len(content) < size:
        content.extend(bytes(size - len(content)))


def _tear(content: bytearray, operation: Operation, rng: Random) -> None:
    """Some of its sectors were written; the file may have its full new length."""
    start, end = operation.offset, operation.offset + len(operation.data)
    if rng.random() < 0.5:
        _extend(content, end)
    at = start
    while at < end:
        upto = min(end, (at // SECTOR + 1) * SECTOR)
        if rng.random() < 0.5:
            _extend(content, at)
            content[at:upto] = operation.data[at - start : upto - start]
        at = upto


class Disk:
    """One folder on a disk that may lose power after each operation."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self._names: Names = {name: File(content) for name, content in (files or {}).items()}
        self._synced: Names = dict(self._names)
        self._pending: list[tuple[str, File | None]] = []
        self._files: dict[int, File] = {}
        self._folder = 0

    def do(self, operation: Operation) -> None:
        if operation.kind == OPEN:
            self._open(operation)
        elif operation.kind in {WRITE, TRUNCATE}:
            self._files[operation.file].do(operation)
        elif operation.kind == SYNC:
            self._sync(operation.file)
        elif operation.kind == UNLINK:
            self._name(operation.name, None)
        elif operation.kind == RENAME:
            old, new = operation.name.split("\0")
            self._name(new, self._names[old])
            self._name(old, None)

    def _open(self, operation: Operation) -> None:
        if operation.name == ".":
            self._folder = operation.file
            return
        if operation.flag or operation.name not in self._names:
            self._name(operation.name, File())
        self._files[operation.file] = self._names[operation.name]

    def _sync(self, file: int) -> None:
        if file == self._folder:
            self._synced = dict(self._names)
            self._pending.clear()
        else:
            self._files[file].sync()

    def _name(self, name: str, file: File | None) -> None:
        _rename(self._names, name, file)
        self._pending.append((name, file))

    def as_it_is(self) -> Files:
        """The files after a kill of the process: everything."""
        return {n: bytes(file.content) for n, file in self._names.items() if n != RESERVE}

    def as_synced(self) -> Files:
        """The minimum after a power cut."""
        return {n: bytes(file.synced) for n, file in self._synced.items() if n != RESERVE}

    def after_crash(self, rng: Random) -> Files:
        """The possible files after a power cut."""
        names = dict(self._synced)
        for name, file in self._pending[: rng.randint(0, len(self._pending))]:
            _rename(names, name, file)
        keep = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        return {n: file.after_crash(rng, keep) for n, file in names.items() if n != RESERVE}

    @property
    def unsure(self) -> bool:
        """Whether a power cut could lose data."""
        return bool(self._pending or any(file.pending for file in self._names.values()))


def _rename(names: Names, name: str, file: File | None) -> None:
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


def disk_after(operations: Iterable[Operation], files: Mapping[str, bytes] | None = None) -> Disk:
    disk = Disk(files)
    for operation in operations:
        disk.do(operation)
    return disk


def read_folder(folder: Path) -> Files:
    """The current files of a folder, to create a Disk from; without the index of a log."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.endswith("-shm") and path.name != RESERVE
    }


def write_folder(files: Mapping[str, bytes], folder: Path) -> None:
    """Create a folder with exactly these files."""
    if folder.exists():
        shutil.rmtree(folder)
    os.mkdir(folder, 0o700)
    for name, content in files.items():
        (folder / name).write_bytes(content)
