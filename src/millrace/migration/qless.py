"""Reads the jobs of Qless or reqless from the Redis that its scripts use.

| key | type | contents |
|---|---|---|
| `ql:queues` | sorted set | queues by the time of their first job |
| `ql:q:Q-work`, `-locks`, `-scheduled`, `-depends`, `-throttled` | sorted set | ids of jobs |
| `ql:j:ID` | hash | a job; `-history`, `-dependencies` are further keys |
| `ql:f:GROUP` | list | ids of failed jobs, the newest first |
| `ql:r:ID`, `ql:q:Q-recur` | hash, sorted set | a recurring job and its next time |
| `ql:tracked`, `ql:completed` | sorted set | ids by time |
| `ql:config`, `ql:paused_queues` | hash, set | settings |
| `ql:th:NAME` | hash | a limit, with a time to live |
| `ql:s:wait:DAY:Q`, `run`, `stats` | hash | statistics |

The names of database 5 have the prefix `db5:` in Millrace, as for clients that select it.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from millrace.engine.limits import QUEUE_KEY_PREFIX
from millrace.protocols.qless.databases import database_prefix
from millrace.protocols.qless.names import decode_name
from millrace.protocols.qless.puts import LEASE_DURATION
from millrace.records import (
    ImportedDetails,
    ImportedDurations,
    ImportedFailure,
    ImportedJob,
    ImportedLimit,
    ImportedQueueDay,
    ImportedRecurringJob,
    ImportedSettings,
)

from .redis import PAGE_SIZE, RedisReader
from .source import Item, SkippedItem, too_large

SECOND: Final = 1_000_000
DAY_SECONDS: Final = 86_400
#: The sets of a queue with the part of the summary, in the order in which their jobs run. Jobs with
#: a lock are ready again. Dependent jobs are last, because their dependencies must precede them.
SETS: Final = (
    ("-locks", "reservations"),
    ("-work", "queues"),
    ("-throttled", "queues"),
    ("-scheduled", "scheduled"),
)
#: First slots of minutes, hours and days in a histogram.
SLOTS: Final = {b"s": 0, b"m": 59, b"h": 118, b"d": 141}

Hash = dict[bytes, bytes]


class QlessSource:
    """The jobs of one database of Redis."""

    name = "qless"

    def __init__(self, redis: RedisReader, now: int) -> None:
        self._redis = redis
        self._now = now
        self._prefix = database_prefix(redis.database)
        self._queues = [(queue, score) for queue, score in redis.scored("ql:queues")]

    def count(self) -> int:
        redis = self._redis
        sets = [b"ql:q:%b%b" % (queue, suffix.encode()) for queue, _ in self._queues
                for suffix in (*dict(SETS), "-depends")]  # fmt: skip
        return redis.sizes([*sets, *self._failed_keys()])

    def items(self) -> Iterator[Item | SkippedItem]:
        for queue, _ in self._queues:
            for suffix, part in SETS:
                key = b"ql:q:%b%b" % (queue, suffix.encode())
                members = self._redis.scored(key, reverse=suffix == "-work")
                yield from self._jobs(part, members)
        for key in self._failed_keys():
            yield from self._jobs("failures", ((jid, 0.0) for jid in self._redis.elements(key)))
        yield from self._dependents()

    def settings(self) -> ImportedSettings:
        redis = self._redis
        options = _hash(redis.command("HGETALL", "ql:config"))
        paused = redis.command("SMEMBERS", "ql:paused_queues")
        tracked = redis.scored("ql:tracked")
        return ImportedSettings(
            queues={self._name(queue): round(score * SECOND) for queue, score in self._queues},
            paused=sorted(map(self._name, paused)),
            limits=list(self._limits()),
            tracked={self._name(jid): round(score * SECOND) for jid, score in tracked},
            recurring=list(self._recurring()),
            qless_options={self._name(key): decode_name(value) for key, value in options.items()},
            **self._statistics(),
        )

    def notes(self) -> list[SkippedItem]:
        found = []
        completed = self._redis.command("ZCARD", "ql:completed")
        if completed:
            found.append(SkippedItem("ql:completed", f"{completed} completed jobs."))
        workers = self._redis.command("ZCARD", "ql:workers")
        if workers:
            reason = f"{workers} workers. They register again when they connect."
            found.append(SkippedItem("ql:workers", reason))
        return found

    # Jobs

    def _failed_keys(self) -> list[bytes]:
        groups = sorted(self._redis.command("SMEMBERS", "ql:failures"))
        return [b"ql:f:" + group for group in groups]

    def _jobs(
        self, part: str, members: Iterator[tuple[bytes, float]]
    ) -> Iterator[Item | SkippedItem]:
        page: list[tuple[bytes, float]] = []
        for member in members:
            page.append(member)
            if len(page) == PAGE_SIZE:
                yield from self._page(part, page)
                page = []
        if page:
            yield from self._page(part, page)

    def _page(self, part: str, page: list[tuple[bytes, float]]) -> Iterator[Item | SkippedItem]:
        commands = [
            command
            for jid, _ in page
            for command in (
                ("HGETALL", b"ql:j:" + jid),
                ("LRANGE", b"ql:j:%b-history" % jid, 0, -1),
            )
        ]
        replies = self._redis.pipeline(commands)
        for at, (jid, score) in enumerate(page):
            fields, history = _hash(replies[2 * at]), replies[2 * at + 1]
            if not fields:
                yield SkippedItem(self._name(jid), "The job does not exist.")
                continue
            due = round(score * SECOND) if part == "scheduled" else 0
            try:
                job = self._job(jid, fields, history, due, dead=part == "failures")
            except (ValueError, KeyError, TypeError) as error:
                yield SkippedItem(self._name(jid), f"The job is not valid: {error!r}")
                continue
            yield too_large(job.jid, job.payload) or Item(part, job)

    def _dependents(self) -> Iterator[Item | SkippedItem]:
        """Dependent jobs, each after its dependencies."""
        waiting: dict[bytes, list[bytes]] = {}
        for queue, _ in self._queues:
            for jid, _ in self._redis.scored(b"ql:q:%b-depends" % queue):
                waiting[jid] = self._redis.command("SMEMBERS", b"ql:j:%b-dependencies" % jid)
        for jid in _in_order(waiting):
            for item in self._page("dependencies", [(jid, 0)]):
                if isinstance(item, Item):
                    item.job.waits_for = sorted(map(self._name, waiting[jid]))
                yield item

    def _job(
        self, jid: bytes, fields: Hash, history: list[bytes], due: int, *, dead: bool
    ) -> ImportedJob:
        retries, remaining = _number(fields, b"retries"), _number(fields, b"remaining")
        tags = _json_list(fields.get(b"tags"))
        log = _log(fields, history)
        put_at = int(log[0][0]) * SECOND if log else self._now
        failed = msgspec.json.decode(fields.get(b"failure") or b"{}")
        failure, when = None, _plain(failed.get("when", 0))
        if failed:
            at = round(when * SECOND)
            failure = ImportedFailure(
                at, at, str(failed.get("group", "")), str(failed.get("message", ""))
            )
        priority = _number(fields, b"priority")
        details = ImportedDetails(
            priority,
            log,
            [(tag, put_at) for tag in tags],
            str(failed.get("worker", "")),
            when,
            decode_name(fields.get(b"spawned_from_jid", b"")),
            [self._limit_key(str(key)) for key in _json_list(fields.get(b"throttles"))],
            round(_number(fields, b"time") * SECOND),
        )
        failures = max(0, round(retries - remaining))
        return ImportedJob(
            self._name(jid),
            self.name,
            self._name(fields[b"queue"]),
            decode_name(fields.get(b"klass", b"")),
            fields.get(b"data", b"{}"),
            dead=dead,
            retries=round(retries),
            lease_for=LEASE_DURATION,
            rank=priority,
            due=due,
            created=put_at,
            attempts=failures,
            failures=failures,
            failure=failure,
            tags=[str(tag) for tag in tags],
            details=details,
        )

    # Settings

    def _limits(self) -> Iterator[ImportedLimit]:
        for key in self._redis.keys("ql:th:*"):
            kind, left = self._redis.pipeline([("TYPE", key), ("PTTL", key)])
            if kind != b"hash":
                continue  # the sets of holders and of waiting jobs
            maximum = _number(_hash(self._redis.command("HGETALL", key)), b"maximum")
            if maximum > 0:
                expires = self._now + left * 1000 if left > 0 else 0
                name = self._limit_key(decode_name(key.removeprefix(b"ql:th:")))
                yield ImportedLimit(name, maximum, expires)

    def _recurring(self) -> Iterator[ImportedRecurringJob]:
        for queue, _ in self._queues:
            for jid, next_at in self._redis.scored(b"ql:q:%b-recur" % queue):
                fields = _hash(self._redis.command("HGETALL", b"ql:r:" + jid))
                if not fields:
                    continue
                limits = _json_list(fields.get(b"throttles"))
                yield ImportedRecurringJob(
                    self._name(jid),
                    decode_name(fields.get(b"klass", b"")),
                    fields.get(b"data", b"{}"),
                    self._name(queue),
                    _number(fields, b"interval"),
                    round(next_at * SECOND),
                    _number(fields, b"priority"),
                    round(_number(fields, b"retries")),
                    _number(fields, b"backlog"),
                    _json_list(fields.get(b"tags")),
                    round(_number(fields, b"count")),
                    [self._limit_key(str(key)) for key in limits],
                    self._prefix,
                )

    def _statistics(self) -> dict[str, Any]:
        days: dict[tuple[str, int], ImportedQueueDay] = {}
        for key in self._redis.keys("ql:s:*"):
            _, _, section, bin_, queue = key.split(b":", 4)
            fields = _hash(self._redis.command("HGETALL", key))
            name, number = self._name(queue), int(float(bin_)) // DAY_SECONDS
            new = ImportedQueueDay(name, number, ImportedDurations(), ImportedDurations())
            day = days.setdefault((name, number), new)
            if section == b"stats":
                day.failures, day.failed, day.retries = (
                    max(0, round(_number(fields, each)))
                    for each in (b"failures", b"failed", b"retries")
                )
            elif section in {b"wait", b"run"}:
                setattr(day, section.decode(), _durations(fields))
        return {
            "queue_days": list(days.values()),
            "processed": sum(day.run.count + day.failures for day in days.values()),
            "failures": sum(day.failures for day in days.values()),
        }

    def _name(self, name: bytes) -> str:
        return self._prefix + decode_name(name)

    def _limit_key(self, name: str) -> str:
        if name.startswith(QUEUE_KEY_PREFIX):
            return QUEUE_KEY_PREFIX + self._prefix + name.removeprefix(QUEUE_KEY_PREFIX)
        return self._prefix + name


def _hash(reply: list[bytes]) -> Hash:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _number(fields: Hash, name: bytes) -> int | float:
    return _plain(fields.get(name) or b"0")


def _plain(value: Any) -> int | float:
    number = float(value)
    return int(number) if number.is_integer() else number


def _json_list(value: bytes | None) -> list[Any]:
    """A list; Lua writes an empty one as an object."""
    found = msgspec.json.decode(value) if value else []
    return list(found) if isinstance(found, list) else []


def _log(fields: Hash, history: list[bytes]) -> list[Any]:
    """The history of a job: times in seconds, events and their fields."""
    found = []
    for entry in history:
        when, event, *more = msgspec.json.decode(entry)
        found.append((int(when), str(event), more[0] if more and more[0] else None))
    # Early scripts keep one record per stage in a field of the job. Later ones append these events
    # to the list when they read the job.
    for stage in _json_list(fields.get(b"history")):
        details = {"put": {"q": stage.get("q", "")}, "popped": {"worker": stage.get("worker", "")}}
        found += [
            (int(stage[event]), event, details.get(event))
            for event in ("put", "popped", "failed", "done")
            if stage.get(event)
        ]
    return found


def _durations(fields: Hash) -> ImportedDurations:
    slots = {
        SLOTS[name[:1]] + int(name[1:]): int(value)
        for name, value in fields.items()
        if name[:1] in SLOTS and name[1:].isdigit()
    }
    count = round(_number(fields, b"total"))
    return ImportedDurations(count, _number(fields, b"mean"), _number(fields, b"vk"), slots)


def _in_order(waiting: dict[bytes, list[bytes]]) -> Iterator[bytes]:
    """The ids, each after its dependencies."""
    seen: set[bytes] = set()
    for first, blockers in waiting.items():
        path = [(first, iter(blockers))] if first not in seen else []
        seen.add(first)
        while path:
            jid, dependencies = path[-1]
            unseen = (each for each in dependencies if each in waiting and each not in seen)
            following = next(unseen, None)
            if following is None:
                path.pop()
                yield jid
            else:
                seen.add(following)
                path.append((following, iter(waiting[following])))
