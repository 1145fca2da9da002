"""Reads the jobs of a Workq server from its command log.

The folder has segments `000000001.log` and so on. A segment starts with a magic number and a
version of 4 bytes each. A record has a time (15 bytes), the size of its command (varint), the
command, and a CRC-32C of all this. Numbers are big-endian; varints are those of Go.

    1 add, 2 schedule              id (16), name, TTR, TTL, priority, maximum of attempts and of
                                   failures, payload, time, creation time
    3 complete, 4 fail             id, result
    5 delete, 6 expire             id
    7 start, 8 timeout of a lease  id
"""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from millrace.engine.job import AFTER_ARRIVALS
from millrace.protocols.workq.arguments import format_second
from millrace.protocols.workq.connection import FAIL_GROUP
from millrace.records import ImportedFailure, ImportedJob, ImportedSettings

from .source import Item, SkippedItem, SourceError, too_large

FILE_NAME: Final = re.compile(r"\d{9}\.log")
HEADER: Final = struct.pack(">II", 0x77717771, 1)
TIME_SIZE: Final = 15
CHECKSUM: Final = struct.Struct(">I")
#: Seconds from year 1, where the times of Go start, to 1970.
GO_EPOCH: Final = 62_135_596_800
_POLYNOMIAL: Final = 0x82F63B78

ADD: Final = 1
SCHEDULE: Final = 2


class LoggedJob(msgspec.Struct):
    id: str
    name: str
    ttr: int
    ttl: int
    priority: int
    max_attempts: int
    max_fails: int
    payload: bytes
    #: Microseconds since 1970; 0 for a job that is not scheduled.
    time: int
    created: int
    attempts: int = 0
    fails: int = 0
    leased: bool = False
    #: "", "completed" or "failed".
    end: str = ""
    result: bytes = b""

    @property
    def expires(self) -> int:
        return (self.time or self.created) + self.ttl * 1000


