"""The keys under `ql:` as Qless would store them in Redis, computed from the engine on each read.

They serve clients that bypass the scripts: lengths of queues, due times, tests. A value with a
counter or an index costs no more than that access. The locked, scheduled and blocked jobs of a
queue, and the jobs of a failure group or a worker, require a scan of all jobs of that state.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

from millrace.engine.job import QLESS, Job
from millrace.engine.policy import SECOND
from millrace.engine.queues import Queue
from millrace.engine.states import BLOCKED, LEASED, READY, SCHEDULED
from millrace.engine.stats import DAY, QueueDay
from millrace.protocols.errors import ClientError

from . import fields, queries, queue_patterns
from . import lua_values as lua
from .commands import shown
from .contract import THROTTLE_KEY, Refused
from .fields import Fields
from .job_view import read_part
from .names import decode_name, encode_name
from .slices import map_in_slices, sort_in_slices
from .state import Qless

Scores = list[tuple[bytes, float]]

#: Names of the sets of a queue, by the state of their jobs.
STATES: Final = {"work": READY, "locks": LEASED, "scheduled": SCHEDULED, "depends": BLOCKED}
_PATTERNS: Final = ("identifiers", "priorities")


class Key(NamedTuple):
    """A possible key. It exists if it has members."""

    kind: str
    length: Callable[[], int]
    read: Callable[[], list[Any]]
    score: Callable[[str], float | None] | None = None
    #: The same as `read`, in slices, for keys that may have a large number of members.
    slices: Callable[[], Generator[None, None, Scores]] | None = None


class RedisView:
    def __init__(self, qless: Qless) -> None:
        self.qless = qless
        self.engine = qless.engine
        self._single: dict[str, Callable[[], Key]] = {
            "queues": self._queues,
            "paused_queues": lambda: _set(self._paused),
            "workers": lambda: _zset(lambda: self._timed(qless.workers)),
            "tracked": lambda: _zset(self._tracked),
            "completed": self._completed,
            "failures": lambda: _set(self._groups),
            "tags": lambda: Key("zset", lambda: len(self._used_tags()), self._tag_counts),
            "config": lambda: _hash(lambda: fields.texts(queries.config_of(qless).items())),
        }
        self._families: dict[str, Callable[[str], Key | None]] = {
            "q": self._queue,
            "j": self._job,
            "r": self._recurring,
            "t": self._tag,
            "f": self._failed,
            "w": self._worker,
            "s": self._stats,
            "th": self._throttle,
            "qp": self._patterns,
        }

    # Read access to a key

    def kind(self, key: bytes) -> str:
        found = self._find(key)
        return found.kind if found is not None and found.length() else ""

    def ttl(self, key: bytes, now: int) -> int:
        """Return the time to live. Only throttle limits expire, by the last caller's clock."""
        name = key.removeprefix(b"ql:th:")
        tid = self.qless.scoped_throttle(decode_name(name))
        if name == key or tid not in self.qless.throttles.limits:
            return -1
        return self.qless.throttles.ttl(tid, now + self.qless.engine.theirs)

    def length(self, key: bytes) -> int:
        found = self._find(key)
        return 0 if found is None else found.length()

    def scores(self, key: bytes) -> Scores:
        return self._read(key)

    def range(self, key: bytes, first: int, last: int) -> Generator[None, None, Scores]:
        found = self._find(key)
        if found is None:
            return []
        scores: Scores = found.read() if found.slices is None else (yield from found.slices())
        first = max(0, first + len(scores)) if first < 0 else first
        last = last + len(scores) if last < 0 else last
        return scores[first : max(first, last + 1)]

    def scan(self, start: int, count: int) -> tuple[int, list[bytes]]:
        self.qless.refresh()
        names = list(self._few_names()) if start == 0 else []
        jobs = (self._named(seq) for seq in range(start, min(start + count, self.engine.next_seq)))
        for job in filter(None, jobs):
            names += self._names_of(job)
        following = start + count if start + count < self.engine.next_seq else 0
        return following, [b"ql:" + encode_name(name) for name in names]

    def score(self, key: bytes, member: bytes) -> float | None:
        found = self._find(key)
        if found is None:
            return None
        if found.score is not None:
            return found.score(decode_name(member))
        scores: Scores = found.read()
        return dict(scores).get(member)

    def fields(self, key: bytes) -> Fields:
        return self._read(key)

    def items(self, key: bytes) -> list[bytes]:
        return self._read(key)

    def members(self, key: bytes) -> list[bytes]:
        return self._read(key)

    def names(self) -> Iterable[bytes]:
        self.qless.refresh()
        return (b"ql:" + encode_name(name) for name in chain(self._few_names(), self._job_names()))

    def _find(self, key: bytes) -> Key | None:
        self.qless.refresh()
        family, colon, rest = decode_name(key)[3:].partition(":")
        if colon:
            return self._families[family](rest) if family in self._families else None
        return self._single[family]() if family in self._single else None

    def _read(self, key: bytes) -> list[Any]:
        found = self._find(key)
        return [] if found is None else found.read()

    # Names

    def _few_names(self) -> Iterator[str]:
        """Return all names except the names of jobs."""
        yield from (name for name, make in self._single.items() if make().length())
        local, listed = self.qless.local, self.qless.is_listed
        for queue in list(self.engine.queues.values()):
            if not listed(queue.name):
                continue
            states = (*STATES, "throttled") if self.qless.throttles.pending else STATES
            sets = (f"{local(queue.name)}-{name}" for name in states)
            yield from (f"q:{name}" for name in sets if self._has(self._queue(name)))
        recurring = [each for each in self.qless.recurring.values() if listed(each.queue)]
        yield from (f"q:{local(name)}-recur" for name in {each.queue for each in recurring})
        yield from (f"r:{local(each.jid)}" for each in recurring)
        yield from (f"t:{tag}" for tag in self._used_tags())
        yield from (f"f:{group}" for group in self._groups())
        yield from (f"w:{worker}:jobs" for worker in {job.holder for job in self._held()})
        for (queue_name, day), found in list(self.engine.count().days.items()):
            if not listed(queue_name):
                continue
            have = {
                "stats": found.failed + found.retries,
                "wait": found.wait.count,
                "run": found.run.count,
            }
            moment = day * DAY // SECOND
            yield from (f"s:{name}:{moment}:{local(queue_name)}" for name in have if have[name])
        for tid in list(filter(self.qless.owns_throttle, self.qless.throttles.limits)):
            name = self.qless.local_throttle(tid)
            names = (name, f"{name}-locks", f"{name}-pending")
            yield from (f"th:{name}" for name in names if self._has(self._throttle(name)))
        yield from (f"qp:{name}" for name in _PATTERNS if self._has(self._patterns(name)))

    @staticmethod
    def _has(key: Key | None) -> bool:
        return key is not None and key.length() > 0

    def _job_names(self) -> Iterator[str]:
        # A copy: other clients may add and remove jobs between two slices.
        for job in list(self.engine.by_jid.values()):
            if self._named(job.seq) is job:
                yield from self._names_of(job)

    def _names_of(self, job: Job) -> Iterator[str]:
        jid = self.qless.local(job.jid)
        yield f"j:{jid}"
        yield f"j:{jid}-history"
        if job.extra is not None and job.extra.blockers and self._dependencies(job):
            yield f"j:{jid}-dependencies"
        if self.engine.dependents(job):
            yield f"j:{jid}-dependents"

    def _named(self, seq: int) -> Job | None:
        """Return a job that has a key. Of several jobs with one jid, the oldest has the key."""
        job = self.engine.jobs.get(seq)
        if job is None or self.engine.by_jid.get(job.jid) is not job:
            return None
        return job if self.qless.is_listed(job.queue) else None

    # Queues

    def _queues(self) -> Key:
        """Return the queues by the time of their first put."""

        def read() -> Scores:
            seen, local = self.qless.first_seen, self.qless.local
            names = queries.queue_names(self.qless)
            return [(encode_name(local(name)), seen.get(name, 0) / SECOND) for name in names]

        return _zset(read)

    def _paused(self) -> list[str]:
        known = [queue.name for queue in self.engine.queues.values() if queue.paused]
        paused = dict.fromkeys((*known, *sorted(self.qless.paused_ahead)))
        return [self.qless.local(name) for name in paused if self.qless.is_listed(name)]

    def _queue(self, rest: str) -> Key | None:
        name, _, part = self.qless.scoped(rest).rpartition("-")
        if part == "recur":
            return self._recur(name)
        queue = self.engine.queues.get(name)
        if queue is not None and part == "throttled":
            return _zset(lambda: self._waiting_for(self.qless.throttles.throttled(name)))
        if queue is None or part not in STATES:
            return None
        return self._jobs_of(queue, STATES[part])

    def _jobs_of(self, queue: Queue, state: int) -> Key:
        score = fields.SCORES[state]
        throttles = self.qless.throttles
        aside = throttles.throttled(queue.name) if state == READY and throttles.pending else []
        out = {job.seq for job in aside}

        def read() -> Scores:
            if state == READY:  # popped from the highest score down
                jobs = list(queue.ready.first(queue.counts[READY]))[::-1]
                return [(self._jid(job), score(job)) for job in jobs if job.seq not in out]
            found = self.qless.queue_jobs(queue.name, state)
            return _sorted((self.qless.local(job.jid), score(job)) for job in found)

        def score_of(jid: str) -> float | None:
            first = self.qless.find(jid)
            found = [] if first is None else self.engine.find_all(first.jid)
            wanted = (job for job in found if job.state == state and job.queue == queue.name)
            return next((score(job) for job in wanted if job.seq not in out), None)

        def slices() -> Generator[None, None, Scores]:
            if state == READY:
                ready = [job for job in queue.ready if job.seq not in out]
                order = yield from sort_in_slices(
                    (job.rank, -job.place, -job.seq, job) for job in ready
                )
                return (yield from map_in_slices(order, lambda row: member(row[3])))
            found = list(self.engine.index_of(state).values())
            rows = yield from sort_in_slices(
                (score(job), self._jid(job)) for job in found if _is_in(job, queue, state)
            )
            return (yield from map_in_slices(rows, lambda row: (row[1], row[0])))

        def member(job: Job) -> tuple[bytes, float]:
            return self._jid(job), score(job)

        return Key("zset", lambda: queue.counts[state] - len(out), read, score_of, slices)

    def _recur(self, name: str) -> Key:
        known = self.qless.recurring

        def read() -> Scores:
            mine = (each for each in known.values() if each.queue == name)
            return _sorted((self.qless.local(each.jid), each.next / SECOND) for each in mine)

        def score(jid: str) -> float | None:
            found = known.get(self.qless.scoped(jid))
            return None if found is None or found.queue != name else found.next / SECOND

        return _zset(read, score)

    # Throttles, and the data that reqless stores for its workers

    def _throttle(self, name: str) -> Key | None:
        throttles = self.qless.throttles
        limit = throttles.limits.get(self.qless.scoped_throttle(name))
        if limit is not None:
            maximum = fields.number(limit.maximum)
            return _hash(lambda: [(b"id", encode_name(name)), (b"maximum", maximum)])
        tid, _, part = self.qless.scoped_throttle(name).rpartition("-")
        if tid not in throttles.limits:
            return None
        if part == "locks":
            return _zset(
                lambda: _sorted((self.qless.local(job.jid), 1.0) for job in throttles.holders(tid))
            )
        if part == "pending":
            return _zset(lambda: self._waiting_for(throttles.waiting(tid)))
        return None

    def _waiting_for(self, jobs: list[Job]) -> Scores:
        """Return throttled jobs, by the time since when they wait."""
        found = ((job, read_part(job).throttled) for job in jobs)
        local = self.qless.local
        return _sorted((local(job.jid), aside.since / SECOND) for job, aside in found if aside)

    def _patterns(self, name: str) -> Key | None:
        if name not in _PATTERNS or not queue_patterns.is_kept(self.qless, name):
            return None
        if name == "identifiers":
            return _hash(lambda: fields.texts(queue_patterns.kept_identifiers(self.qless).items()))
        return _list(
            lambda: [encode_name(each) for each in queue_patterns.kept_priorities(self.qless)]
        )

    def set_fields(self, key: bytes, fields: dict[bytes, bytes], now: int) -> int:
        if not key.startswith(THROTTLE_KEY):
            return queue_patterns.add_identifiers(self.qless, fields)
        return self._set_throttle(self._tid(key), fields, now + self.engine.theirs)

    def _set_throttle(self, tid: str, fields: dict[bytes, bytes], now: int) -> int:
        """Set the maximum of a limit, and return the number of new fields. The id is part of the
        key.
        """
        if self.engine.halted:
            raise Refused
        self.qless.refresh()
        throttles = self.qless.throttles
        limit = throttles.limit(tid, now)
        maximum = 0 if limit is None else limit.maximum
        if b"maximum" in fields:
            found = lua.tonumber(fields[b"maximum"])
            if found is None:
                raise ClientError("ERR the maximum of a throttle is a number")
            maximum = found
        if unknown := fields.keys() - {b"id", b"maximum"}:
            raise ClientError(f"ERR a throttle has no field '{shown(min(unknown))}'")
        throttles.set(tid, maximum, 0, now)
        return len(fields) if limit is None else 0

    def _tid(self, key: bytes) -> str:
        return self.qless.scoped_throttle(decode_name(key.removeprefix(THROTTLE_KEY)))

    def push(self, key: bytes, items: list[bytes], *, left: bool) -> int:
        return queue_patterns.add_priorities(self.qless, items, left=left)

    def delete(self, key: bytes, now: int) -> bool:
        if key.startswith(THROTTLE_KEY):
            self.qless.refresh()
            throttles, tid = self.qless.throttles, self._tid(key)
            if tid not in throttles.limits:
                return False
            if self.engine.halted:
                raise Refused
            throttles.delete(tid, now + self.engine.theirs)
            return True
        return queue_patterns.forget(self.qless, decode_name(key).rpartition(":")[2])

    # Jobs

    def _job(self, rest: str) -> Key | None:
        job = self.qless.find(rest)
        if job is not None:
            return self._job_hash(job)
        jid, _, part = rest.rpartition("-")
        job = self.qless.find(jid)
        return None if job is None else self._job_part(job, part)

    def _job_hash(self, job: Job) -> Key:
        return Key("hash", lambda: 1, lambda: fields.of_job(self.qless, job))

    def _job_part(self, job: Job, part: str) -> Key | None:
        if part == "history":
            return _list(lambda: [fields.of_stage(*stage) for stage in read_part(job).history])
        if part == "dependencies":
            return _set(lambda: self._dependencies(job))
        if part == "dependents":
            return _set(
                lambda: [self.qless.local(each.jid) for each in self.engine.dependents(job)]
            )
        return None

    def _dependencies(self, job: Job) -> list[str]:
        return queries.dependencies(self.qless, job)

    def _recurring(self, jid: str) -> Key | None:
        found = self.qless.recurring.get(self.qless.scoped(jid))
        if found is None:
            return None
        return Key("hash", lambda: 1, lambda: fields.of_recurring(self.qless, found))

    def _completed(self) -> Key:
        def read() -> Scores:
            done = ((self.qless.local(job.jid), read_part(job)) for job in queries.completed(q))
            return _sorted((jid, part.done_at / SECOND) for jid, part in done)

        q = self.qless
        return Key("zset", lambda: len(queries.completed(q)), read)

    # Tags, failures, workers, numbers

    def _tag(self, tag: str) -> Key:
        peers = self.qless.tags.get(tag, {})

        def read() -> Scores:
            jobs = queries.tagged(self.qless, tag)
            return [(self._jid(job), peers[job.seq] / SECOND) for job in jobs]

        return _zset(read)

    def _used_tags(self) -> list[str]:
        """Return the tags of existing jobs."""
        return [tag for tag, seqs in self.qless.tags.items() if any(map(self._is_listed, seqs))]

    def _is_listed(self, seq: int) -> bool:
        job = self.engine.jobs.get(seq)
        return job is not None and self.qless.is_listed(job.queue)

    def _jid(self, job: Job) -> bytes:
        return encode_name(self.qless.local(job.jid))

    def _tag_counts(self) -> Scores:
        tags, listed = self.qless.tags, self._is_listed
        counts = ((tag, sum(map(listed, tags[tag]))) for tag in self._used_tags())
        return _sorted((tag, float(count)) for tag, count in counts)

    def _groups(self) -> Iterable[str]:
        """Return the groups of failures, without sorting the failures."""
        failed = chain(self.engine.dead.values(), self.engine.dying.values())
        mine = (job for job in failed if self.qless.is_listed(job.queue))
        return dict.fromkeys(map(queries.group_of, mine))

    def _failed(self, group: str) -> Key:
        """Return the failures, the newest first."""
        found = queries.failure_groups(self.qless).get(group, [])
        return _list(lambda: [self._jid(job) for job in reversed(found)])

    def _held(self) -> Iterator[Job]:
        """Return the jobs that Qless workers hold. A job with an expired lock is excluded."""
        leased = (job for job in self.engine.leased.values() if job.actor == QLESS)
        mine = (job for job in leased if self.qless.is_listed(job.queue))
        return (job for job in mine if read_part(job).expired_at is None)

    def _worker(self, rest: str) -> Key | None:
        worker, _, part = rest.rpartition(":")
        if part != "jobs":
            return None
        held = [job for job in self._held() if job.holder == worker]
        return _zset(
            lambda: _sorted((self.qless.local(job.jid), job.deadline / SECOND) for job in held)
        )

    def _timed(self, times: dict[str, int]) -> Scores:
        mine = ((name, when) for name, when in times.items() if self.qless.is_listed(name))
        return _sorted((self.qless.local(name), when / SECOND) for name, when in mine)

    def _tracked(self) -> Scores:
        times = self.qless.tracked
        names = [jid for jid, _ in queries.tracked_jobs(self.qless)]
        found = ((jid, times.get(self.qless.scoped(jid), times.get(jid, 0))) for jid in names)
        return _sorted((jid, when / SECOND) for jid, when in found)

    def _stats(self, rest: str) -> Key | None:
        name, _, more = rest.partition(":")
        moment, _, queue = more.partition(":")
        if not moment.isdigit() or len(moment) > 12:
            return None
        day, begun = divmod(int(moment) * SECOND, DAY)
        found = self.engine.count().days.get((self.qless.scoped(queue), day))
        if found is None or begun or name not in {"stats", "wait", "run"}:
            return None
        if name == "stats":
            return _hash(lambda: self._stats_fields(found))
        return _hash(lambda: fields.of_spread(found.wait if name == "wait" else found.run))

    def _stats_fields(self, day: QueueDay) -> Fields:
        word, name = b"%d" % (day.day * DAY // SECOND), encode_name(self.qless.local(day.queue))
        shown = lua.decode(queries.stats(self.qless, day.day * DAY, [name, word]))
        names = ("failures", "failed", "retries")
        return [(encode_name(name), b"%d" % shown[name]) for name in names if shown[name]]


def _is_in(job: Job, queue: Queue, state: int) -> bool:
    return job.state == state and job.queue == queue.name


# Kinds of keys


def _zset(read: Callable[[], Scores], score: Callable[[str], float | None] | None = None) -> Key:
    return Key("zset", lambda: len(read()), read, score)


def _hash(read: Callable[[], Fields]) -> Key:
    return Key("hash", lambda: len(read()), read)


def _list(read: Callable[[], list[bytes]]) -> Key:
    return Key("list", lambda: len(read()), read)


def _set(read: Callable[[], Iterable[str]]) -> Key:
    def members() -> list[bytes]:
        return [encode_name(member) for member in read()]

    return Key("set", lambda: len(members()), members)


def _sorted(found: Iterable[tuple[str, float]]) -> Scores:
    """Sort by score, the lowest first, then by bytes."""
    members = ((encode_name(name), score) for name, score in found)
    return sorted(members, key=lambda member: (member[1], member[0]))
