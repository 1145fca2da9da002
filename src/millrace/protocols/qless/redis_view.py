"""The keys under `ql:` as Qless would store them in Redis, computed from the engine on each read.

They are for clients that bypass the scripts, for example to read the length of a queue or a due
time, and for tests. Reading a value with a counter or an index takes constant time. The locked,
scheduled and blocked jobs of a queue, and the jobs of a failure group or a worker, require a scan
of all jobs in that state.
"""

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final

from millrace.engine.annotations import read_details
from millrace.engine.discarded import drain
from millrace.engine.job import SECOND, Job
from millrace.engine.statistics import DAY, QueueDay
from millrace.engine.tables import items_to_examine, keys_to_examine, seqs_to_examine
from millrace.protocols.registry import QLESS
from millrace.protocols.slices import (
    filter_in_slices,
    free_in_slices,
    keep_range_in_slices,
    replace_in_slices,
    run_all_slices,
)

from . import fields, listings, queries
from .computed_keys import (
    Key,
    Scores,
    hash_key,
    long_key,
    sorted_scores,
    zset_key,
)
from .fields import Fields
from .job_keys import STATES, JobKeys
from .names import decode_name, encode_name
from .state import QlessState
from .writable_keys import PATTERN_KEYS, WritableKeys

#: Names that one slice of SCAN examines: a queue without jobs costs as much as several names.
NAMES_BATCH_SIZE: Final = 50
#: Jobs of a tag that are counted at once.
TAG_BATCH_SIZE: Final = 2
#: A key with more members is long.
LONG_KEY: Final = 100