class WorkqSource:
    """The jobs in a folder of log files."""

    name = "workq"

    def __init__(self, folder: Path, now: int) -> None:
        self._now = now
        self._notes: list[SkippedItem] = []
        self._jobs: dict[bytes, LoggedJob] = {}
        for command in self._commands(folder):
            try:
                self._apply(Decoder(command))
            except (IndexError, struct.error) as error:
                raise SourceError(f"The log has an invalid command: {error}") from error

    def count(self) -> int:
        return len(self._jobs)

    def items(self) -> Iterator[Item | SkippedItem]:
        for job in self._jobs.values():
            if job.end == "completed":
                yield SkippedItem(job.id, "The job is completed.")
            elif job.expires <= self._now:
                yield SkippedItem(job.id, "The time to live of the job has ended.")
            else:
                yield too_large(job.id, job.payload) or self._item(job)

    def settings(self) -> ImportedSettings:
        return ImportedSettings()

    def notes(self) -> list[SkippedItem]:
        return self._notes

    def _item(self, job: LoggedJob) -> Item:
        spec = b"%d %b" % (job.ttl, format_second(job.time)) if job.time else b"%d" % job.ttl
        dead = job.end == "failed"
        failure = None
        if job.fails or dead:
            message = job.result.decode("utf-8", "replace")
            failure = ImportedFailure(job.created, self._now, FAIL_GROUP, message)
        imported = ImportedJob(
            job.id,
            self.name,
            job.name,
            job.name,
            job.payload,
            dead=dead,
            spec=spec,
            retries=job.max_fails,
            lease_for=job.ttr * 1000,
            rank=job.priority,
            due=job.time if job.time > self._now else 0,
            place=AFTER_ARRIVALS + job.time if job.time else 0,
            expires=job.expires,
            max_attempts=job.max_attempts,
            created=job.created,
            # The interrupted attempt of a leased job does not count.
            attempts=job.attempts - job.leased,
            failures=job.fails,
            failure=failure,
            result=job.result if dead else None,
        )
        part = "reservations" if job.leased else "scheduled" if imported.due else "queues"
        return Item("dead" if dead else part, imported)

    # Replay

    def _apply(self, decoder: "Decoder") -> None:
        kind, jid = decoder.byte(), decoder.take(16)
        if kind in {ADD, SCHEDULE}:
            self._jobs[jid] = decoder.job(jid, scheduled=kind == SCHEDULE)
            return
        logged = self._jobs.get(jid)
        if logged is None:
            return  # the job has expired, and the server has cleaned its log
        match kind:
            case 3:
                logged.end, logged.result, logged.leased = "completed", decoder.payload(), False
            case 4:
                logged.result, logged.leased = decoder.payload(), False
                logged.fails += 1
                logged.end = "failed" if logged.fails >= logged.max_fails else ""
            case 5 | 6:
                del self._jobs[jid]
            case 7:
                logged.attempts += 1
                logged.leased = True
            case 8:
                logged.leased = False
                if 0 < logged.max_attempts <= logged.attempts:
                    logged.end = "failed"
            case _:
                raise SourceError(f"The log has an unknown command {kind}.")

    def _commands(self, folder: Path) -> Iterator[bytes]:
        try:
            paths = sorted(path for path in folder.iterdir() if FILE_NAME.fullmatch(path.name))
        except OSError as error:
            raise SourceError(f"Cannot read {folder}: {error}") from error
        if not paths:
            raise SourceError(f"{folder} has no command log of Workq (000000001.log).")
        for path in paths:
            data = path.read_bytes()
            if data[: len(HEADER)] != HEADER:
                raise SourceError(f"{path} is not a command log of Workq.")
            yield from self._records(path, data)

    def _records(self, path: Path, data: bytes) -> Iterator[bytes]:
        at = len(HEADER)
        while at < len(data):
            decoder = Decoder(data, at + TIME_SIZE)
            try:
                command = decoder.payload()
                end = decoder.at
                (checksum,) = CHECKSUM.unpack(decoder.take(CHECKSUM.size))
            except (IndexError, struct.error):
                reason = f"The log ends with an incomplete record of {len(data) - at} bytes."
                self._notes.append(SkippedItem(path.name, reason))
                return
            if crc32c(data[at:end]) != checksum:
                raise SourceError(f"{path}: the record at byte {at} has a wrong checksum.")
            yield command
            at = decoder.at


class Decoder:
    """Reads the fields of a record. Raises IndexError at its end."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at

    def byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def take(self, size: int) -> bytes:
        if self.at + size > len(self._data):
            raise IndexError("the record is too short")
        self.at += size
        return self._data[self.at - size : self.at]

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def signed(self) -> int:
        value = self.unsigned()
        return ~(value >> 1) if value & 1 else value >> 1

    def payload(self) -> bytes:
        return self.take(self.unsigned())

    def time(self) -> int:
        """Microseconds since 1970; 0 for the zero time of Go."""
        _, seconds, nanoseconds, _ = struct.unpack(">BqiH", self.take(TIME_SIZE))
        return max(0, int(seconds - GO_EPOCH) * 1_000_000 + int(nanoseconds) // 1000)

    def job(self, jid: bytes, *, scheduled: bool) -> LoggedJob:
        name = self.payload().decode("utf-8", "replace")
        ttr, ttl, priority = self.unsigned(), self.unsigned(), self.signed()
        attempts, fails, payload = self.unsigned(), self.unsigned(), self.payload()
        time, created = self.time(), self.time()
        time = time if scheduled else 0
        return LoggedJob(
            str(UUID(bytes=jid)), name, ttr, ttl, priority, attempts, fails, payload, time, created
        )


def _table() -> list[int]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901
        found.append(value)
    return found


_TABLE: Final = _table()


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of the data."""
    found, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        found = table[(found ^ byte) & 0xFF] ^ found >> 8
    return found ^ 0xFFFFFFFF
