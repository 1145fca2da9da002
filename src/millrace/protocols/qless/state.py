"""The state that Qless stores in addition to the jobs of the engine, and the indexes of its
commands.

Configuration, tracking and recurring jobs are settings of the engine, so they are durable. Other
state is computed from the settings and the jobs at startup and after each revert of the engine. An
index may be out of date after a change by another protocol, so every entry is checked when it is
used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from millrace.engine.annotations import (
    TRACKED_PREFIX,
    ensure_details,
    read_details,
    tracking_origin,
)
from millrace.engine.engine import Engine
from millrace.engine.job import NO_PROTOCOL, Job
from millrace.engine.limits import LIMIT_PREFIX, QUEUE_KEY_PREFIX, read_limit
from millrace.engine.recurring import RECURRING_PREFIX as RECURRING
from millrace.engine.recurring import RecurringJob, read_recurring
from millrace.engine.states import READY
from millrace.protocols.registry import QLESS

from .databases import DatabaseNames
from .job_view import state_of
from .options import CONFIG_PREFIX, QlessOptions, queue_of_option
from .publisher import Publisher
from .throttles import Throttles
from .workers import WORKER_PREFIX, QlessWorkers

if TYPE_CHECKING:
    from .hub import QlessHub


_QUEUE_PREFIX: Final = "qless/queue/"
_PAUSED_PREFIX: Final = "qless/paused/"
PATTERNS_PREFIX: Final = "qless/patterns/"
#: Prefixes of the settings that FLUSHDB and FLUSHALL remove.
_SETTING_PREFIXES: Final = (
    CONFIG_PREFIX,
    TRACKED_PREFIX,
    RECURRING,
    _QUEUE_PREFIX,
    _PAUSED_PREFIX,
    WORKER_PREFIX,
    LIMIT_PREFIX,
    PATTERNS_PREFIX,
)

#: Maximum number of queues that are remembered after a client has removed their names.
MAX_FORGOTTEN: Final = 10_000

#: Settings that one slice of a flush examines.
SETTINGS_BATCH_SIZE: Final = 200


def _was_set_over_qless(prefix: str, value: bytes) -> bool:
    """Return whether a setting was made over Qless. Older versions did not store the protocol."""
    if prefix == RECURRING:
        origin = read_recurring(value).origin
    elif prefix == LIMIT_PREFIX:
        origin = read_limit(value).origin
    else:
        origin = tracking_origin(value) if prefix == TRACKED_PREFIX else QLESS
    return origin in {NO_PROTOCOL, QLESS}


def is_held(job: Job, worker: str) -> bool:
    """Return whether this worker holds the job. Another protocol may have a worker of this name."""
    return job.holder == worker and job.holder_protocol == QLESS


class QlessState(DatabaseNames):
    def __init__(self, hub: "QlessHub") -> None:
        self.hub = hub
        self.engine: Engine = hub.engine
        #: Whether the lower priority number runs first in the dialect of the current command.
        self.lower_first = False
        self._built_for = (-1, -1)
        self.options = QlessOptions(self.engine, self)
        self.workers = QlessWorkers(self.engine, self, self.options)
        self.publisher = Publisher(self.engine, self, hub.pubsub)
        #: Time of the first put of each queue, by the callers' clocks.
        self.first_seen: dict[str, int] = {}
        #: Queues that were paused before their first job was put.
        self.paused_in_advance: set[str] = set()
        #: Queues whose names a client has removed. Their jobs and statistics stay until a flush.
        self.forgotten: set[str] = set()
        self.throttles = Throttles(self)

    # Building

    def refresh(self) -> None:
        """Rebuild all indexes if the engine was reverted or flushed since the last call."""
        if self._built_for != (self.engine.revert_count, self.engine.flush_count):
            self._build()

    def _build(self) -> None:
        engine = self.engine
        self._built_for = (engine.revert_count, engine.flush_count)
        self.options.load()
        self.first_seen.clear()
        self.paused_in_advance.clear()
        for key, value in engine.settings.items():
            if key.startswith(_QUEUE_PREFIX):
                if self.hub.allows(key[len(_QUEUE_PREFIX) :]):
                    self.first_seen[key[len(_QUEUE_PREFIX) :]] = int(value)
            elif key.startswith(_PAUSED_PREFIX):
                if self.hub.allows(key[len(_PAUSED_PREFIX) :]):
                    self.paused_in_advance.add(key[len(_PAUSED_PREFIX) :])
            elif key.startswith(WORKER_PREFIX):
                self.workers.last_seen.setdefault(key[len(WORKER_PREFIX) :], int(value))

    def flush(self) -> None:
        """Remove all state except the scripts."""
        for key in list(self.engine.settings):
            if key.startswith(_SETTING_PREFIXES):
                self.engine.set_setting(key, None)
        self.engine.load_settings()
        self.workers.last_seen.clear()
        self._build()

    def remove_settings(self, now: int, *, all_databases: bool) -> Iterator[None]:
        """Remove the settings, empty queues and statistics of the current or of all databases.
        Yield after each batch of settings. Each setting and its entry in memory are removed
        together, so the caller may stop after any batch.
        """
        seen = dict.fromkeys((*self.first_seen, *self.forgotten))
        for number, key in enumerate(list(self.engine.settings), 1):
            if number % SETTINGS_BATCH_SIZE == 0:
                yield
            prefix = next((each for each in _SETTING_PREFIXES if key.startswith(each)), "")
            name = key[len(prefix) :]
            local = name.removeprefix(QUEUE_KEY_PREFIX) if prefix == LIMIT_PREFIX else name
            if prefix and (all_databases or self.is_in_database(local)):
                value = self.engine.settings.get(key)
                if (
                    value is not None  # no other client has removed it
                    and _was_set_over_qless(prefix, value)
                    and self._may_forget(prefix, name, value)
                ):
                    self._remove_setting(prefix, name, now)
        yield
        last_seen = self.workers.last_seen
        for worker in [name for name in last_seen if all_databases or self.is_in_database(name)]:
            del last_seen[worker]
        seen.update(dict.fromkeys((*self.first_seen, *self.forgotten)))
        flushed = [name for name in seen if all_databases or self.is_in_database(name)]
        self.forgotten.difference_update(flushed)
        empty = [name for name in flushed if not self._has_jobs(name)]
        for name in empty:
            self.engine.forget_queue(name)
        self.engine.forget_statistics(empty)

    def _remove_setting(self, prefix: str, name: str, now: int) -> None:
        """Remove a setting and what was read from it."""
        engine = self.engine
        if prefix == CONFIG_PREFIX:
            self.options.set(name, None)
        elif prefix == RECURRING:
            engine.delete_recurring(name)
        elif prefix == LIMIT_PREFIX:
            engine.set_limit(name, None, 0, now)
        elif prefix == TRACKED_PREFIX:
            engine.track(name, None)
        else:
            if prefix == _QUEUE_PREFIX:
                self.first_seen.pop(name, None)
            elif prefix == _PAUSED_PREFIX:
                self.paused_in_advance.discard(name)
            elif prefix == WORKER_PREFIX:
                self.workers.last_seen.pop(name, None)
            engine.set_setting(prefix + name, None)

    def _may_forget(self, prefix: str, name: str, value: bytes) -> bool:
        """Return whether the rule of the port allows the removal of a setting: the setting of an
        allowed queue, or a worker, because only clients of this port are listed as workers.
        """
        rule = self.hub.rule
        if rule is None or prefix == WORKER_PREFIX:
            return True
        if prefix == TRACKED_PREFIX:
            job = self.engine.table.by_jid.get(name)
            return job is None or rule.allows(job.queue)
        queue = self._queue_of(prefix, name, value)
        return queue is not None and rule.allows(queue)

    def _queue_of(self, prefix: str, name: str, value: bytes) -> str | None:
        """Return the queue of a setting; None if it applies to more than one."""
        if prefix in {_QUEUE_PREFIX, _PAUSED_PREFIX}:
            return name
        if prefix == RECURRING:
            return read_recurring(value).queue
        if prefix == LIMIT_PREFIX and name.startswith(QUEUE_KEY_PREFIX):
            return name.removeprefix(QUEUE_KEY_PREFIX)
        return queue_of_option(name) if prefix == CONFIG_PREFIX else None

    def _has_jobs(self, name: str) -> bool:
        queue = self.engine.queue(name)
        return queue is not None and any(queue.counts)

    # Finding

    def find(self, jid: str) -> Job | None:
        """Return the job with an id in the current database."""
        find, prefix = self.engine.find, self.hub.prefix
        if not prefix:
            return find(jid)
        job = find(prefix + jid)
        if job is None:  # another protocol may have pushed it into a queue of this database
            job = find(jid)
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
            ensure_details(job).add_entry(
                "popped", now, self.options.max_history, {"worker": worker}
            )
            self.workers.seen(worker, now)

    @property
    def recurring(self) -> dict[str, RecurringJob]:
        """Return the recurring jobs that clients of this port may see."""
        found = self.engine.recurring.by_id
        if self.hub.rule is None:
            return found
        return {jid: each for jid, each in found.items() if self.hub.allows(each.queue)}

    @property
    def tracked(self) -> dict[str, int]:
        """Return the tracked ids of all databases, with the time when tracking started."""
        return self.engine.annotations.tracked

    def lists_tracked(self, jid: str, job: Job | None) -> bool:
        """Return whether clients see a tracked id. `job` is its job if it is visible to them, or
        else None. On a port with a rule for queues, the job must exist, because its queue decides.
        """
        if job is None:
            return self.hub.rule is None and self.is_in_database(jid)
        return self.is_in_database(job.queue)

    @property
    def tags(self) -> dict[str, dict[int, int]]:
        """Return the jobs of each tag, with the time at which they got it."""
        return self.engine.annotations.tags

    def queue_jobs(self, name: str, state: int) -> Iterator[Job]:
        """Return the jobs of a queue in a state other than ready. This scans all jobs of that
        state.
        """
        index = self.engine.tables.by_state(state)
        return (job for job in index.values() if job.queue == name)

    def recurring_count(self, queue: str) -> int:
        """Return the number of recurring jobs of a queue."""
        return len(self.engine.recurring.by_queue.get(queue, ()))

    # Locks and due times

    def promote_if_due(self, job: Job, now: int) -> None:
        """If clients already see a job as waiting, make it ready before a client changes it."""
        if job.due_at <= now and self.engine.deadlines.is_found_due(job):
            self.engine.due_timers.promote(job, now)

    def shown_state(self, job: Job) -> str:
        """Return the state of a job for a reply."""
        return "waiting" if self.engine.deadlines.is_found_due(job) else state_of(job)

    def put_recurring(self, recurring: RecurringJob) -> None:
        self.engine.put_recurring(recurring)

    def delete_recurring(self, jid: str) -> None:
        self.engine.delete_recurring(jid)

    # Pauses of queues that do not exist yet

    def is_paused(self, queue: str) -> bool:
        known = self.engine.queue(queue)
        return (known is not None and known.paused) or queue in self.paused_in_advance

    def pause(self, queue: str, now: int, *, paused: bool) -> None:
        """Pause or unpause a queue. For a queue that does not exist, record this until its first
        put.
        """
        known = self.engine.queue(queue)
        if known is not None and known.registered:
            self.engine.pause(queue, paused=paused, now=now)
            paused = False
        if paused != (queue in self.paused_in_advance):
            self._pause_in_advance(queue, paused=paused)

    def _pause_in_advance(self, queue: str, *, paused: bool) -> None:
        if paused:
            self.paused_in_advance.add(queue)
        else:
            self.paused_in_advance.discard(queue)
        self.engine.set_setting(_PAUSED_PREFIX + queue, b"" if paused else None)

    def register_queue(self, queue: str, now: int) -> None:
        """Record a put into a queue. Queues are listed by the time of their first put."""
        if queue in self.paused_in_advance:
            self.engine.open_queue(queue)
            self.pause(queue, now, paused=True)
        key = _QUEUE_PREFIX + queue
        if not self.hub.allows(queue):  # an operator puts the job
            if key not in self.engine.settings:
                self.engine.set_setting(key, b"%d" % now)
        elif queue not in self.first_seen:
            self.first_seen[queue] = now
            self.engine.set_setting(key, b"%d" % now)

    def forget_queue(self, queue: str, *, by_client: bool = False) -> None:
        if self.first_seen.pop(queue, None) is not None:
            if by_client and len(self.forgotten) < MAX_FORGOTTEN:
                self.forgotten.add(queue)
            self.engine.set_setting(_QUEUE_PREFIX + queue, None)
