"""A reader of SQLite's write-ahead log that locates damage.

SQLite reads the log up to the first incomplete frame, as it must after a crash, and so treats
damage as the end. Complete frames after an incomplete one, with the same salts and with chained
checksums, show that the incomplete frame is damaged. Format: sqlite.org/fileformat2.html#walformat.
"""

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_MAGIC: Final = 0x377F0682
_UINT32_MASK: Final = 0xFFFF_FFFF
#: The start of the index of the log: version, page size, and the number of committed frames. The
#: index begins with two copies of its header, in the byte order of the machine.
_INDEX: Final = struct.Struct("=IIIBBHI")
_INDEX_HEADER_SIZE: Final = 48
_INDEX_VERSION: Final = 3_007_000


class WalReport(NamedTuple):
    frames: int  # complete frames from the start of the log
    #: The position of the first damaged frame if complete frames follow; 0 for a damaged header.
    damaged_at: int | None


def log_of(database: Path) -> Path:
    return database.with_name(database.name + "-wal")


def describe_damage(database: Path) -> str:
    """Return a sentence about a damaged or unreadable log; empty if no damage is found."""
    path = log_of(database)
    try:
        log = examine(path.read_bytes())
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"Its log {path} cannot be read ({error.strerror}). "
    if log.damaged_at is None:
        return ""
    return f"Its log {path} is damaged near byte {log.damaged_at}. "


def examine(log: bytes) -> WalReport:
    if len(log) < _HEADER.size:
        return WalReport(0, None)
    magic, _, page_size, _, *salts, sum_0, sum_1 = _HEADER.unpack_from(log)
    order = ">" if magic & 1 else "<"
    whole = (
        magic & ~1 == _MAGIC
        and page_size in {1 << n for n in range(9, 17)}
        and _sum(log[:24], order, (0, 0)) == (sum_0, sum_1)
    )
    if not whole:
        return WalReport(0, 0)
    size = _FRAME.size + page_size
    expected, frames, broken = (sum_0, sum_1), 0, None
    for at in range(_HEADER.size, len(log) - size + 1, size):
        _, _, *salt, sum_0, sum_1 = _FRAME.unpack_from(log, at)
        found = _sum(log[at : at + 8], order, expected)
        found = _sum(log[at + _FRAME.size : at + size], order, found)
        fits = salt == salts and found == (sum_0, sum_1)
        if broken is None and fits:
            frames += 1
        elif broken is None:
            broken = at
        elif fits:
            return WalReport(frames, broken)
        expected = (sum_0, sum_1)
    return WalReport(frames, None)


class LogTail:
    """Removes the frames of a transaction that was rolled back after COMMIT had failed.

    A write can fail although its data is in the file. If that was the last frame of a transaction,
    the next start would find the transaction committed, unless another one has overwritten it.
    """

    def __init__(self, database: Path) -> None:
        self._log = log_of(database)
        self._index = database.with_name(database.name + "-shm")
        self._fd = -1

    def cut(self) -> None:
        """Truncate the log after its last committed frame, and sync it."""
        try:
            file = os.open(self._log, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            end = self._committed_end()
            if end is not None and os.fstat(file).st_size > end:
                os.ftruncate(file, end)
                os.fsync(file)
        finally:
            os.close(file)

    def close(self) -> None:
        """Close the index, after SQLite has closed it. Closing it earlier would release the locks
        of SQLite.
        """
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _committed_end(self) -> int | None:
        """The position after the last committed frame; None if the index does not contain it."""
        if self._fd < 0:
            self._fd = os.open(self._index, os.O_RDONLY | os.O_CLOEXEC)
        headers = os.pread(self._fd, 2 * _INDEX_HEADER_SIZE, 0)
        header = headers[:_INDEX_HEADER_SIZE]
        if len(headers) < 2 * _INDEX_HEADER_SIZE or header != headers[_INDEX_HEADER_SIZE:]:
            return None
        version, _, _, is_valid, _, page_size, frames = _INDEX.unpack_from(header)
        if version != _INDEX_VERSION or not is_valid:
            return None
        page_size = 1 << 16 if page_size == 1 else page_size
        return int(_HEADER.size + frames * (_FRAME.size + page_size))


def _sum(data: bytes, order: str, start: tuple[int, int]) -> tuple[int, int]:
    one, two = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for n in range(0, len(words), 2):
        one = (one + words[n] + two) & _UINT32_MASK
        two = (two + words[n + 1] + one) & _UINT32_MASK
    return one, two
