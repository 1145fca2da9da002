"""Reads the tasks of a Masenko server from its write-ahead log.

A log file is `masenko.NUMBER.wal`; the file with the greatest name is current. A record has the
size of its body and a CRC-32 (IEEE) of 4 bytes each, then the body: the number of operations in 2
bytes, and for each operation its size in 2 bytes and its content. Numbers are little-endian.

    1 add      id (4), queue, name and dead queue (1 + n each), payload (2 + n), due time (4),
               retries (1), number of blockers (1), their ids (4 each)
    2 delete   id
    4 fail     id, due time (4)
    8 next id  id
"""

import re
import struct
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from millrace.engine.job import BEFORE_ARRIVALS, SECOND
from millrace.protocols.masenko.tasks import LEASE_DURATION
from millrace.records import ImportedFailure, ImportedJob, ImportedSettings

from .source import Item, SkippedItem, SourceError

FILE_NAME: Final = re.compile(r"masenko\.\d+\.wal")
HEADER: Final = struct.Struct("<II")


class MasenkoTask(msgspec.Struct):
    id: int
    queue: str
    name: str
    payload: bytes
    dead_queue: str
    due: int
    retries: int
    blockers: list[int]
    failures: int = 0


class MasenkoSource:
    """The tasks in a folder of log files."""

    name = "masenko"

    def __init__(self, folder: Path, now: int) -> None:
        self._now = now
        self._ids = "masenko-" + blake2b(bytes(folder.resolve()), digest_size=4).hexdigest()
        self._notes: list[SkippedItem] = []
        self._tasks = self._replay(_newest_log(folder))

    def count(self) -> int:
        return len(self._tasks)

    def items(self) -> Iterator[Item | SkippedItem]:
        """Tasks in the order of their ids, except that a blocker precedes its dependents."""
        seen: set[int] = set()
        for task in self._tasks.values():
            yield from self._with_blockers(task, seen)

    def settings(self) -> ImportedSettings:
        return ImportedSettings()

    def notes(self) -> list[SkippedItem]:
        return self._notes

    def _with_blockers(self, task: MasenkoTask, seen: set[int]) -> Iterator[Item]:
        path = [task] if task.id not in seen else []
        seen.add(task.id)
        while path:
            blocker = next((each for each in path[-1].blockers if each not in seen), None)
            if blocker is None:
                yield self._item(path.pop())
            else:
                seen.add(blocker)
                path.append(self._tasks[blocker])

    def _item(self, task: MasenkoTask) -> Item:
        failed = self._now if task.failures else 0
        job = ImportedJob(
            f"{self._ids}-{task.id}",
            self.name,
            task.queue,
            task.name,
            task.payload,
            retries=task.retries,
            lease_for=LEASE_DURATION,
            due=task.due if task.due > self._now else 0,
            place=BEFORE_ARRIVALS + task.due if task.due else 0,
            attempts=task.failures,
            failures=task.failures,
            failure=ImportedFailure(failed, failed, "NACK", "") if failed else None,
            waits_for=[f"{self._ids}-{blocker}" for blocker in task.blockers],
            dead_queue=task.dead_queue,
        )
        part = "retries" if task.failures else "scheduled" if job.due else "queues"
        return Item("dependencies" if task.blockers else part, job)

    def _replay(self, path: Path) -> dict[int, MasenkoTask]:
        tasks: dict[int, MasenkoTask] = {}
        try:
            for operation in self._operations(path):
                _apply(tasks, operation)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise SourceError(f"{path} has an invalid record: {error}") from error
        for task in tasks.values():
            task.blockers = [each for each in task.blockers if each in tasks]
        return tasks

    def _operations(self, path: Path) -> Iterator[bytes]:
        data, at = path.read_bytes(), 0
        while at < len(data):
            body = b""
            if at + HEADER.size <= len(data):
                size, checksum = HEADER.unpack_from(data, at)
                body = data[at + HEADER.size : at + HEADER.size + size]
                if len(body) == size and zlib.crc32(body) != checksum:
                    raise SourceError(f"{path}: the record at byte {at} has a wrong checksum.")
            if at + HEADER.size > len(data) or len(body) < size:
                reason = f"The log ends with an incomplete record of {len(data) - at} bytes."
                self._notes.append(SkippedItem(path.name, reason))
                return
            at += HEADER.size + size
            (number,) = struct.unpack_from("<H", body)
            position = 2
            for _ in range(number):
                (length,) = struct.unpack_from("<H", body, position)
                position += 2
                yield body[position : position + length]
                position += length


def _newest_log(folder: Path) -> Path:
    try:
        found = [path for path in folder.iterdir() if FILE_NAME.fullmatch(path.name)]
    except OSError as error:
        raise SourceError(f"Cannot read {folder}: {error}") from error
    if not found:
        raise SourceError(f"{folder} has no log of Masenko (masenko.NUMBER.wal).")
    return max(found, key=lambda path: path.name)


def _apply(tasks: dict[int, MasenkoTask], operation: bytes) -> None:
    kind, number = operation[0], struct.unpack_from("<I", operation, 1)[0]
    match kind:
        case 1:
            tasks[number] = _read_task(number, operation)
        case 2:
            tasks.pop(number, None)
        case 4 if number in tasks:
            task = tasks[number]
            task.failures += 1
            if len(operation) >= 9:  # older logs have no time
                task.due = struct.unpack_from("<I", operation, 5)[0] * SECOND
        case 4 | 8:
            pass
        case _:
            raise SourceError(f"The log has an unknown operation {kind}.")


def _read_task(number: int, data: bytes) -> MasenkoTask:
    at = 5
    texts = []
    for _ in range(3):
        size = data[at]
        # The original garbles names that are not ASCII: one byte per character.
        texts.append(data[at + 1 : at + 1 + size].decode("latin-1"))
        at += 1 + size
    (size,) = struct.unpack_from("<H", data, at)
    payload = data[at + 2 : at + 2 + size]
    at += 2 + size
    due, retries, count = struct.unpack_from("<IBB", data, at)
    blockers = list(struct.unpack_from(f"<{count}I", data, at + 6))
    queue, name, dead_queue = texts
    return MasenkoTask(number, queue, name, payload, dead_queue, due * SECOND, retries, blockers)
