"""Reads the jobs of a Faktory server from its Redis.

| key | type | contents |
|---|---|---|
| `queues` | set | names of the queues |
| the name of a queue | list | jobs; Faktory pushes on the left and fetches on the right |
| `scheduled`, `retries`, `dead` | sorted set | jobs by time |
| `working` | sorted set | reservations `{"job": ..., "wid": ...}` by the end of their lease |
| `paused` | set | names of paused queues |
| `processed`, `failures` | counters | totals; with `:YYYY-MM-DD` the totals of a day |
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import msgspec

from millrace.protocols.errors import BadJson, ClientError
from millrace.protocols.faktory import work_unit
from millrace.records import ImportedFailure, ImportedJob, ImportedSettings

from .redis import RedisError, RedisReader
from .source import Item, SkippedItem, too_large

SECOND: Final = 1_000_000
#: Keys that are not queues.
KNOWN: Final = frozenset({b"queues", b"scheduled", b"retries", b"dead", b"working", b"paused"})
COUNTERS: Final = (b"processed", b"failures")
EPOCH: Final = date(1970, 1, 1)
MOMENT_ZERO: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


class _Failure(msgspec.Struct):
    retry_count: int = 0
    failed_at: str = ""
    message: str = ""
    errtype: str = ""
    backtrace: list[str] | None = None


class _Unit(msgspec.Struct):
    jid: str = ""
    created_at: str = ""
    failure: _Failure | None = None


class _Reservation(msgspec.Struct):
    job: msgspec.Raw


_decode = msgspec.json.Decoder(_Unit, strict=False).decode
_reservation = msgspec.json.Decoder(_Reservation).decode


class FaktorySource:
    """The jobs of one Faktory server."""

    name = "faktory"

    def __init__(self, redis: RedisReader, now: int) -> None:
        self._redis = redis
        self._now = now
        self._queues: list[bytes] = sorted(redis.command("SMEMBERS", "queues"))

    def count(self) -> int:
        return self._redis.sizes([*self._queues, "scheduled", "retries", "dead", "working"])

    def items(self) -> Iterator[Item | SkippedItem]:
        """Reserved jobs come first: they were fetched first, and are ready again."""
        redis = self._redis
        for value, _ in redis.scored("working"):
            try:
                unit = bytes(_reservation(value).job)
            except msgspec.MsgspecError as error:
                yield SkippedItem("working", f"The reservation is not valid JSON: {error}")
                continue
            yield self._read("reservations", unit)
        for queue in self._queues:
            try:
                for value in redis.elements(queue):
                    yield self._read("queues", value)
            except RedisError as error:
                yield SkippedItem(queue.decode("utf-8", "replace"), str(error))
        for part in ("scheduled", "retries", "dead"):
            for value, score in redis.scored(part):
                yield self._read(part, value, due=round(score * SECOND))

    def settings(self) -> ImportedSettings:
        redis = self._redis
        processed, failures = (int(redis.command("GET", key) or 0) for key in COUNTERS)
        return ImportedSettings(
            queues={queue.decode(): 0 for queue in self._queues},
            paused=sorted(name.decode() for name in redis.command("SMEMBERS", "paused")),
            processed=processed,
            failures=failures,
            days=self._days(),
        )

    def notes(self) -> list[SkippedItem]:
        known = KNOWN.union(self._queues, COUNTERS)
        return [
            SkippedItem(key.decode("utf-8", "replace"), "The key does not belong to Faktory.")
            for key in self._redis.keys("*")
            if key not in known and not key.startswith((b"processed:", b"failures:"))
        ]

    def _days(self) -> list[tuple[int, int, int]]:
        found: dict[int, list[int]] = {}
        for at, counter in enumerate(COUNTERS):
            for key in self._redis.keys(f"{counter.decode()}:*"):
                try:
                    day = date.fromisoformat(key.decode().partition(":")[2])
                except ValueError:
                    continue
                number = int(self._redis.command("GET", key) or 0)
                found.setdefault((day - EPOCH).days, [0, 0])[at] = number
        return sorted((day, *counts) for day, counts in found.items())  # type: ignore[misc]

    def _read(self, part: str, value: bytes, due: int = 0) -> Item | SkippedItem:
        try:
            unit = _decode(value)
            push = work_unit.read(value, self._now)
        except (msgspec.MsgspecError, BadJson) as error:
            return SkippedItem(_excerpt(value), f"The job is not valid JSON: {error}")
        except ClientError as error:
            return SkippedItem(_excerpt(value), str(error))
        if skipped := too_large(push.jid, push.payload):
            return skipped
        failed = unit.failure
        spec = b"\n".join(
            push.wire_fields.split(b"\n")[:4]
        )  # the failure becomes a field of the job
        imported = ImportedJob(
            push.jid,
            self.name,
            push.queue,
            push.kind,
            push.payload,
            dead=part == "dead",
            spec=spec,
            retries=push.retries,
            lease_for=push.lease_duration,
            due=due if part in {"scheduled", "retries"} and due > self._now else 0,
            created=_time(unit.created_at),
            failures=0 if failed is None else max(0, failed.retry_count) + 1,
            failure=None if failed is None else self._failure(failed),
        )
        imported.attempts = imported.failures
        return Item(part, imported)

    def _failure(self, failed: _Failure) -> ImportedFailure:
        at = _time(failed.failed_at) or self._now
        return ImportedFailure(at, at, failed.errtype, failed.message, failed.backtrace or [])


def _time(text: str) -> int:
    """Microseconds since 1970, or 0 if the text is not a time with an offset."""
    try:
        moment = datetime.fromisoformat(text) if text else MOMENT_ZERO
        return max(0, (moment - MOMENT_ZERO) // MICROSECOND)
    except (ValueError, TypeError):
        return 0


def _excerpt(value: Any) -> str:
    return bytes(value[:60]).decode("utf-8", "replace")