class RedisView:
    def __init__(self, qless: QlessState) -> None:
        self.qless = qless
        self.engine = qless.engine
        self.writable = WritableKeys(qless)
        self._jobs = JobKeys(qless, self.writable)
        self._single_keys: dict[str, Callable[[], Key]] = {
            "queues": self._jobs.queues,
            "paused_queues": lambda: long_key("set", self._jobs.paused),
            "workers": lambda: zset_key(lambda: self._timed(qless.workers.last_seen)),
            "tracked": lambda: long_key("zset", self._tracked),
            "completed": self._jobs.completed,
            "failures": lambda: long_key("set", self._groups),
            "tags": lambda: long_key("zset", self._tag_counts)._replace(exists=self._has_tags),
            "config": lambda: hash_key(
                lambda: fields.encode_pairs(queries.config_of(qless).items())
            ),
        }
        self._families: dict[str, Callable[[str], Key | None]] = {
            "q": self._jobs.queue,
            "j": self._jobs.job,
            "r": self._jobs.recurring,
            "t": self._tag,
            "f": self._failed,
            "w": self._worker,
            "s": self._stats,
            "th": self.writable.throttle,
            "qp": self.writable.patterns,
        }

    # Read access to a key

    def key_type(self, key: bytes) -> str:
        """Return `zset`, `hash`, `list` or `set`, or an empty string if the key does not exist."""
        found = self._find(key)
        return found.key_type if self._key_exists(found) and found is not None else ""

    def ttl(self, key: bytes, now: int) -> int:
        """Return the time to live. Only throttles expire: by the clock of the client if it has
        called a script before, otherwise by the clock of the client that set the limit.
        """
        name = key.removeprefix(b"ql:th:")
        tid = self.qless.engine_throttle_name(decode_name(name))
        if name == key or tid not in self.qless.throttles.limits:
            return -1
        if not self.qless.allows_throttle(tid):
            return -1  # the set of jobs of another throttle
        caller = self.qless.engine.caller
        caller.own_clock = caller.clock_offset != 0
        try:
            return self.qless.throttles.ttl(tid, now + caller.clock_offset)
        finally:
            caller.own_clock = False

    def length(self, key: bytes) -> Generator[None, None, int]:
        """Return the number of members, or 0 if the key does not exist, in slices."""
        found = self._find(key)
        if found is None:
            return 0
        if found.exists is None or found.read_in_slices is None:
            return found.length()
        members = yield from found.read_in_slices()
        count = len(members)
        yield from free_in_slices(members)
        return count

    def version(self, key: bytes) -> Hashable:
        """Return a version for a key with a large number of members: that of the queue of its jobs,
        or else of the engine. Return None for any other key; its content is compared instead.
        """
        found = self._find(key)
        if found is None or found.read_in_slices is None:
            return None
        if found.queue is not None:
            version = (found.queue, found.queue.version, self.engine.revert_count)
            return version if found.length() > LONG_KEY else None
        if found.rows is None or next(islice(found.rows(), LONG_KEY, None), self) is self:
            return None
        return self.version_of_all()

    def version_of_all(self) -> Hashable:
        """Return a value that differs after any change."""
        return self.engine.version

    def scores(self, key: bytes) -> Scores:
        """Return the members of a sorted set and their scores, the lowest score first."""
        return self._read(key)

    def range(self, key: bytes, first: int, last: int) -> Generator[None, None, Scores]:
        """Return the members of a sorted set from `first` to `last`, as in ZRANGE, in slices."""
        scores: Scores = yield from self.read(key)
        first = max(0, first + len(scores)) if first < 0 else first
        last = last + len(scores) if last < 0 else last
        return (yield from keep_range_in_slices(scores, first, max(first, last + 1)))

    def scan(self, start: int, count: int) -> Generator[None, None, tuple[int, list[bytes]]]:
        """Return the cursor of the next scan, and the keys of about `count` jobs from `start`, in
        slices.
        """
        self.qless.refresh()
        names: list[bytes] = []
        if start == 0:
            names = yield from self._keys_in_slices(self._names_without_jobs())
        following = start + count if start + count < self.engine.next_seq else 0
        seqs = range(start, min(start + count, self.engine.next_seq))
        jobs = (self._job_with_key(seq) for seq in seqs)
        names += yield from self._keys_in_slices(
            name for job in jobs for name in (("",) if job is None else self._names_of(job))
        )
        return following, names

    @staticmethod
    def _keys_in_slices(found: Iterable[str]) -> Generator[None, None, list[bytes]]:
        """Return the keys of names in slices."""
        names: list[bytes] = []
        for number, name in enumerate(found, 1):
            if name:
                names.append(b"ql:" + encode_name(name))
            if number % NAMES_BATCH_SIZE == 0:
                yield
        return names

    def read(self, key: bytes) -> Generator[None, None, list[Any]]:
        """Return all members of a key, in slices."""
        found = self._find(key)
        if found is None:
            return []
        return found.read() if found.read_in_slices is None else (yield from found.read_in_slices())

    def score(self, key: bytes, member: bytes) -> Generator[None, None, float | None]:
        """Return the score of one member of a sorted set, in slices."""
        found = self._find(key)
        if found is None:
            return None
        if found.score is not None:
            return found.score(decode_name(member))
        scores: Scores = yield from self.read(key)
        matches = yield from filter_in_slices(drain(scores), lambda row: row[0] == member)
        return matches[0][1] if matches else None

    def fields(self, key: bytes) -> Fields:
        """Return the fields of a hash and their values."""
        return self._read(key)

    def items(self, key: bytes) -> list[bytes]:
        """Return the items of a list, in order."""
        return self._read(key)

    def members(self, key: bytes) -> list[bytes]:
        """Return the members of a set, in a stable order."""
        return self._read(key)

    def names(self) -> Iterable[bytes]:
        """Return all keys, and an empty key after each step that finds none."""
        self.qless.refresh()
        names = chain(self._names_without_jobs(), self._job_names())
        return (b"ql:" + encode_name(name) if name else b"" for name in names)

    def _find(self, key: bytes) -> Key | None:
        self.qless.refresh()
        family, colon, rest = decode_name(key)[3:].partition(":")
        if colon:
            return self._families[family](rest) if family in self._families else None
        return self._single_keys[family]() if family in self._single_keys else None

    def _read(self, key: bytes) -> list[Any]:
        found = self._find(key)
        return [] if found is None else found.read()

    # Names

    def _names_without_jobs(self) -> Iterator[str]:
        """Return all names except the names of jobs, with empty names in between, so that the
        caller can divide the work.
        """
        yield from (name for name, make in self._single_keys.items() if self._key_exists(make()))
        local, listed = self.qless.client_name, self.qless.is_in_database
        queues = self.engine.tables.queues
        for queue in map(queues.get, keys_to_examine(queues)):
            yield ""
            if queue is None or not listed(queue.name):
                continue
            states = (*STATES, "throttled") if self.engine.limits.parked.by_key else STATES
            sets = (f"{local(queue.name)}-{name}" for name in states)
            yield from (f"q:{name}" for name in sets if self._key_exists(self._jobs.queue(name)))
        recurring = [each for each in self.qless.recurring.values() if listed(each.queue)]
        yield from (f"q:{local(name)}-recur" for name in {each.queue for each in recurring})
        yield from (f"r:{local(each.jid)}" for each in recurring)
        tags = self.qless.tags
        for tag in keys_to_examine(tags):
            yield f"t:{tag}" if any(map(self._is_listed, tags.get(tag, ()))) else ""
        yield from (f"f:{decode_name(group)}" if group else "" for group in self._groups(False))
        holders: set[str] = set()
        for job in self._jobs.examine(self.engine.tables.leased):
            is_new = job is not None and self._is_held(job) and job.history.holder not in holders
            if job is not None and is_new:
                holders.add(job.history.holder)
            yield f"w:{job.history.holder}:jobs" if job is not None and is_new else ""
        days = self.engine.queue_days()
        for queue_name, day in keys_to_examine(days):
            found = days.get((queue_name, day))
            if found is None or not listed(queue_name):
                yield ""
                continue
            counts = {
                "stats": found.failed + found.retries,
                "wait": found.wait.count,
                "run": found.run.count,
            }
            moment = day * DAY // SECOND
            yield from (f"s:{name}:{moment}:{local(queue_name)}" for name in counts if counts[name])
        for tid in list(filter(self.qless.lists_throttle, self.qless.throttles.limits)):
            name = self.qless.client_throttle_name(tid)
            names = (name, f"{name}-locks", f"{name}-pending")
            yield from (
                f"th:{name}" for name in names if self._key_exists(self.writable.throttle(name))
            )
            yield ""
        yield from (
            f"qp:{name}" for name in PATTERN_KEYS if self._key_exists(self.writable.patterns(name))
        )

    @staticmethod
    def _key_exists(key: Key | None) -> bool:
        if key is None:
            return False
        return key.length() > 0 if key.exists is None else key.exists()

    def _job_names(self) -> Iterator[str]:
        for seq in seqs_to_examine(self.engine.tables.jobs):
            job = self._job_with_key(seq)
            yield from ("",) if job is None else self._names_of(job)

    def _names_of(self, job: Job) -> Iterator[str]:
        jid = self.qless.client_name(job.jid)
        yield f"j:{jid}"
        yield f"j:{jid}-history"
        if job.extra is not None and job.extra.blockers and self._jobs.dependencies(job):
            yield f"j:{jid}-dependencies"
        if self.engine.next_dependent(job, 0):
            yield f"j:{jid}-dependents"

    def _job_with_key(self, seq: int) -> Job | None:
        """Return a job that has a key. Of several jobs with one jid, the oldest has the key."""
        job = self.engine.job(seq)
        if job is None or self.engine.find(job.jid) is not job:
            return None
        return job if self.qless.is_in_database(job.queue) else None

    # Tags, failures, workers, numbers

    def _tag(self, tag: str) -> Key:
        tag_times = self.qless.tags.get(tag, {})

        def rows(at_once: bool) -> Iterator[tuple[bytes, float] | None]:
            items: Iterable[Any] = tag_times.items()
            if not at_once:
                items = items_to_examine(tag_times, self.engine.tables.jobs)
            for item in items:
                job = None if item is None else self.engine.job(item[0])
                shown = job is not None and self.qless.is_in_database(job.queue)
                yield (self._jobs.jid(job), item[1] / SECOND) if shown and job is not None else None

        return long_key("zset", rows)

    def _is_listed(self, seq: int) -> bool:
        job = self.engine.job(seq)
        return job is not None and self.qless.is_in_database(job.queue)

    def _has_tags(self) -> bool:
        return any(any(map(self._is_listed, seqs)) for seqs in self.qless.tags.values())

    def _tag_counts(self, _: bool) -> Iterator[tuple[bytes, float] | None]:
        """Return the tags of existing jobs with the number of their jobs, and None in between."""
        tags = self.qless.tags
        for tag in keys_to_examine(tags):
            count = 0
            for number, seq in enumerate(keys_to_examine(tags.get(tag, {})), 1):
                count += self._is_listed(seq)
                if number % TAG_BATCH_SIZE == 0:
                    yield None
            yield (encode_name(tag), float(count)) if count else None

    def _groups(self, at_once: bool) -> Iterator[Any]:
        """Return the groups of failures, without sorting the failures, and None for a failure of
        another database or of a group that was returned before.
        """
        known: set[str] = set()
        for job in self._failed_jobs(at_once):
            mine = job is not None and self.qless.is_in_database(job.queue)
            group = queries.group_of(job) if job is not None and mine else None
            yield None if group is None or group in known else encode_name(group)
            if group is not None:
                known.add(group)

    def _failed_jobs(self, at_once: bool) -> Iterator[Job | None]:
        tables = self.engine.tables
        return chain(
            self._jobs.examine(tables.dead, at_once=at_once),
            self._jobs.examine(tables.dead_untrimmed, at_once=at_once),
        )

    def _failed(self, group: str) -> Key:
        """Return the failures, the newest first."""

        def rows(at_once: bool) -> Iterator[tuple[bytes, float] | None]:
            for number, job in enumerate(self._failed_jobs(at_once)):
                if job is None or not self.qless.is_in_database(job.queue):
                    yield None
                    continue
                mine = queries.group_of(job) == group
                failed_at = 0 if job.history.failure is None else job.history.failure.last_at
                yield (self._jobs.jid(job), (-failed_at, -number)) if mine else None  # type: ignore[misc]

        key = long_key("zset", rows)
        assert key.read_in_slices is not None
        in_order = key.read_in_slices

        def read_in_slices() -> Generator[None, None, list[Any]]:
            members = yield from in_order()
            return (yield from replace_in_slices(members, itemgetter(0)))

        return key._replace(
            key_type="list",
            read=lambda: [jid for jid, _ in key.read()],
            read_in_slices=read_in_slices,
        )

    def _held(self) -> Iterator[Job]:
        """Return the jobs that Qless workers hold, without those that were reported as lost."""
        return filter(self._is_held, self.engine.tables.leased.values())

    def _is_held(self, job: Job) -> bool:
        return (
            job.history.holder_protocol == QLESS
            and self.qless.is_in_database(job.queue)
            and read_details(job).lapsed_at is None
        )

    def _worker(self, rest: str) -> Key | None:
        worker, _, part = rest.rpartition(":")
        if part != "jobs":
            return None
        held = [job for job in self._held() if job.history.holder == worker]
        return zset_key(
            lambda: sorted_scores(
                (self.qless.client_name(job.jid), job.history.deadline / SECOND) for job in held
            )
        )

    def _timed(self, times: dict[str, int]) -> Scores:
        mine = ((name, when) for name, when in times.items() if self.qless.is_in_database(name))
        return sorted_scores((self.qless.client_name(name), when / SECOND) for name, when in mine)

    def _tracked(self, _: bool) -> Iterator[tuple[bytes, float] | None]:
        qless, times = self.qless, self.qless.tracked
        for name in keys_to_examine(times):
            job = self.engine.find(name)
            if qless.lists_tracked(name, job):
                jid = qless.client_name(name)
                when = times.get(qless.engine_name(jid), times.get(jid, 0))
                yield encode_name(jid), when / SECOND
            else:
                yield None

    def _stats(self, rest: str) -> Key | None:
        name, _, more = rest.partition(":")
        moment, _, queue = more.partition(":")
        if not moment.isdigit() or len(moment) > 12:
            return None
        day, remainder = divmod(int(moment) * SECOND, DAY)
        found = self.engine.queue_days().get((self.qless.engine_name(queue), day))
        if found is None or remainder or name not in {"stats", "wait", "run"}:
            return None
        if name == "stats":
            return self._stats_key(found)
        return hash_key(lambda: fields.of_durations(found.wait if name == "wait" else found.run))

    def _stats_key(self, day: QueueDay) -> Key:
        """Return the counts of a day, one of which requires a scan of all failed jobs."""

        def read_in_slices() -> Generator[None, None, Fields]:
            failed = yield from listings.failed_on(self.qless, day.queue, day.day)
            counts = {b"failures": day.failed, b"failed": failed, b"retries": day.retries}
            return [(name, b"%d" % count) for name, count in counts.items() if count]

        def read() -> Fields:
            fields: Fields = run_all_slices(read_in_slices())
            return fields

        def exists() -> bool:
            return bool(day.failed or day.retries or read())

        return Key("hash", lambda: len(read()), read, read_in_slices=read_in_slices, exists=exists)
