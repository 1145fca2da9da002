"""The state that Qless stores in addition to the jobs of the engine, and the indexes of its
commands.

Configuration, tracking and recurring jobs are settings of the engine, so they are durable. Other
state is computed from the settings and the jobs at startup and after each revert of the engine. An
index may be out of date after a change by another protocol, so every entry is checked when it is
used.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from millrace.engine.annotations import TRACKED, ensure_details, read_details, tracking_origin
from millrace.engine.engine import Engine
from millrace.engine.job import NO_PROTOCOL, Job
from millrace.engine.limits import LIMIT_PREFIX, QUEUE_KEY_PREFIX, read_limit
from millrace.engine.recurring import RECURRING_PREFIX as RECURRING
from millrace.engine.recurring import RecurringJob, read_recurring
from millrace.engine.states import READY
from millrace.engine.statistics import KEPT_DAYS
from millrace.protocols.queue_rules import unlimited_engine
from millrace.protocols.registry import QLESS

from . import lua_values as lua
from .job_view import state_of
from .names import encode_name
from .throttles import Throttles

if TYPE_CHECKING:
    from .hub import QlessHub


_CONFIG: Final = "qless/config/"
_QUEUE: Final = "qless/queue/"
_PAUSED: Final = "qless/paused/"
_WORKER: Final = "qless/worker/"
PATTERNS: Final = "qless/patterns/"
#: Prefixes of the settings that FLUSHDB and FLUSHALL remove.
_SETTING_PREFIXES: Final = (
    _CONFIG,
    TRACKED,
    RECURRING,
    _QUEUE,
    _PAUSED,
    _WORKER,
    LIMIT_PREFIX,
    PATTERNS,
)

DEFAULTS: Final[dict[str, Any]] = {
    "application": "qless",
    "heartbeat": 60,
    "grace-period": 10,
    "stats-history": 30,
    "histogram-history": 7,
    "jobs-history-count": 50000,
    "jobs-history": 604800,
}
#: `<queue>-max-concurrency` is the maximum number of running jobs of a queue.
MAX_CONCURRENCY: Final = "-max-concurrency"
#: Suffixes of the options of one queue, and the prefix of the option that the spec names
#: differently.
_QUEUE_OPTIONS: Final = ("-heartbeat", MAX_CONCURRENCY, "-max-pop-retry")
_HEARTBEAT_OF: Final = "heartbeat-"
#: Options with a default that lists omit.
UNLISTED: Final = {"max-worker-age": 86400, "max-job-history": 100}
#: Maximum number of workers in the list, because clients choose their names.
MAX_WORKERS: Final = 10_000
#: Minimum number of microseconds between two writes of a worker's last activity.
WORKER_WRITE_INTERVAL: Final = 60_000_000

#: Events of tracked jobs that dialect A publishes on channels without a prefix.
_UNPREFIXED_EVENTS: Final = frozenset(
    {"put", "popped", "completed", "failed", "stalled", "canceled"}
) | {
    "track",
    "untrack",
}

_DATABASE: Final = re.compile(r"db(?:[1-9]|1[0-5]):")


def database_prefix(number: int) -> str:
    return f"db{number}:" if number else ""


def database_of(name: str) -> str:
    """Return the prefix of the database of an engine's name. It is empty for database 0."""
    found = _DATABASE.match(name)
    return "" if found is None else found[0]


def _is_of_qless(prefix: str, value: bytes) -> bool:
    """Return whether a setting was made over Qless. Older versions did not store the protocol."""
    if prefix == RECURRING:
        origin = read_recurring(value).origin
    elif prefix == LIMIT_PREFIX:
        origin = read_limit(value).origin
    else:
        origin = tracking_origin(value) if prefix == TRACKED else QLESS
    return origin in {NO_PROTOCOL, QLESS}


def _queue_of_option(option: str) -> str | None:
    """Return the queue of an option such as `<queue>-heartbeat`; None if it has none."""
    database = database_of(option)
    local = option.removeprefix(database)
    for ending in _QUEUE_OPTIONS:
        if local.endswith(ending):
            return database + local.removesuffix(ending)
    if local.startswith(_HEARTBEAT_OF):
        return database + local.removeprefix(_HEARTBEAT_OF)
    return None


