"""The state that Qless stores in addition to the jobs of the engine, and the indexes of its
commands.

Configuration, tracking and recurring jobs are notes of the engine, so they are durable. All other
state is computed from the notes and the jobs at startup and after each revert of the engine. An
index may be out of date after a change by another protocol, so every entry is checked when it is
used.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.engine.engine import Engine
from millrace.engine.job import QLESS, Job
from millrace.engine.states import GONE, LEASED, READY, SCHEDULED
from millrace.engine.stats import KEPT_DAYS

from . import lua_values as lua
from .job_view import Part, part_of, read_part
from .names import encode_name
from .throttles import NOTE as _THROTTLE
from .throttles import OF_QUEUE, Throttles

if TYPE_CHECKING:
    from .hub import QlessHub


_CONFIG: Final = "qless/config/"
_TRACKED: Final = "qless/tracked/"
_RECURRING: Final = "qless/recurring/"
_QUEUE: Final = "qless/queue/"
_PAUSED: Final = "qless/paused/"
_WORKER: Final = "qless/worker/"
PATTERNS: Final = "qless/patterns/"
#: Notes that FLUSHALL removes.
_NOTES: Final = (_CONFIG, _TRACKED, _RECURRING, _QUEUE, _PAUSED, _WORKER, _THROTTLE, PATTERNS)

DEFAULTS: Final[dict[str, Any]] = {
    "application": "qless",
    "heartbeat": 60,
    "grace-period": 10,
    "stats-history": 30,
    "histogram-history": 7,
    "jobs-history-count": 50000,
    "jobs-history": 604800,
}
#: Options with a default that lists omit.
UNLISTED: Final = {"max-worker-age": 86400, "max-job-history": 100}
#: Maximum number of workers in the list, as clients choose their names.
MAX_WORKERS: Final = 10_000
#: The time of a worker's last activity is written again after this number of microseconds.
WORKER_NOTE_INTERVAL: Final = 60_000_000

#: Events of tracked jobs that dialect A publishes, under the names that it uses.
_BARE: Final = frozenset({"put", "popped", "completed", "failed", "stalled", "canceled"}) | {
    "track",
    "untrack",
}

#: Causes that place a ready job after the other jobs of its priority.
_ARRIVALS: Final = frozenset({"due", "failed", "moved", "unblocked", "requeued"})
#: Number of times, per queue, for which the next place is remembered, and number of such queues.
MAX_TIES: Final = 64
MAX_TIED_QUEUES: Final = 10_000

Heap = list[tuple[int, int]]


_DATABASE: Final = re.compile(r"db(?:[1-9]|1[0-5]):")


def database_prefix(number: int) -> str:
    return f"db{number}:" if number else ""


def database_of(name: str) -> str:
    """Return the prefix of the database of an engine's name. It is empty for database 0."""
    found = _DATABASE.match(name)
    return "" if found is None else found[0]


def is_held(job: Job, worker: str) -> bool:
    """Return whether this worker holds the job. Another protocol may have a worker of this name."""
    return job.holder == worker and job.actor == QLESS


class Recurring(msgspec.Struct, array_like=True, gc=False):
    """A recurring job."""

    jid: str
    klass: str
    data: bytes
    queue: str
    interval: float
    priority: float
    retries: int
    backlog: float
    tags: list[Any]
    next: int
    count: int = 0
    throttles: list[str] = []
    lower_first: bool = False
    #: Whether the throttle of its queue is one of its throttles.
    own_throttle: bool = True


