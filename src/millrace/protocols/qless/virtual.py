"""The keys under `ql:` as Qless would keep them in Redis, made from the engine when somebody looks.

They are for clients that look past the scripts: lengths of queues, due times, tests. What has a
counter or an index costs no more than that; the members of a queue's locks, scheduled and blocked
jobs, and those of a failure group or a worker, are looked for among all jobs of that state.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

from millrace.engine.job import QLESS, Job
from millrace.engine.policy import SECOND
from millrace.engine.queues import Queue
from millrace.engine.states import BLOCKED, LEASED, READY, SCHEDULED
from millrace.engine.stats import DAY, QueueDay

from . import fields, looking, lua, patterns
from .fields import Fields
from .names import decode_name, encode_name
from .part import read_part
from .state import PATTERNS, Qless

Scores = list[tuple[bytes, float]]

#: How the sets of a queue are named, by the state of the jobs in them.
STATES: Final = {"work": READY, "locks": LEASED, "scheduled": SCHEDULED, "depends": BLOCKED}
_PATTERNS: Final = ("identifiers", "priorities")


class Key(NamedTuple):
    """A key that may be there: it is if it has any members."""

    kind: str
    length: Callable[[], int]
    read: Callable[[], list[Any]]
    score: Callable[[str], float | None] | None = None


class Virtual:
    def __init__(self, qless: Qless) -> None:
        self.qless = qless
        self.engine = qless.engine
        self._single: dict[str, Callable[[], Key]] = {
            "queues": self._queues,
            "paused_queues": lambda: _set(self._paused),
            "workers": lambda: _zset(lambda: _timed(qless.workers)),
            "tracked": lambda: _zset(lambda: _timed(qless.tracked)),
            "completed": self._completed,
            "failures": lambda: _set(self._groups),
            "tags": lambda: Key("zset", lambda: len(self._used_tags()), self._tag_counts),
            "config": lambda: _hash(lambda: fields.texts(qless.config.items())),
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

    # What is asked of a key

    def kind(self, key: bytes) -> str:
        found = self._find(key)
        return found.kind if found is not None and found.length() else ""

    def ttl(self, key: bytes, now: int) -> int:
        """Only limits of throttles go, by the clock of whoever was served last."""
        limit = key.removeprefix(b"ql:th:")
        if limit == key or decode_name(limit) not in self.qless.throttles.limits:
            return -1
        return self.qless.throttles.ttl(decode_name(limit), now + self.qless.engine.theirs)

    def length(self, key: bytes) -> int:
        found = self._find(key)
        return 0 if found is None else found.length()

    def scores(self, key: bytes) -> Scores:
        return self._read(key)

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

    def count(self) -> int:
        """As many as there are names, without making the names of all jobs."""
        self.qless.refresh()
        jobs = 2 * len(self.engine.by_jid)
        return jobs + len(self._depending()) + len(self._depended()) + len(list(self._few_names()))

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
        """All but those of jobs."""
        yield from (name for name, make in self._single.items() if make().length())
        for queue in self.engine.queues.values():
            states = (*STATES, "throttled") if self.qless.throttles.pending else STATES
            sets = (f"{queue.name}-{name}" for name in states)
            yield from (f"q:{name}" for name in sets if self._has(self._queue(name)))
        yield from (f"q:{name}-recur" for name in {r.queue for r in self.qless.recurring.values()})
        yield from (f"r:{jid}" for jid in self.qless.recurring)
        yield from (f"t:{tag}" for tag in self._used_tags())
        yield from (f"f:{group}" for group in self._groups())
        yield from (f"w:{worker}:jobs" for worker in {job.holder for job in self._held()})
        for (queue_name, day), found in self.engine.count().days.items():
            have = {
                "stats": found.failed + found.retries,
                "wait": found.wait.count,
                "run": found.run.count,
            }
            moment = day * DAY // SECOND
            yield from (f"s:{name}:{moment}:{queue_name}" for name in have if have[name])
        for tid in self.qless.throttles.limits:
            names = (tid, f"{tid}-locks", f"{tid}-pending")
            yield from (f"th:{name}" for name in names if self._has(self._throttle(name)))
        yield from (f"qp:{name}" for name in _PATTERNS if self._has(self._patterns(name)))

    @staticmethod
    def _has(key: Key | None) -> bool:
        return key is not None and key.length() > 0

    def _job_names(self) -> Iterator[str]:
        for jid in self.engine.by_jid:
            yield f"j:{jid}"
            yield f"j:{jid}-history"
        yield from (f"j:{job.jid}-dependencies" for job in self._depending())
        yield from (f"j:{job.jid}-dependents" for job in self._depended())

    def _depending(self) -> list[Job]:
        """Jobs that wait for others."""
        waiting = dict.fromkeys(
            seq
            for seqs in self.engine._dependents.values()  # noqa: SLF001
            for seq in seqs
        )
        return [job for job in map(self._named, waiting) if job and self._dependencies(job)]

    def _depended(self) -> list[Job]:
        """Jobs that others wait for."""
        found = map(self._named, self.engine._dependents)  # noqa: SLF001
        return [job for job in found if job and self.engine.dependents(job)]

    def _named(self, seq: int) -> Job | None:
        """A job that has a key; of several of one jid the oldest has it."""
        job = self.engine.jobs.get(seq)
        return job if job is not None and self.engine.by_jid.get(job.jid) is job else None

    # Queues

    def _queues(self) -> Key:
        """In the order in which they were first seen. The moments are not kept."""

        def read() -> Scores:
            known = (queue.name for queue in self.engine.queues.values() if queue.known)
            return [(encode_name(name), float(number)) for number, name in enumerate(known, 1)]

        return _zset(read)

    def _paused(self) -> list[str]:
        return [queue.name for queue in self.engine.queues.values() if queue.paused]

    def _queue(self, rest: str) -> Key | None:
        name, _, part = rest.rpartition("-")
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
                return [(encode_name(job.jid), score(job)) for job in jobs if job.seq not in out]
            found = self.qless.queue_jobs(queue.name, state)
            return _sorted((job.jid, score(job)) for job in found)

        def score_of(jid: str) -> float | None:
            found = self.engine.find_all(jid)
            wanted = (job for job in found if job.state == state and job.queue == queue.name)
            return next((score(job) for job in wanted if job.seq not in out), None)

        return Key("zset", lambda: queue.counts[state] - len(out), read, score_of)

    def _recur(self, name: str) -> Key:
        known = self.qless.recurring

        def read() -> Scores:
            mine = (each for each in known.values() if each.queue == name)
            return _sorted((each.jid, each.next / SECOND) for each in mine)

        def score(jid: str) -> float | None:
            found = known.get(jid)
            return None if found is None or found.queue != name else found.next / SECOND

        return _zset(read, score)

    # Throttles, and what reqless keeps for its workers

    def _throttle(self, name: str) -> Key | None:
        throttles = self.qless.throttles
        limit = throttles.limits.get(name)
        if limit is not None:
            maximum = fields.number(limit.maximum)
            return _hash(lambda: [(b"id", encode_name(name)), (b"maximum", maximum)])
        tid, _, part = name.rpartition("-")
        if tid not in throttles.limits:
            return None
        if part == "locks":
            return _zset(lambda: _sorted((job.jid, 1.0) for job in throttles.holders(tid)))
        if part == "pending":
            return _zset(lambda: self._waiting_for(throttles.waiting(tid)))
        return None

    def _waiting_for(self, jobs: list[Job]) -> Scores:
        """Jobs that are throttled, by since when they are."""
        found = ((job, read_part(job).throttled) for job in jobs)
        return _sorted((job.jid, aside.since / SECOND) for job, aside in found if aside)

    def _patterns(self, name: str) -> Key | None:
        if name not in _PATTERNS or PATTERNS + name not in self.engine.notes:
            return None
        if name == "identifiers":
            return _hash(lambda: fields.texts(patterns.kept_identifiers(self.qless).items()))
        return _list(lambda: [encode_name(each) for each in patterns.kept_priorities(self.qless)])

    def set_fields(self, key: bytes, fields: dict[bytes, bytes]) -> int:
        return patterns.add_identifiers(self.qless, fields)

    def push(self, key: bytes, items: list[bytes], *, left: bool) -> int:
        return patterns.add_priorities(self.qless, items, left=left)

    def delete(self, key: bytes) -> bool:
        return patterns.forget(self.qless, decode_name(key).rpartition(":")[2])

    # Jobs

    def _job(self, rest: str) -> Key | None:
        job = self.engine.find(rest)
        if job is not None:
            return self._job_hash(job)
        jid, _, part = rest.rpartition("-")
        job = self.engine.find(jid)
        return None if job is None else self._job_part(job, part)

    def _job_hash(self, job: Job) -> Key:
        return Key("hash", lambda: 1, lambda: fields.of_job(job))

    def _job_part(self, job: Job, part: str) -> Key | None:
        if part == "history":
            return _list(lambda: [fields.of_stage(*stage) for stage in read_part(job).history])
        if part == "dependencies":
            return _set(lambda: self._dependencies(job))
        if part == "dependents":
            return _set(lambda: [each.jid for each in self.engine.dependents(job)])
        return None

    def _dependencies(self, job: Job) -> list[str]:
        return looking.dependencies(self.qless, job)

    def _recurring(self, jid: str) -> Key | None:
        found = self.qless.recurring.get(jid)
        return None if found is None else Key("hash", lambda: 1, lambda: fields.of_recurring(found))

    def _completed(self) -> Key:
        kept = self.engine.kept

        def read() -> Scores:
            return _sorted((job.jid, read_part(job).done_at / SECOND) for job in kept.values())

        return Key("zset", lambda: len(kept), read)

    # Tags, failures, workers, numbers

    def _tag(self, tag: str) -> Key:
        peers = self.qless.tags.get(tag, {})

        def read() -> Scores:
            jobs = looking.tagged(self.qless, tag)
            return [(encode_name(job.jid), peers[job.seq] / SECOND) for job in jobs]

        return _zset(read)

    def _used_tags(self) -> list[str]:
        """Tags that a job has which is still there."""
        jobs = self.engine.jobs
        return [tag for tag, seqs in self.qless.tags.items() if any(seq in jobs for seq in seqs)]

    def _tag_counts(self) -> Scores:
        tags, jobs = self.qless.tags, self.engine.jobs
        counts = ((tag, sum(seq in jobs for seq in tags[tag])) for tag in self._used_tags())
        return _sorted((tag, float(count)) for tag, count in counts)

    def _groups(self) -> Iterable[str]:
        """Groups of failures, without putting the failures in order."""
        failed = chain(self.engine.dead.values(), self.engine.dying.values())
        return dict.fromkeys(map(looking.group_of, failed))

    def _failed(self, group: str) -> Key:
        """The newest failure first."""
        found = looking.failure_groups(self.qless).get(group, [])
        return _list(lambda: [encode_name(job.jid) for job in reversed(found)])

    def _held(self) -> Iterator[Job]:
        """Jobs that Qless's workers have. One whose lock ran out is no longer its worker's."""
        leased = (job for job in self.engine.leased.values() if job.actor == QLESS)
        return (job for job in leased if read_part(job).expired_at is None)

    def _worker(self, rest: str) -> Key | None:
        worker, _, part = rest.rpartition(":")
        if part != "jobs":
            return None
        held = [job for job in self._held() if job.holder == worker]
        return _zset(lambda: _sorted((job.jid, job.deadline / SECOND) for job in held))

    def _stats(self, rest: str) -> Key | None:
        name, _, more = rest.partition(":")
        moment, _, queue = more.partition(":")
        if not moment.isdigit() or len(moment) > 12:
            return None
        day, begun = divmod(int(moment) * SECOND, DAY)
        found = self.engine.count().days.get((queue, day))
        if found is None or begun or name not in {"stats", "wait", "run"}:
            return None
        if name == "stats":
            return _hash(lambda: self._stats_fields(found))
        return _hash(lambda: fields.of_spread(found.wait if name == "wait" else found.run))

    def _stats_fields(self, day: QueueDay) -> Fields:
        word = b"%d" % (day.day * DAY // SECOND)
        shown = lua.decode(looking.stats(self.qless, day.day * DAY, [encode_name(day.queue), word]))
        names = ("failures", "failed", "retries")
        return [(encode_name(name), b"%d" % shown[name]) for name in names if shown[name]]


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
    """The lowest first; of equal ones, by their bytes."""
    members = ((encode_name(name), score) for name, score in found)
    return sorted(members, key=lambda member: (member[1], member[0]))


def _timed(moments: dict[str, int]) -> Scores:
    return _sorted((name, when / SECOND) for name, when in moments.items())
