"""The keys under `ql:` as Qless would keep them in Redis, made from the engine when somebody looks.

They are for clients that look past the scripts: lengths of queues, due times, tests. What has a
counter or an index costs no more than that; the members of a queue's locks, scheduled and blocked
jobs, and those of a failure group or a worker, are looked for among all jobs of that state.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from math import inf
from typing import Any, Final, NamedTuple

from millrace.engine.job import QLESS, Job
from millrace.engine.queues import Queue
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.engine.stats import DAY, QueueDay, Spread

from . import looking, lua, working
from .part import data_of, part_of, state_of
from .state import SECOND, Qless, Recurring

Scores = list[tuple[bytes, float]]
Fields = list[tuple[bytes, bytes]]

#: How the sets of a queue are named, by the state of the jobs in them.
STATES: Final = {"work": READY, "locks": LEASED, "scheduled": SCHEDULED, "depends": BLOCKED}
#: What a waiting job's time is divided by before its priority, so that it never outweighs one.
TIME_WEIGHS: Final = 10_000_000_000 * SECOND


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
            "config": lambda: _hash(lambda: _fields(qless.config.items()), lambda: qless.config),
        }
        self._families: dict[str, Callable[[str], Key | None]] = {
            "q": self._queue,
            "j": self._job,
            "r": self._recurring,
            "t": self._tag,
            "f": self._failed,
            "w": self._worker,
            "s": self._stats,
        }

    # What is asked of a key

    def kind(self, key: bytes) -> str:
        found = self._find(key)
        return found.kind if found is not None and found.length() else ""

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
            return found.score(_text(member))
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
        return (b"ql:" + name.encode() for name in chain(self._few_names(), self._job_names()))

    def count(self) -> int:
        """As many as there are names, without making the names of all jobs."""
        self.qless.refresh()
        jobs = 2 * len(self.engine.by_jid)
        return jobs + len(self._depending()) + len(self._depended()) + len(list(self._few_names()))

    def _find(self, key: bytes) -> Key | None:
        self.qless.refresh()
        family, colon, rest = _text(key)[3:].partition(":")
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
            yield from (f"q:{queue.name}-{name}" for name, at in STATES.items() if queue.counts[at])
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
            return [(name.encode(), float(number)) for number, name in enumerate(known, 1)]

        return _zset(read)

    def _paused(self) -> list[str]:
        return [queue.name for queue in self.engine.queues.values() if queue.paused]

    def _queue(self, rest: str) -> Key | None:
        name, _, part = rest.rpartition("-")
        if part == "recur":
            return self._recur(name)
        queue = self.engine.queues.get(name)
        if queue is None or part not in STATES:
            return None
        return self._jobs_of(queue, STATES[part])

    def _jobs_of(self, queue: Queue, state: int) -> Key:
        score = _SCORES[state]

        def read() -> Scores:
            if state == READY:  # popped from the highest score down
                jobs = list(queue.ready.first(queue.counts[READY]))[::-1]
                return [(job.jid.encode(), score(job)) for job in jobs]
            found = self.qless.queue_jobs(queue.name, state)
            return _sorted((job.jid, score(job)) for job in found)

        def score_of(jid: str) -> float | None:
            found = self.engine.find_all(jid)
            wanted = (job for job in found if job.state == state and job.queue == queue.name)
            return next(map(score, wanted), None)

        return Key("zset", lambda: queue.counts[state], read, score_of)

    def _recur(self, name: str) -> Key:
        known = self.qless.recurring

        def read() -> Scores:
            mine = (each for each in known.values() if each.queue == name)
            return _sorted((each.jid, each.next / SECOND) for each in mine)

        def score(jid: str) -> float | None:
            found = known.get(jid)
            return None if found is None or found.queue != name else found.next / SECOND

        return _zset(read, score)

    # Jobs

    def _job(self, rest: str) -> Key | None:
        job = self.engine.find(rest)
        if job is not None:
            return self._job_hash(job)
        jid, _, part = rest.rpartition("-")
        job = self.engine.find(jid)
        return None if job is None else self._job_part(job, part)

    def _job_hash(self, job: Job) -> Key:
        return Key("hash", lambda: 1, lambda: _job_fields(job))

    def _job_part(self, job: Job, part: str) -> Key | None:
        if part == "history":
            return _list(lambda: [_stage(*stage) for stage in part_of(job).history])
        if part == "dependencies":
            return _set(lambda: self._dependencies(job))
        if part == "dependents":
            return _set(lambda: [each.jid for each in self.engine.dependents(job)])
        return None

    def _dependencies(self, job: Job) -> list[str]:
        return looking.dependencies(self.qless, job)

    def _recurring(self, jid: str) -> Key | None:
        found = self.qless.recurring.get(jid)
        return None if found is None else Key("hash", lambda: 1, lambda: _recurring_fields(found))

    def _completed(self) -> Key:
        kept = self.engine.kept

        def read() -> Scores:
            return _sorted((job.jid, part_of(job).done_at / SECOND) for job in kept.values())

        return Key("zset", lambda: len(kept), read)

    # Tags, failures, workers, numbers

    def _tag(self, tag: str) -> Key:
        peers = self.qless.tags.get(tag, {})

        def read() -> Scores:
            jobs = looking.tagged(self.qless, tag)
            return [(job.jid.encode(), peers[job.seq] / SECOND) for job in jobs]

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
        return _list(lambda: [job.jid.encode() for job in reversed(found)])

    def _held(self) -> Iterator[Job]:
        """Jobs that Qless's workers have. One whose lock ran out is no longer its worker's."""
        leased = (job for job in self.engine.leased.values() if job.actor == QLESS)
        return (job for job in leased if not part_of(job).grace)

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
        return _hash(lambda: _spread_fields(found.wait if name == "wait" else found.run))

    def _stats_fields(self, day: QueueDay) -> Fields:
        word = b"%d" % (day.day * DAY // SECOND)
        shown = lua.decode(looking.stats(self.qless, day.day * DAY, [day.queue.encode(), word]))
        names = ("failures", "failed", "retries")
        return [(name.encode(), b"%d" % shown[name]) for name in names if shown[name]]


# Kinds of keys


def _zset(read: Callable[[], Scores], score: Callable[[str], float | None] | None = None) -> Key:
    return Key("zset", lambda: len(read()), read, score)


def _hash(read: Callable[[], Fields], sized: Callable[[], Any] | None = None) -> Key:
    return Key("hash", lambda: len((sized or read)()), read)


def _list(read: Callable[[], list[bytes]]) -> Key:
    return Key("list", lambda: len(read()), read)


def _set(read: Callable[[], Iterable[str]]) -> Key:
    def members() -> list[bytes]:
        return [member.encode() for member in read()]

    return Key("set", lambda: len(members()), members)


def _text(word: bytes) -> str:
    return word.decode("utf-8", "replace")


def _sorted(found: Iterable[tuple[str, float]]) -> Scores:
    """The lowest first; of equal ones, by their bytes."""
    members = ((name.encode(), score) for name, score in found)
    return sorted(members, key=lambda member: (member[1], member[0]))


def _timed(moments: dict[str, int]) -> Scores:
    return _sorted((name, when / SECOND) for name, when in moments.items())


# Scores of jobs


def _waiting_score(job: Job) -> float:
    """Priority first, then time; a job whose lock was taken away is ahead of all."""
    return inf if job.rank >= working.FIRST else job.rank - job.place / TIME_WEIGHS


def _put_at(job: Job) -> float:
    puts = (when for when, what, _ in reversed(part_of(job).history) if what == "put")
    return float(next(puts, job.created / SECOND))


def _time(job: Job) -> float:
    """When the job was last put, popped or completed."""
    if job.state == DONE:
        return part_of(job).done_at / SECOND
    if job.state in {LEASED, DEAD}:
        return job.leased_at / SECOND
    return job.ready_at / SECOND if job.state == READY else _put_at(job)


_SCORES: Final[dict[int, Callable[[Job], float]]] = {
    READY: _waiting_score,
    LEASED: lambda job: job.deadline / SECOND,
    SCHEDULED: lambda job: job.due / SECOND,
    BLOCKED: _put_at,
}


# Fields of hashes


def _number(value: lua.Number) -> bytes:
    """As scripts hand numbers to Redis."""
    return b"%d" % value if isinstance(value, int) else b"%.17g" % value


def _moment(microseconds: int) -> bytes:
    whole, rest = divmod(microseconds, SECOND)
    return b"%d" % whole if not rest else _number(microseconds / SECOND)


def _fields(found: Iterable[tuple[str, str]]) -> Fields:
    return [(name.encode(), value.encode()) for name, value in found]


def _tags_json(tags: list[Any]) -> bytes:
    return lua.encode(tags) if tags else lua.NOTHING


def _expires(job: Job) -> bytes:
    """No lock is told in two ways: 0, but nothing at all of a failed job."""
    if job.state == DEAD:
        return b""
    return b"0" if job.state == DONE else _moment(job.deadline)


def _stage(when: float, what: str, more: dict[str, Any] | None) -> bytes:
    return lua.encode([when, what, more] if more else [when, what])


def _job_fields(job: Job) -> Fields:
    part = part_of(job)
    over = job.state in {DONE, DEAD}
    found = [
        (b"jid", job.jid.encode()),
        (b"klass", job.kind.encode()),
        (b"data", data_of(job)),
        (b"priority", _number(part.priority)),
        (b"tags", _tags_json(part.tag_names())),
        (b"state", state_of(job).encode()),
        (b"worker", b"" if over else job.holder.encode()),
        (b"expires", _expires(job)),
        (b"queue", b"" if job.state == DONE else job.queue.encode()),
        (b"retries", b"%d" % job.retries),
        (b"remaining", b"%d" % (job.retries - job.failures)),
        (b"time", b"%.20f" % _time(job)),
    ]
    failure = looking.failure_json(job)
    if failure != lua.NOTHING or job.state == DONE:
        found.append((b"failure", failure))
    if part.spawned_from:
        found.append((b"spawned_from_jid", part.spawned_from.encode()))
    if part.grace:
        found.append((b"grace", b"1"))
    if job.state == BLOCKED and job.due:
        found.append((b"scheduled", _moment(job.due)))
    if part.throttles:
        found.append((b"throttles", lua.encode(part.throttles)))
    return found


def _recurring_fields(recurring: Recurring) -> Fields:
    found = [
        (b"jid", recurring.jid.encode()),
        (b"klass", recurring.klass.encode()),
        (b"data", recurring.data),
        (b"priority", _number(recurring.priority)),
        (b"tags", _tags_json(recurring.tags)),
        (b"state", b"recur"),
        (b"queue", recurring.queue.encode()),
        (b"type", b"interval"),
        (b"count", b"%d" % recurring.count),
        (b"interval", _number(recurring.interval)),
        (b"retries", b"%d" % recurring.retries),
        (b"backlog", _number(recurring.backlog)),
    ]
    if recurring.throttles:
        found.append((b"throttles", lua.encode(recurring.throttles)))
    return found


def _spread_fields(spread: Spread) -> Fields:
    """The spec's names: `s0` and so on are seconds, `m`, `h`, `d` minutes, hours and days."""
    if not spread.count:
        return []
    found = [
        (b"total", b"%d" % spread.count),
        (b"mean", _number(spread.mean)),
        (b"vk", _number(spread.vk)),
    ]
    return found + [(_slot(at), b"%d" % count) for at, count in sorted(spread.histogram.items())]


def _slot(at: int) -> bytes:
    for letter, first in ((b"d", 142), (b"h", 119), (b"m", 60)):
        if at >= first:
            return b"%b%d" % (letter, at - first + 1)
    return b"s%d" % at
