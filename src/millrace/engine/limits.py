"""Limits on the number of leased jobs of a queue or of a named key, for workers of every protocol.

A job has the key of its queue and the keys that its producer named. It uses all of them while a
worker of any protocol holds it. `Transitions` calls `add_new_lease` when a job enters the
state `leased` and `leave` when it leaves the state, so the usage of a key is exact.

While a queue is at its limit, no worker gets a job from it. If another key of a job is full, the
engine parks the job when a worker would otherwise get it: the job stays ready, but is taken out of
the order of its queue. When the key has room, the job with the longest wait for it returns to its
old place in the order, and the engine serves waiting clients. If clients set the times of a job,
the job returns ahead of the jobs that become ready at that time. A job of a paused queue also
returns, but leaves the room for the next one. A worker that finds no other job gets a parked job
whose keys have room.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .annotations import ensure_details
from .component import Component, IndexProblem, Problems
from .details import Number
from .job import NO_PROTOCOL, Job
from .parked_jobs import ParkedJobs, parked_of
from .queues import Queue
from .states import LEASED, READY

if TYPE_CHECKING:
    from .engine import Engine

#: The prefix of the settings with limits. Do not change it: existing databases use it.
LIMIT_PREFIX: Final = "qless/throttle/"
#: The key of a queue's own limit is this prefix and the queue's name.
QUEUE_KEY_PREFIX: Final = "ql:q:"
#: A request for a job examines at most this number of jobs; a timer resumes the search for waiting
#: clients.
EXAMINE_BATCH_SIZE: Final = 64
#: The key of the timer that ends limits and continues to serve waiting clients.
LIMITS_TIMER: Final = "limits"
#: A sweep removes expired limits when the number of limits reaches this constant plus twice the
#: number of limits after the last sweep.
MIN_LIMITS_TO_SWEEP: Final = 64


class Limit:
    """A limit. Its durable setting is an array of the fields; add new fields at the end."""

    __slots__ = ("clock_offset", "expires_at", "maximum", "origin")

    def __init__(
        self, maximum: Number, expires_at: int = 0, clock_offset: int = 0, origin: int = NO_PROTOCOL
    ) -> None:
        #: Maximum number of leased jobs. 0: no limit.
        self.maximum = maximum
        #: The end of the limit, by the clock of the client that set it. 0: none.
        self.expires_at = expires_at
        #: How far that clock is ahead of the server's.
        self.clock_offset = clock_offset
        #: The protocol over which it was set; none if its client has its own clock, and in older
        #: records.
        self.origin = origin

    def fields(self) -> tuple[Number | int, ...]:
        """All fields, in the order of the constructor; without the last one if it is not set."""
        fields = (self.maximum, self.expires_at, self.clock_offset)
        return (*fields, self.origin) if self.origin != NO_PROTOCOL else fields


class Limits(Component):
    __slots__ = (
        "_engine",
        "_keys_to_unpark",
        "_next_sweep_at",
        "_queues_to_serve",
        "by_key",
        "concurrency",
        "freed_keys",
        "in_use",
        "leased_by_key",
        "parked",
    )

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._next_sweep_at = MIN_LIMITS_TO_SWEEP
        #: Whether any limit or parked job exists. If not, this test is the only cost of limits.
        self.in_use = False
        self.by_key: dict[str, Limit] = {}
        #: Maximum number of leased jobs of a queue, not counting leases that have expired.
        self.concurrency: dict[str, Number] = {}
        #: The leased jobs of each key that has a limit.
        self.leased_by_key: dict[str, dict[int, None]] = {}
        self.parked = ParkedJobs(engine)
        #: Keys whose usage has decreased.
        self.freed_keys: dict[str, None] = {}
        #: Queues with waiting clients and jobs that were not examined yet.
        self._queues_to_serve: set[str] = set()
        #: Keys with room and more parked jobs than one command examines.
        self._keys_to_unpark: set[str] = set()

    # Settings

    def load(self, settings: dict[str, bytes]) -> None:
        """Read all limits from the durable settings, and count their usage."""
        self.by_key = {
            key[len(LIMIT_PREFIX) :]: read_limit(value)
            for key, value in settings.items()
            if key.startswith(LIMIT_PREFIX)
        }
        self.recount_usage()
        self._set_timer()

    def recount_usage(self) -> None:
        """Count the usage of all keys again."""
        self.leased_by_key = {key: {} for key in self.by_key}
        if self.by_key:
            for job in self._engine.leased.values():
                self.enter(job)
        self.freed_keys.update(dict.fromkeys(self.parked.by_key))
        self._update()

    def set(
        self, key: str, maximum: Number, expires: int, now: int, origin: int = NO_PROTOCOL
    ) -> None:
        """Set a limit. If no new expiry is given, the current expiry still applies."""
        engine = self._engine
        if len(self.by_key) >= self._next_sweep_at:
            self._sweep(now)
        known = self.limit(key, now)
        offset = engine.caller.clock_offset if engine.caller.own_clock else 0
        if not expires and known is not None:
            expires, offset = known.expires_at, known.clock_offset
        self.by_key[key] = limit = Limit(maximum, expires, offset if expires else 0, origin)
        engine.set_setting(LIMIT_PREFIX + key, msgspec.msgpack.encode(limit.fields()))
        if key not in self.leased_by_key:
            self.leased_by_key[key] = {
                job.seq: None for job in engine.leased.values() if uses(job, key)
            }
        self._set_timer()
        self._changed(key, now)

    def delete(self, key: str, now: int) -> bool:
        """Delete a limit, and return whether it existed."""
        if self.by_key.pop(key, None) is None:
            return False
        self.leased_by_key.pop(key, None)
        self._engine.set_setting(LIMIT_PREFIX + key, None)
        self._changed(key, now)
        return True

    def set_concurrency(self, queue: str, maximum: Number) -> None:
        """Limit the leases of a queue that have not expired. 0: no limit. The caller stores it."""
        if maximum > 0:
            self.concurrency[queue] = maximum
        else:
            self.concurrency.pop(queue, None)
        self.freed_keys[QUEUE_KEY_PREFIX + queue] = None
        self._update()

    def _changed(self, key: str, now: int) -> None:
        self.freed_keys[key] = None
        self._update()
        self.unpark_freed(now)

    def _update(self) -> None:
        self.in_use = bool(self.by_key or self.concurrency or self.parked.by_key or self.freed_keys)

    def _sweep(self, now: int) -> None:
        for key in [key for key in self.by_key if self.limit(key, now) is None]:
            self.delete(key, now)
        self._next_sweep_at = 2 * len(self.by_key) + MIN_LIMITS_TO_SWEEP

    # Views. `now` is the time of the current command.

    def limit(self, key: str, now: int) -> Limit | None:
        found = self.by_key.get(key)
        if found is None or not found.expires_at:
            return found
        return (
            None if found.expires_at <= self._engine.caller.time(now, found.clock_offset) else found
        )

    def maximum(self, key: str, now: int) -> Number:
        limit = self.limit(key, now)
        return 0 if limit is None else limit.maximum

    def usage(self, key: str) -> int:
        """The number of leased jobs of a key that has a limit."""
        return len(self.leased_by_key.get(key, ()))

    def has_room(self, key: str, now: int) -> bool:
        maximum = self.maximum(key, now)
        return not maximum or self.usage(key) < maximum

    def key_at_limit(self, job: Job, now: int) -> str | None:
        """The first key of a job that is at its limit."""
        for key in keys_of(job):
            if key in self.by_key and not self.has_room(key, now):
                return key
        return None

    def queue_has_room(self, queue: Queue, now: int, *, concurrency_checked: bool = False) -> bool:
        """Whether the limits of the queue permit another lease. `concurrency_checked` as in
        `next_job`.
        """
        if not self.has_room(QUEUE_KEY_PREFIX + queue.name, now):
            return False
        maximum = self.concurrency.get(queue.name, 0)
        if concurrency_checked or not maximum:
            return True
        surplus = queue.counts[LEASED] - maximum
        if surplus < 0:
            return True
        # Leases with a timer never count as expired: the timer ends them.
        deadlines, caller = self._engine.deadlines, self._engine.caller
        return deadlines.count_expired(queue.name, now, caller, surplus + 1) > surplus

    def leased_jobs(self, key: str) -> list[Job]:
        """The leased jobs of a key, sorted by jid."""
        engine = self._engine
        if key in self.by_key:
            found = [engine.jobs[seq] for seq in self.leased_by_key[key]]
        else:
            found = [job for job in engine.leased.values() if uses(job, key)]
        return sorted(found, key=lambda job: job.jid)

    def first_leased_jobs(self, key: str, limit: int) -> list[Job]:
        """Some leased jobs of a key that has a limit."""
        return [self._engine.jobs[seq] for seq in islice(self.leased_by_key.get(key, ()), limit)]

    # Usage

    def enter(self, job: Job) -> None:
        """Add a leased job to the usage of its keys."""
        for key in keys_of(job):
            if key in self.by_key and uses(job, key):
                self.leased_by_key[key][job.seq] = None

    def add_new_lease(self, job: Job) -> None:
        """Add a newly leased job to the usage of all its keys, including released ones."""
        details = None if job.extra is None else job.extra.details
        if details is not None and details.released_limits:
            details.released_limits = []
        self.enter(job)

    def leave(self, job: Job) -> None:
        """Remove a job from the usage when its lease ends, or when it leaves its queue while it is
        leased.
        """
        for key in keys_of(job):
            holders = self.leased_by_key.get(key)
            if holders is not None and job.seq in holders:
                del holders[job.seq]
                self.freed_keys[key] = None
        if self.concurrency and job.queue in self.concurrency:
            self.freed_keys[QUEUE_KEY_PREFIX + job.queue] = None

    def set_keys(self, job: Job, keys: list[str]) -> None:
        """Replace the keys of a job; a leased job then uses the new ones."""
        held = job.state == LEASED and self.in_use
        if held:
            self.leave(job)
        ensure_details(job).limits = keys
        if held:
            self.enter(job)
        self._engine.change_set.record(job)

    def release(self, job: Job, key: str, now: int) -> None:
        """Release a job from a key that it uses or waits for."""
        parked = parked_of(job)
        if job.state == LEASED and uses(job, key):
            ensure_details(job).released_limits.append(key)
            self._engine.edits.record_job(job)
            if self.leased_by_key.get(key, {}).pop(job.seq, self) is None:
                self._changed(key, now)
        elif parked is not None and parked.key == key:
            self.parked.release(job, parked)
            self._engine.edits.record_job(job)
            self._changed(key, now)

    # Leasing

    def next_job(self, queue: Queue, now: int, *, concurrency_checked: bool = False) -> Job | None:
        """Take the next job whose limits permit a lease out of the queue's order, and return it.
        With `concurrency_checked`, the caller has compared the number of running jobs with the
        concurrency of the queue.
        """
        if "" in self.parked.by_key:
            self.unpark_released(queue, now)
        for _ in range(EXAMINE_BATCH_SIZE):
            if self.freed_keys:
                self.unpark_freed(now)
            if not self.queue_has_room(queue, now, concurrency_checked=concurrency_checked):
                return None
            job = queue.ready.pop()
            if job is None:
                if concurrency_checked or not self._unpark_one(queue, now):
                    return None
                continue
            key = self.key_at_limit(job, now)
            if key is None:
                return job
            self._park(job, queue, key, now)
        if queue.waiters:
            self._queues_to_serve.add(queue.name)
            self._engine.timers.set(LIMITS_TIMER, self._engine.caller.server_time(now))
        return None

    def park(self, job: Job, key: str, now: int, shown_queue: str = "") -> None:
        """Park a ready job that waits for this key."""
        queue = self._engine.queues[job.queue]
        queue.ready.remove(job)
        self._park(job, queue, key, now, shown_queue)

    def _park(self, job: Job, queue: Queue, key: str, now: int, shown_queue: str = "") -> None:
        self.parked.park(job, queue, key, now, shown_queue)
        self.in_use = True
        for other in keys_of(job):
            if other != key and other in self.parked.by_key:
                # It may have been the only job that this key admitted.
                self.freed_keys[other] = None

    def unpark_by_client_clock(self, now: int) -> None:
        """Unpark jobs before or after a command of a client with its own clock. A limit may have
        expired by that clock.
        """
        for key in self.parked.by_key:
            if key and not self.maximum(key, now):
                self.freed_keys[key] = None
        self.unpark_freed(now)

    def unpark_freed(self, now: int) -> None:
        """Put the parked jobs of keys whose usage has decreased back into their queues, and serve
        waiting clients.
        """
        engine = self._engine
        if engine.unavailable_reason:
            return
        while self.freed_keys:
            keys, self.freed_keys = list(self.freed_keys), {}
            queues: dict[str, None] = {}
            for key in keys:
                queues.update(dict.fromkeys(self._unpark(key, now)))
                if key.startswith(QUEUE_KEY_PREFIX):
                    queues[key[len(QUEUE_KEY_PREFIX) :]] = None
            for name in queues:
                queue = engine.queues.get(name)
                if queue is not None and queue.waiters:
                    engine.assignments.serve_waiters(queue, now)
        self._update()

    def _unpark(self, key: str, now: int) -> Iterator[str]:
        """Unpark jobs until the key is at its limit, and yield the names of their queues."""
        heap = self.parked.by_key.get(key)
        if heap is None or not key:
            return
        maximum = self.maximum(key, now)
        room = maximum - self.usage(key) if maximum else len(heap)
        paused = 0
        while heap and room >= 1:
            job = self.parked.pop(key)
            if job is None:
                continue
            self.parked.unpark(job, now)
            yield job.queue
            if not self._engine.queues[job.queue].is_closed:
                room -= 1
                continue
            paused += 1  # no worker gets it, so it does not use the room
            if paused == EXAMINE_BATCH_SIZE:
                self._keys_to_unpark.add(key)
                self._engine.timers.set(LIMITS_TIMER, self._engine.caller.server_time(now))
                return
        if not heap:
            del self.parked.by_key[key]

    def _unpark_one(self, queue: Queue, now: int) -> bool:
        """Unpark one job of a queue whose keys have room. Return whether there was one. A key can
        have room although jobs wait for it: the job that returned last may be in another queue that
        no worker has asked for jobs yet.
        """
        for job in islice(queue.ready.parked.values(), EXAMINE_BATCH_SIZE):
            if self.key_at_limit(job, now) is None:
                self.parked.unpark(job, now)
                return True
        return False

    def unpark_released(self, queue: Queue, now: int) -> None:
        """Unpark the jobs of a queue that were released from their key."""
        for job in self.parked.jobs_for_key(""):
            if job.queue == queue.name and self.key_at_limit(job, now) is None:
                self.parked.unpark(job, now)
        self.parked.drop_unparked()
        self._update()

    # Indexes

    def add(self, job: Job) -> None:
        """Add a leased or a parked job."""
        if job.state == LEASED:
            if self.in_use:
                self.enter(job)
        elif job.state == READY and self.parked.add(job):
            self.in_use = True

    def remove(self, job: Job) -> None:
        """Remove a job from the usage or from the parked jobs."""
        if self.in_use:
            if job.state == LEASED:
                self.leave(job)
            elif job.state == READY:
                self.leave_ready(job)

    def leave_ready(self, job: Job) -> None:
        """Unpark a job that is about to leave the state `ready`."""
        self.parked.end_wait(job)
        for key in keys_of(job):
            if key in self.parked.by_key:
                self.freed_keys[key] = None

    def clear(self) -> None:
        """Remove all jobs, before they are discarded or added again."""
        self.leased_by_key = {key: {} for key in self.by_key}
        self.parked.by_key.clear()
        self.freed_keys.clear()
        self._queues_to_serve.clear()
        self._keys_to_unpark.clear()
        self._update()

    def discard(self) -> list[Any]:
        old: list[Any] = [self.leased_by_key, self.parked.by_key]
        self.leased_by_key, self.parked.by_key = {}, {}
        self.clear()
        return old

    # Time

    def tick(self, now: int) -> None:
        """End expired limits, and continue to serve waiting clients."""
        for key in [key for key in self.by_key if self.limit(key, now) is None]:
            self.delete(key, now)
        keys, self._keys_to_unpark = self._keys_to_unpark, set()
        self.freed_keys.update(dict.fromkeys(keys))
        self.unpark_freed(now)
        names, self._queues_to_serve = self._queues_to_serve, set()
        for name in names:
            queue = self._engine.queues.get(name)
            if queue is not None:
                self._engine.assignments.serve_waiters(queue, now)
        if not self._queues_to_serve and not self._keys_to_unpark:
            self._set_timer()

    def _set_timer(self) -> None:
        ends = [
            each.expires_at - each.clock_offset for each in self.by_key.values() if each.expires_at
        ]
        if ends:
            self._engine.timers.set(LIMITS_TIMER, max(0, min(ends)))

    # Checks

    def problems(self) -> Problems:
        """Compare the usage and the parked jobs with the jobs themselves."""
        engine = self._engine
        for seq in list(engine.leased):
            yield None
            leased = engine.leased.get(seq)
            for key in [] if leased is None else keys_of(leased):
                if leased is None or key not in self.by_key or not uses(leased, key):
                    continue
                if seq not in self.leased_by_key.get(key, ()):
                    detail = f"the usage of the limit {key} does not include the job"
                    yield IndexProblem("limit", detail, job=leased)
        for key in list(self.leased_by_key):
            for seq in list(self.leased_by_key.get(key, ())):
                yield None
                leased = engine.leased.get(seq)
                listed = seq in self.leased_by_key.get(key, ())
                if listed and (leased is None or not uses(leased, key)):
                    detail = f"the usage of the limit {key} wrongly includes job {seq}"
                    yield IndexProblem("limit", detail)
        yield from self.parked.problems()


def read_limit(setting: bytes) -> Limit:
    """A limit from its durable setting."""
    return Limit(*msgspec.msgpack.decode(setting))


def keys_of(job: Job) -> list[str]:
    """The keys of a job: the keys that its producer named, and the key of its queue."""
    own = QUEUE_KEY_PREFIX + job.queue
    details = None if job.extra is None else job.extra.details
    if details is None or not details.limits:
        return [own]
    return [key for key in details.limits if key != own] + [own]


def uses(job: Job, key: str) -> bool:
    """Whether a leased job uses a key."""
    if job.state != LEASED or key not in keys_of(job):
        return False
    details = None if job.extra is None else job.extra.details
    return details is None or key not in details.released_limits
