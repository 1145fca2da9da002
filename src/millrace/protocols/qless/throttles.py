"""Throttles: what reqless calls the limits of the engine.

A job has the throttle of its queue, `ql:q:<queue>`, and the throttles that its producer specified.
It acquires all of them when a worker of any protocol gets it, and releases them when it leaves its
worker. If a pop finds a full throttle, the engine parks the job: it is `throttled` until the
throttle has room. The engine does all of this, see engine/limits.py.
"""

from collections.abc import Callable, Generator
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from millrace.engine.job import Job
from millrace.engine.limits import QUEUE_KEY_PREFIX, Limit, keys_of
from millrace.engine.parked_jobs import parked_of
from millrace.engine.queues import Queue
from millrace.engine.states import READY
from millrace.protocols.registry import QLESS
from millrace.protocols.slices import map_in_slices, sort_in_slices

from . import lua_values as lua
from .arguments import Args, parse_number, text, texts
from .job_view import wait_start

if TYPE_CHECKING:
    from .state import QlessState

names_of: Final = keys_of


class Throttles:
    """The limits of the engine, for the clients of one port."""

    def __init__(self, q: "QlessState") -> None:
        self.q = q
        self._limits = q.engine.limits

    def __bool__(self) -> bool:
        """Return whether jobs are or may be throttled."""
        return bool(self._limits.by_key or self._limits.parked.by_key)

    # Limits

    @property
    def limits(self) -> dict[str, Limit]:
        return self._limits.by_key

    def limit(self, tid: str, now: int) -> Limit | None:
        """Return a limit that has not ended."""
        return self._limits.limit(tid, now)

    def maximum(self, tid: str, now: int) -> float:
        limit = self.limit(tid, now)
        return 0 if limit is None else limit.maximum

    def ttl(self, tid: str, now: int) -> int:
        """Return the time to live in seconds, as in Redis: -1 means permanent, -2 means none."""
        limit = self.limit(tid, now)
        if limit is None:
            return -2
        now = self.q.engine.caller.time(now, limit.clock_offset)
        return (limit.expires_at - now + 500_000) // 1_000_000 if limit.expires_at else -1

    def set(self, tid: str, maximum: float, expires: int, now: int) -> None:
        """Set a limit. Without a new time to live, the current one remains."""
        self.q.engine.set_limit(tid, maximum, expires, now)

    def delete(self, tid: str, now: int) -> None:
        self.q.engine.set_limit(tid, None, 0, now)

    # Holders and waiting jobs

    def jobs_holding(self, tid: str) -> list[Job]:
        """Return the jobs that hold a throttle, by jid."""
        return self._visible(self._limits.leased_jobs(tid))

    def waiting(self, tid: str) -> list[Job]:
        """Return the jobs that wait for a throttle, the longest waiting first."""
        return self._visible(self._limits.parked.jobs_for_key(tid))

    def throttled(self, queue: str) -> list[Job]:
        """Return the throttled jobs of a queue, the longest waiting first."""
        known = self.q.engine.queue(queue)
        parked = [] if known is None else known.ready.parked.values()
        return sorted(parked, key=_wait_key)

    def throttled_in_slices(self, queue: str) -> Generator[None, None, list[Job]]:
        known = self.q.engine.queue(queue)
        parked = [] if known is None else list(known.ready.parked.values())
        rows = ((*_wait_key(job), number, job) for number, job in enumerate(parked))
        return (yield from map_in_slices((yield from sort_in_slices(rows)), lambda row: row[-1]))

    def count(self, queue: str) -> int:
        """Return the number of throttled jobs of a queue."""
        known = self.q.engine.queue(queue)
        return 0 if known is None else len(known.ready.parked)

    def _visible(self, jobs: list[Job]) -> list[Job]:
        return [job for job in jobs if self.q.engine.allows(job.queue)]

    def release(self, tid: str, jid: str, now: int) -> None:
        """Release a job from a throttle that it holds or waits for."""
        job = self.q.find(jid)
        if job is not None:
            self.q.engine.limits.release(job, tid, now)

    # Popping

    def has_room(self, queue: str, now: int) -> bool:
        """Return whether the throttle of the queue admits another job."""
        return self._limits.has_room(QUEUE_KEY_PREFIX + queue, now)

    def note_usage(self, job: Job, usage: dict[str, int]) -> None:
        """Record the usage of each throttle of a job, unless it is recorded already."""
        if self.limits:
            for tid in keys_of(job):
                if tid in self.limits:
                    usage.setdefault(tid, self._limits.usage(tid))

    def has_room_again(self, job: Job, usage: dict[str, int], now: int) -> bool:
        """Return whether a job that has lost its lock may get another one: its limits have room, or
        it counts in place of the old one.
        """
        return all(
            self._limits.has_room(tid, now) or self._limits.usage(tid) < before
            for tid, before in usage.items()
            if tid in keys_of(job)
        )

    def lease(self, queue: str, worker: str, now: int, until: int, count: float) -> list[Job]:
        """Lease ready jobs that are not throttled. Each round examines one job for each job still
        wanted. `max-pop-retry` is the number of rounds, so a pop may return fewer jobs than
        possible.
        """
        known = self.q.engine.queue(queue)
        if known is None or count <= 0:
            return []
        self._limits.unpark_freed(now)  # the locks of some jobs may just have expired
        self._limits.unpark_released(known, now)
        local = self.q.client_name(queue)
        rounds = self.q.options.number(
            f"{local}-max-pop-retry", self.q.options.number("max-pop-retry", 1)
        )
        popped: list[Job] = []
        while rounds > 0 and len(popped) < count:
            found = self._first(known, count - len(popped))
            if not found:
                break
            for job in found:
                if job.state != READY:  # the end of a damaged job has let another client lease it
                    continue
                tid = self._limits.key_at_limit(job, now)
                if tid is not None:
                    self.park(job, tid, now)
                elif self.q.engine.lease_job(job, worker, QLESS, now, until, wait_start):
                    popped.append(job)
            rounds -= 1
        return popped

    def _first(self, queue: Queue, count: float) -> list[Job]:
        found = queue.ready.first(ceil(min(count, 1 << 31)))
        return [job for job in found if job.seq not in queue.ready.parked]

    def park_if_full(self, job: Job, now: int) -> None:
        """Let a ready job wait if one of its throttles is full."""
        tid = self._limits.key_at_limit(job, now) if job.state == READY else None
        if tid is not None and parked_of(job) is None:
            self.park(job, tid, now)

    def park(self, job: Job, tid: str, now: int) -> None:
        self._limits.park(job, tid, now, self.q.client_name(job.queue))