def is_held(job: Job, worker: str) -> bool:
    """Return whether this worker holds the job. Another protocol may have a worker of this name."""
    return job.holder == worker and job.holder_protocol == QLESS


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
        #: The job whose data the current command writes apart from its other members, and whether
        #: its dialect writes data as a string.
        self.apart: Job | None = None
        self.apart_is_quoted = False
        self._built_for = (-1, -1)
        self.config: dict[str, str] = {}
        self._configured()
        #: Time of the first put of each queue, by the callers' clocks.
        self.first_seen: dict[str, int] = {}
        #: Queues that were paused before their first job was put.
        self.paused_ahead: set[str] = set()
        self.throttles = Throttles(self)

    # Building

    def refresh(self) -> None:
        """Rebuild all indexes if the engine was reverted or flushed since the last call."""
        if self._built_for != (self.engine.revert_count, self.engine.flush_count):
            self._build()

    def _build(self) -> None:
        engine = self.engine
        self._built_for = (engine.revert_count, engine.flush_count)
        self.config = self.stored_config()
        self.first_seen.clear()
        self.paused_ahead.clear()
        for key, value in engine.settings.items():
            if key.startswith(_QUEUE):
                if self.hub.allows(key[len(_QUEUE) :]):
                    self.first_seen[key[len(_QUEUE) :]] = int(value)
            elif key.startswith(_PAUSED):
                if self.hub.allows(key[len(_PAUSED) :]):
                    self.paused_ahead.add(key[len(_PAUSED) :])
            elif key.startswith(_WORKER):
                self.workers.setdefault(key[len(_WORKER) :], int(value))
        self._configured()
        self._limit_queues()
        for job in engine.leased.values():
            if job.holder_protocol == QLESS:
                self.workers.setdefault(job.holder, job.leased_at)

    def stored_config(self) -> dict[str, str]:
        """Return the options as the store has them."""
        settings, start = self.engine.settings, len(_CONFIG)
        options = [key for key in settings if key.startswith(_CONFIG)]
        return {key[start:]: settings[key].decode() for key in options}

    def flush(self) -> None:
        """Remove all state except the scripts."""
        for key in list(self.engine.settings):
            if key.startswith(_SETTING_PREFIXES):
                self.engine.set_setting(key, None)
        self.engine.load_settings()
        self.workers.clear()
        self._build()

    def forget_all(self, *, everything: bool) -> None:
        """Remove the settings, empty queues and statistics of the current or of all databases."""
        for key, value in list(self.engine.settings.items()):
            prefix = next((each for each in _SETTING_PREFIXES if key.startswith(each)), "")
            name = key[len(prefix) :]
            if prefix == LIMIT_PREFIX:
                name = name.removeprefix(QUEUE_KEY_PREFIX)
            if (
                prefix
                and (everything or self.is_listed(name))
                and _is_of_qless(prefix, value)
                and self._may_forget(prefix, key[len(prefix) :])
            ):
                self.engine.set_setting(key, None)
        self.engine.load_settings()
        for worker in [name for name in self.workers if everything or self.is_listed(name)]:
            del self.workers[worker]
        seen = [name for name in self.first_seen if everything or self.is_listed(name)]
        empty = [name for name in seen if not self._has_jobs(name)]
        for name in empty:
            self.engine.forget_queue(name)
        self.engine.forget_statistics(empty)
        self._build()

    def _may_forget(self, prefix: str, name: str) -> bool:
        """Return whether the rule of the port allows the removal of a setting: the setting of an
        allowed queue, or a worker, because only clients of this port are listed as workers.
        """
        rule = self.hub.rule
        if rule is None or prefix == _WORKER:
            return True
        if prefix == TRACKED:
            job = unlimited_engine(self.engine).find(name)
            return job is None or rule.allows(job.queue)
        queue = self._queue_of(prefix, name)
        return queue is not None and rule.allows(queue)

    def _queue_of(self, prefix: str, name: str) -> str | None:
        """Return the queue of a setting; None if it applies to more than one."""
        if prefix in {_QUEUE, _PAUSED}:
            return name
        if prefix == RECURRING:
            return self.engine.recurring.by_id[name].queue
        if prefix == LIMIT_PREFIX and name.startswith(QUEUE_KEY_PREFIX):
            return name.removeprefix(QUEUE_KEY_PREFIX)
        return _queue_of_option(name) if prefix == _CONFIG else None

    def _has_jobs(self, name: str) -> bool:
        queue = self.engine.queues.get(name)
        return queue is not None and any(queue.counts)

    def worker_seen(self, worker: str, now: int) -> None:
        """Record the activity of a worker."""
        workers, worker = self.workers, self.scoped(worker)
        if worker not in workers:
            self._forget_workers(now)
        workers[worker] = now
        workers.move_to_end(worker)
        key = _WORKER + worker
        kept = self.engine.settings.get(key)
        if kept is None or abs(now - int(kept)) >= WORKER_WRITE_INTERVAL:
            self.engine.set_setting(key, b"%d" % now, must_wait=False)

    def forget_worker(self, worker: str) -> None:
        """Remove a worker from the list."""
        self.workers.pop(worker, None)
        if _WORKER + worker in self.engine.settings:
            self.engine.set_setting(_WORKER + worker, None)

    def _forget_workers(self, now: int) -> None:
        """Remove the workers of the current database that are too old, and the oldest of all if
        there are too many.
        """
        oldest = now - lua.to_microseconds(self.setting("max-worker-age"))
        while len(self.workers) >= MAX_WORKERS:
            self.forget_worker(next(iter(self.workers)))
        old = []
        for name, heard in self.workers.items():
            if self.is_listed(name):
                if heard > oldest:
                    break
                old.append(name)
        for name in old:
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
        details = read_details(job)
        if details.front or details.parked is not None:
            return  # it lost its lock before the crash, or waits for a throttle
        if self.engine.reclaim(job, worker, QLESS, now):
            ensure_details(job).add_entry("popped", now, self.max_history, {"worker": worker})
            self.worker_seen(worker, now)

    @property
    def recurring(self) -> dict[str, RecurringJob]:
        """Return the recurring jobs that clients of this port may see."""
        found = self.engine.recurring.by_id
        if self.hub.rule is None:
            return found
        return {jid: each for jid, each in found.items() if self.hub.allows(each.queue)}

    @property
    def tracked(self) -> dict[str, int]:
        """Return the tracked ids of all databases, with the start of the tracking."""
        return self.engine.annotations.tracked

    @property
    def tags(self) -> dict[str, dict[int, int]]:
        """Return the jobs of each tag, with the time at which they got it."""
        return self.engine.annotations.tags

    # Databases: names of database 5 have the prefix `db5:` in the engine, and names of database 0
    # have no prefix

    def scoped(self, name: str) -> str:
        """Return the engine's name for a client's name."""
        return self.hub.prefix + name

    def queue_name(self, name: str) -> str:
        """Return the engine's name for a queue that a command names; the port may refuse it."""
        name, rule = self.hub.prefix + name, self.hub.rule
        if rule is not None:
            rule.check(name)
        return name

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
        if tid.startswith(QUEUE_KEY_PREFIX):
            return QUEUE_KEY_PREFIX + self.scoped(tid.removeprefix(QUEUE_KEY_PREFIX))
        return self.scoped(tid)

    def local_throttle(self, tid: str) -> str:
        if tid.startswith(QUEUE_KEY_PREFIX):
            return QUEUE_KEY_PREFIX + self.local(tid.removeprefix(QUEUE_KEY_PREFIX))
        return self.local(tid)

    def owns_throttle(self, tid: str) -> bool:
        return self.is_listed(tid.removeprefix(QUEUE_KEY_PREFIX))

    def queue_jobs(self, name: str, state: int) -> Iterator[Job]:
        """Return the jobs of a queue in a state other than ready. This scans all jobs of that
        state.
        """
        index = self.engine.index_of(state)
        return (job for job in index.values() if job.queue == name)

    def recurring_count(self, queue: str) -> int:
        """Return the number of recurring jobs of a queue."""
        return len(self.engine.recurring.by_queue.get(queue, ()))

    # Locks and due times

    def promote_found(self, job: Job, now: int) -> None:
        """Make a job that clients see as waiting ready, before a client changes it."""
        if job.due_at <= now and self.engine.deadlines.is_found_due(job):
            self.engine.due_timers.promote(job, now)

    def shown_state(self, job: Job) -> str:
        """Return the state of a job for a reply."""
        return "waiting" if self.engine.deadlines.is_found_due(job) else state_of(job)

    # Settings

    def check_option(self, option: str) -> None:
        """Raise an error if the option belongs to a queue that the rule of the port excludes."""
        queue, rule = _queue_of_option(option), self.hub.rule
        if queue is not None and rule is not None:
            rule.check(queue)

    def set_config(self, option: str, value: str | None) -> None:
        if value is None:
            self.config.pop(option, None)
        else:
            self.config[option] = value
        self.engine.set_setting(_CONFIG + option, None if value is None else value.encode())
        if not self.hub.prefix:
            self._configured()
        if option.endswith(MAX_CONCURRENCY):
            self._limit_queues()

    def _limit_queues(self) -> None:
        """Pass the maximum number of running jobs of each queue to the engine."""
        limits = self.engine.limits
        for queue in list(limits.concurrency):
            limits.set_concurrency(queue, 0)
        for option in self.config:
            maximum = self._set(option) if option.endswith(MAX_CONCURRENCY) else None
            if maximum is not None:
                limits.set_concurrency(option.removesuffix(MAX_CONCURRENCY), maximum)

    def _configured(self) -> None:
        """Cache the settings that are read often."""
        #: Maximum number of entries in the history of a job.
        self.max_history = int(self.setting("max-job-history"))
        #: Retention time and maximum number of completed jobs, for all databases.
        self.completed_retention = lua.to_microseconds(self.setting("jobs-history"))
        self.max_completed = self.setting("jobs-history-count")
        self._usual_heartbeat = lua.to_microseconds(self.setting("heartbeat"))
        self.engine.statistics.keep_days = max(KEPT_DAYS, int(self.setting("stats-history")))

    def put_recurring(self, recurring: RecurringJob) -> None:
        self.engine.recurring.put(recurring)

    def delete_recurring(self, jid: str) -> None:
        self.engine.recurring.delete(jid)

    # Pauses of queues that do not exist yet

    def is_paused(self, queue: str) -> bool:
        known = self.engine.queues.get(queue)
        return (known is not None and known.paused) or queue in self.paused_ahead

    def pause(self, queue: str, now: int, *, paused: bool) -> None:
        """Pause or unpause a queue. A queue that does not exist is not listed."""
        known = self.engine.queues.get(queue)
        if known is not None and known.registered:
            self.engine.pause(queue, paused=paused, now=now)
            paused = False
        if paused != (queue in self.paused_ahead):
            self._pause_ahead(queue, paused=paused)

    def _pause_ahead(self, queue: str, *, paused: bool) -> None:
        if paused:
            self.paused_ahead.add(queue)
        else:
            self.paused_ahead.discard(queue)
        self.engine.set_setting(_PAUSED + queue, b"" if paused else None)

    def register_queue(self, queue: str, now: int) -> None:
        """Record a put into a queue. Queues are listed by the time of their first put."""
        if queue in self.paused_ahead:
            self.engine.open_queue(queue)
            self.pause(queue, now, paused=True)
        if queue not in self.first_seen:
            self.first_seen[queue] = now
            self.engine.set_setting(_QUEUE + queue, b"%d" % now)

    def forget_queue(self, queue: str) -> None:
        if self.first_seen.pop(queue, None) is not None:
            self.engine.set_setting(_QUEUE + queue, None)

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
                return lua.to_microseconds(found)
        return lua.to_microseconds(self.setting("heartbeat"))

    # Events

    @property
    def has_subscribers(self) -> bool:
        """Return whether any client has a subscription."""
        pubsub = self.hub.pubsub
        return bool(pubsub.channels or pubsub.patterns)

    def publish(self, channel: str, message: bytes) -> None:
        if not self.has_subscribers:
            return
        pubsub, name = self.hub.pubsub, encode_name(channel)
        pubsub.publish(b"ql:" + name, message, changes=True)
        if channel in _UNPREFIXED_EVENTS and (self.early or name in pubsub.channels):
            pubsub.publish(name, message, changes=True)

    def publish_log(self, fields: dict[str, Any], worker: str = "") -> None:
        """Publish an event to the worker concerned, then to the log channel."""
        if self.has_subscribers:
            message = lua.event(fields)
            if worker:
                self.publish(f"w:{worker}", message)
            self.publish("log", message)

    def publish_lock_lost(self, job: Job) -> None:
        """Publish that a worker has lost its lock on a job."""
        fields = {"jid": self.local(job.jid), "event": "lock_lost", "worker": job.holder}
        self.publish_log(fields, job.holder)

    def publish_failed(self, job: Job, worker: str, group: str, message: str) -> None:
        about = {"message": message, "jid": self.local(job.jid), "group": group}
        self.publish_log({**about, "event": "failed", "worker": worker})

    def publish_tracked(self, event: str, jid: str) -> None:
        if jid in self.tracked:
            self.publish(event, encode_name(self.local(jid)))