class Qless:
    def __init__(self, hub: "QlessHub") -> None:
        self.hub = hub
        self.engine: Engine = hub.engine
        #: Workers, and the time of the last activity of each.
        self.workers: OrderedDict[str, int] = OrderedDict()
        #: Whether the current command is of dialect A or of the spec. Its channels have no prefix.
        self.early = False
        #: Whether the lower priority number runs first in the dialect of the current command.
        self.lower_first = False
        self._built_for = (-1, -1)
        self.config: dict[str, str] = {}
        self._configured()
        self.tracked: dict[str, int] = {}
        self.recurring: dict[str, Recurring] = {}
        #: Time of the first put of each queue, by the callers' clocks.
        self.first_seen: dict[str, int] = {}
        #: Queues that were paused before their first job was put.
        self.paused_ahead: set[str] = set()
        #: Expiry times of locks and due times of scheduled jobs per queue, by the callers' clocks.
        self.locks: dict[str, Heap] = {}
        self.schedule: dict[str, Heap] = {}
        #: tag -> seq -> when
        self.tags: dict[str, dict[int, int]] = {}
        self.throttles = Throttles(self)
        #: queue -> time -> distance of the latest place of that time from the time
        self._ties: dict[str, dict[int, int]] = {}

    def attend(self, job: Job, cause: str, actor: int, now: int) -> None:
        """Update the indexes after a change to a job that has a part, including changes by other
        protocols.
        """
        if job.state == READY and job.origin == QLESS and cause in _ARRIVALS:
            job.place = job.due if cause == "due" else self.next_place(job.queue, job.ready_at)
        if cause == "unblocked" and job.state == SCHEDULED and job.origin == QLESS:
            self.plan(job)
        elif job.state == GONE:
            self.set_tags(job, part_of(job), [])
        elif actor != QLESS and cause == "completed":
            part_of(job).done_at = now + self.engine.theirs
        elif actor != QLESS and cause == "leased":
            part = part_of(job)
            part.expired_at = None
            if part.stalled or part.throttled is not None:
                part.stalled, part.throttled, job.rank = False, None, part.rank

    # Building

    def refresh(self) -> None:
        """Rebuild all indexes if the engine was reverted or flushed since the last call."""
        if self._built_for != (self.engine.reverts, self.engine.wipes):
            self._build()

    def _build(self) -> None:
        engine = self.engine
        self._built_for = (engine.reverts, engine.wipes)
        self.config.clear()
        self.tracked.clear()
        self.recurring.clear()
        self.first_seen.clear()
        self.paused_ahead.clear()
        for key, value in engine.notes.items():
            if key.startswith(_CONFIG):
                self.config[key[len(_CONFIG) :]] = value.decode()
            elif key.startswith(_TRACKED):
                self.tracked[key[len(_TRACKED) :]] = int(value)
            elif key.startswith(_RECURRING):
                recurring = msgspec.msgpack.decode(value, type=Recurring)
                self.recurring[recurring.jid] = recurring
            elif key.startswith(_QUEUE):
                self.first_seen[key[len(_QUEUE) :]] = int(value)
            elif key.startswith(_PAUSED):
                self.paused_ahead.add(key[len(_PAUSED) :])
            elif key.startswith(_WORKER):
                self.workers.setdefault(key[len(_WORKER) :], int(value))
        self._configured()
        self.tracked = dict(sorted(self.tracked.items(), key=lambda item: (item[1], item[0])))
        self.locks, self.schedule, self.tags = {}, {}, {}
        self._ties.clear()
        self.throttles.build(engine.notes)
        for job in engine.jobs.values():
            self.index(job)
        for heap in (*self.locks.values(), *self.schedule.values()):
            heapify(heap)
        done = sorted(engine.kept.values(), key=lambda job: read_part(job).done_at)
        engine.kept.clear()
        engine.kept.update((job.seq, job) for job in done)

    def index(self, job: Job) -> None:
        if job.state == LEASED and job.actor == QLESS:
            self.locks.setdefault(job.queue, []).append((job.deadline, job.seq))
            self.workers.setdefault(job.holder, job.leased_at)
        elif job.state == SCHEDULED and job.origin == QLESS:
            self.schedule.setdefault(job.queue, []).append((job.due, job.seq))
        if job.extra is not None and (job.extra.own is not None or job.extra.tags):
            for tag, when in read_part(job).tags:
                self.tags.setdefault(str(tag), {})[job.seq] = when
        self.throttles.index(job)

    def flush(self) -> None:
        """Remove all state except the scripts."""
        for key in list(self.engine.notes):
            if key.startswith(_NOTES):
                self.engine.note(key, None)
        self.workers.clear()
        self._build()

    def forget_all(self, *, everything: bool) -> None:
        """Remove the settings, empty queues and statistics of the current or of all databases."""
        for key in list(self.engine.notes):
            prefix = next((each for each in _NOTES if key.startswith(each)), "")
            name = key[len(prefix) :].removeprefix(OF_QUEUE if prefix == _THROTTLE else "")
            if prefix and (everything or self.is_listed(name)):
                self.engine.note(key, None)
        for worker in [name for name in self.workers if everything or self.is_listed(name)]:
            del self.workers[worker]
        seen = [name for name in self.first_seen if everything or self.is_listed(name)]
        empty = [name for name in seen if not self._has_jobs(name)]
        for name in empty:
            self.engine.forget_queue(name)
        self.engine.forget_statistics(empty)
        self._build()

    def _has_jobs(self, name: str) -> bool:
        queue = self.engine.queues.get(name)
        return queue is not None and any(queue.counts)

    def hear(self, worker: str, now: int) -> None:
        """Record the activity of a worker."""
        workers, worker = self.workers, self.scoped(worker)
        if worker not in workers:
            self._forget_workers(now)
        workers[worker] = now
        workers.move_to_end(worker)
        key = _WORKER + worker
        kept = self.engine.notes.get(key)
        if kept is None or abs(now - int(kept)) >= WORKER_NOTE_INTERVAL:
            self.engine.note_unacknowledged(key, b"%d" % now)

    def forget_worker(self, worker: str) -> None:
        """Remove a worker from the list."""
        self.workers.pop(worker, None)
        if _WORKER + worker in self.engine.notes:
            self.engine.note(_WORKER + worker, None)

    def _forget_workers(self, now: int) -> None:
        oldest = now - lua.moment(self.setting("max-worker-age"))
        workers = self.workers
        while workers:
            name, heard = next(iter(workers.items()))
            if heard > oldest and len(workers) < MAX_WORKERS:
                return
            self.forget_worker(name)

    # Finding

    def find(self, jid: str) -> Job | None:
        """Return the job with an id in the current database."""
        by_jid, prefix = self.engine.by_jid, self.hub.prefix
        if not prefix:
            return by_jid.get(jid)
        job = by_jid.get(prefix + jid)
        if job is None:  # another protocol may have pushed it into a queue of this database
            job = by_jid.get(jid)
            job = job if job is not None and job.queue.startswith(prefix) else None
        return job

    def find_held(self, jid: str, worker: str, now: int) -> Job | None:
        """Find a job like `find`, but prefer the job that this worker holds. A crash may lose the
        lock of a job that was sent to a worker. The worker then gets the lock back unless another
        worker holds it.
        """
        job = self.find(jid)
        if job is None:
            return None
        mine = self.engine.find_leased(job.jid, QLESS, worker)
        if mine is not None and is_held(mine, worker):
            return mine
        if job.state == READY:
            self._reclaim_lock(job, worker, now)
        return job

    def _reclaim_lock(self, job: Job, worker: str, now: int) -> None:
        part = read_part(job)
        if part.stalled or part.throttled is not None:
            return  # it lost its lock before the crash, or waits for a throttle
        if self.engine.reclaim(job, worker, QLESS, now):
            part_of(job).add("popped", now, self.max_history, {"worker": worker})
            self.hear(worker, now)
            self.lock(job)
            self.throttles.index(job)

    # Databases: names of database 5 have the prefix `db5:` in the engine, and names of database 0
    # have no prefix

    def scoped(self, name: str) -> str:
        """Return the engine's name for a client's name."""
        return self.hub.prefix + name

    def local(self, name: str) -> str:
        """Return the client's name for an engine's name."""
        prefix = self.hub.prefix
        return name.removeprefix(prefix) if prefix else name

    def is_listed(self, name: str) -> bool:
        """Return whether a name belongs to the current database."""
        prefix = self.hub.prefix
        if prefix:
            return name.startswith(prefix)
        return not name.startswith("db") or database_of(name) == ""

    def scoped_throttle(self, tid: str) -> str:
        if tid.startswith(OF_QUEUE):
            return OF_QUEUE + self.scoped(tid.removeprefix(OF_QUEUE))
        return self.scoped(tid)

    def local_throttle(self, tid: str) -> str:
        if tid.startswith(OF_QUEUE):
            return OF_QUEUE + self.local(tid.removeprefix(OF_QUEUE))
        return self.local(tid)

    def owns_throttle(self, tid: str) -> bool:
        return self.is_listed(tid.removeprefix(OF_QUEUE))

    def queue_jobs(self, name: str, state: int) -> Iterator[Job]:
        """Return the jobs of a queue in a state other than ready. This scans all jobs of that
        state.
        """
        index = self.engine.index_of(state)
        return (job for job in index.values() if job.queue == name)

    def recurring_count(self, queue: str) -> int:
        """Return the number of recurring jobs of a queue."""
        return sum(each.queue == queue for each in self.recurring.values())

    # Places: the order of jobs that have the same priority

    def place(self, queue: str, now: int) -> int:
        """Return the place of a new job. Its number sorts it after all jobs of the same place."""
        ties = self._ties.get(queue) if self._ties else None
        return now if ties is None else now + ties.get(now, 0)

    def next_place(self, queue: str, now: int) -> int:
        """Return the place of an older job that is ready again: after all jobs of the same time."""
        if len(self._ties) > MAX_TIED_QUEUES:
            self._ties.clear()
        ties = self._ties.setdefault(queue, {})
        behind = ties.pop(now, 0) + 1
        ties[now] = behind
        if len(ties) > MAX_TIES:
            del ties[next(iter(ties))]
        return now + behind

    # Locks and due times

    def lock(self, job: Job) -> None:
        heap = self.locks.setdefault(job.queue, [])
        heappush(heap, (job.deadline, job.seq))
        if len(heap) > 64 + 2 * self.engine.queues[job.queue].counts[LEASED]:
            heap[:] = [(held.deadline, held.seq) for held in self.locked(job.queue)]

    def plan(self, job: Job) -> None:
        heap = self.schedule.setdefault(job.queue, [])
        heappush(heap, (job.due, job.seq))
        if len(heap) > 64 + 2 * self.engine.queues[job.queue].counts[SCHEDULED]:
            heap[:] = sorted(e for e in set(heap) if self._is_planned(job.queue, *e))

    def expired(self, queue: str, now: int, most: float) -> list[Job]:
        """Return jobs with an expired lock, the oldest first. The locks remain in the heap."""
        heap = self.locks.get(queue)
        if not heap or heap[0][0] > now:
            return []
        found: dict[int, Job] = {}
        seen: Heap = []
        while heap and heap[0][0] <= now and len(found) < most:
            entry = heappop(heap)
            job = self.engine.jobs.get(entry[1])
            if job is not None and self._is_lock(job, queue, entry[0]) and job.seq not in found:
                found[job.seq] = job
                seen.append(entry)
        for entry in seen:
            heappush(heap, entry)
        return list(found.values())

    def locked(self, queue: str) -> list[Job]:
        """Return all jobs of a queue that have a lock, the oldest lock first."""
        heap = self.locks.get(queue, ())
        jobs = ((entry, self.engine.jobs.get(entry[1])) for entry in sorted(set(heap)))
        return [job for entry, job in jobs if job and self._is_lock(job, queue, entry[0])]

    def running(self, queue: str, now: int) -> int:
        """Return the number of jobs of a queue that a worker holds under a lock that has not
        expired.
        """
        known = self.engine.queues.get(queue)
        held = 0 if known is None else known.counts[LEASED]
        return held - len(self.expired(queue, now - 1, held))

    def _is_lock(self, job: Job, queue: str, deadline: int) -> bool:
        held = job.state == LEASED and job.actor == QLESS
        return held and job.queue == queue and job.deadline == deadline

    def make_due(self, queue: str, now: int, most: float) -> None:
        """Make scheduled jobs ready when they are due."""
        heap = self.schedule.get(queue)
        while heap and heap[0][0] <= now and most > 0 and not self.engine.halted:
            due, seq = heappop(heap)
            if self._is_planned(queue, due, seq):
                self.engine.fall_due(self.engine.jobs[seq], now)
                most -= 1

    def _is_planned(self, queue: str, due: int, seq: int) -> bool:
        job = self.engine.jobs.get(seq)
        return job is not None and (job.state, job.queue, job.due) == (SCHEDULED, queue, due)

    # Notes

    def set_config(self, option: str, value: str | None) -> None:
        if value is None:
            self.config.pop(option, None)
        else:
            self.config[option] = value
        self.engine.note(_CONFIG + option, None if value is None else value.encode())
        if not self.hub.prefix:
            self._configured()

    def _configured(self) -> None:
        """Cache the settings that are read often."""
        #: Maximum number of stages in the history of a job.
        self.max_history = int(self.setting("max-job-history"))
        #: Retention time and maximum number of completed jobs, for all databases.
        self.keep_for = lua.moment(self.setting("jobs-history"))
        self.keep_most = self.setting("jobs-history-count")
        self._usual_heartbeat = lua.moment(self.setting("heartbeat"))
        self.engine.statistics.keep_days = max(KEPT_DAYS, int(self.setting("stats-history")))

    def track(self, jid: str, when: int | None) -> None:
        if when is None:
            self.tracked.pop(jid, None)
        else:
            self.tracked[jid] = when
        self.engine.note(_TRACKED + jid, None if when is None else b"%d" % when)

    def keep(self, recurring: Recurring) -> None:
        self.recurring[recurring.jid] = recurring
        self.engine.note(_RECURRING + recurring.jid, msgspec.msgpack.encode(recurring))

    def unkeep(self, jid: str) -> None:
        if self.recurring.pop(jid, None) is not None:
            self.engine.note(_RECURRING + jid, None)

    # Pauses of queues that do not exist yet

    def is_paused(self, queue: str) -> bool:
        known = self.engine.queues.get(queue)
        return (known is not None and known.paused) or queue in self.paused_ahead

    def pause(self, queue: str, now: int, *, paused: bool) -> None:
        """Pause or unpause a queue. A queue that does not exist is not listed."""
        known = self.engine.queues.get(queue)
        if known is not None and known.known:
            self.engine.pause(queue, paused=paused, now=now)
            paused = False
        if paused != (queue in self.paused_ahead):
            self._pause_ahead(queue, paused=paused)

    def _pause_ahead(self, queue: str, *, paused: bool) -> None:
        if paused:
            self.paused_ahead.add(queue)
        else:
            self.paused_ahead.discard(queue)
        self.engine.note(_PAUSED + queue, b"" if paused else None)

    def see(self, queue: str, now: int) -> None:
        """Record a put into a queue. Queues are listed by the time of their first put."""
        if queue in self.paused_ahead:
            self.engine.open_queue(queue)
            self.pause(queue, now, paused=True)
        if queue not in self.first_seen:
            self.first_seen[queue] = now
            self.engine.note(_QUEUE + queue, b"%d" % now)

    def unsee(self, queue: str) -> None:
        if self.first_seen.pop(queue, None) is not None:
            self.engine.note(_QUEUE + queue, None)

    # Configuration

    def setting(self, option: str, default: float = 0) -> float:
        """Return a numeric setting. A value that is not a number is ignored."""
        found = self._set(self.scoped(option))
        if found is not None:
            return found
        return float(DEFAULTS.get(option, UNLISTED.get(option, default)))

    def _set(self, option: str) -> float | None:
        value = self.config.get(option)
        return None if value is None else lua.tonumber(value.encode())

    def heartbeat(self, queue: str) -> int:
        """Return the lock duration of a queue. The spec and the code use different option names."""
        if not self.config:
            return self._usual_heartbeat
        queue = self.local(queue)
        for option in (f"{queue}-heartbeat", f"heartbeat-{queue}"):
            found = self._set(self.scoped(option))
            if found is not None:
                return lua.moment(found)
        return lua.moment(self.setting("heartbeat"))

    # Tags

    def set_tags(self, job: Job, part: Part, tags: list[Any]) -> None:
        if not tags and not part.tags:
            return
        for tag, _ in part.tags:
            peers = self.tags.get(str(tag))
            if peers is not None:
                peers.pop(job.seq, None)
                if not peers:
                    del self.tags[str(tag)]
        part.tags = tags
        for tag, when in tags:
            self.tags.setdefault(str(tag), {})[job.seq] = when
        if job.extra is not None:
            job.extra.tags = [str(tag) for tag, _ in tags]

    # Events

    @property
    def heard(self) -> bool:
        """Return whether any client has a subscription."""
        pubsub = self.hub.pubsub
        return bool(pubsub.channels or pubsub.patterns)

    def publish(self, channel: str, message: bytes) -> None:
        if not self.heard:
            return
        pubsub, name = self.hub.pubsub, encode_name(channel)
        pubsub.publish(b"ql:" + name, message, changes=True)
        if channel in _BARE and (self.early or name in pubsub.channels):
            pubsub.publish(name, message, changes=True)

    def log(self, fields: dict[str, Any], worker: str = "") -> None:
        """Publish an event to the worker concerned, then to the log channel."""
        if self.heard:
            message = lua.event(fields)
            if worker:
                self.publish(f"w:{worker}", message)
            self.publish("log", message)

    def log_lost(self, job: Job) -> None:
        """Publish that a worker has lost its lock on a job."""
        fields = {"jid": self.local(job.jid), "event": "lock_lost", "worker": job.holder}
        self.log(fields, job.holder)

    def log_failed(self, job: Job, worker: str, group: str, message: str) -> None:
        about = {"message": message, "jid": self.local(job.jid), "group": group}
        self.log({**about, "event": "failed", "worker": worker})

    def tell_tracked(self, event: str, jid: str) -> None:
        if jid in self.tracked:
            self.publish(event, encode_name(self.local(jid)))