def _wait_key(job: Job) -> tuple[int, str, int]:
    parked = parked_of(job)
    return (0 if parked is None else parked.since, job.jid, job.seq)


# Commands


def _tid(q: "QlessState", args: Args) -> str:
    """Return the name of a throttle in the engine."""
    return q.throttle_name(text(args, 0, "Throttle(): no tid provided"))


def get(q: "QlessState", now: int, args: Args) -> bytes:
    """Return the id, the maximum and the time to live of a throttle. Arguments: throttle."""
    tid = _tid(q, args)
    maximum, ttl = q.throttles.maximum(tid, now), q.throttles.ttl(tid, now)
    return b'{"id":%b,"maximum":%b,"ttl":%d}' % (
        lua.encode_string(q.client_throttle_name(tid)),
        lua.format_number(maximum),
        ttl,
    )


def set_(q: "QlessState", now: int, args: Args) -> None:
    """Set the maximum and the time to live of a throttle. Arguments: throttle, maximum, seconds."""
    tid = _tid(q, args)
    error = 'Throttle(): Arg "{}" missing or not a number: '
    maximum = parse_number(args, 1, error.format("maximum"))
    seconds = parse_number(args, 2, error.format("expiration"), 0)
    expires = now + lua.to_microseconds(seconds) if seconds > 0 else 0
    q.throttles.set(tid, maximum, expires, now)


def delete(q: "QlessState", now: int, args: Args) -> None:
    """Delete a throttle. Arguments: throttle."""
    q.throttles.delete(_tid(q, args), now)


def locks(q: "QlessState", now: int, args: Args) -> list[str]:
    """Return the jids of the jobs that hold a throttle. Arguments: throttle."""
    return [q.client_name(job.jid) for job in q.throttles.jobs_holding(_tid(q, args))]


def pending(q: "QlessState", now: int, args: Args) -> list[str]:
    """Return the jids of the jobs that wait for a throttle. Arguments: throttle."""
    return [q.client_name(job.jid) for job in q.throttles.waiting(_tid(q, args))]


def ttl(q: "QlessState", now: int, args: Args) -> int:
    """Return the remaining seconds of a throttle, -1 if it does not expire. Arguments: throttle."""
    return q.throttles.ttl(_tid(q, args), now)


def release(q: "QlessState", now: int, args: Args) -> None:
    """Release jobs from a throttle that they hold or wait for. Arguments: throttle, jids."""
    tid = _tid(q, args)
    for jid in texts(args, 1):
        q.throttles.release(tid, jid, now)


#: Commands on throttles. Dialects D and T have the same names for them.
COMMANDS: Final[dict[str, Callable[["QlessState", int, Args], Any]]] = {
    "throttle.get": get,
    "throttle.set": set_,
    "throttle.delete": delete,
    "throttle.locks": locks,
    "throttle.pending": pending,
    "throttle.ttl": ttl,
    "throttle.release": release,
}
READ_COMMANDS: Final = frozenset(
    {"throttle.get", "throttle.locks", "throttle.pending", "throttle.ttl"}
)
