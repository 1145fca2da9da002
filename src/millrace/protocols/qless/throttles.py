"""Throttles limit the number of jobs of a kind that workers hold at the same time.

A job has the throttle of its queue, `ql:q:<queue>`, and the throttles that its producer specified.
It acquires all of them when it is popped, and releases them when it leaves its worker for any
reason. If a pop finds a full throttle, it sets the job aside: the job is `throttled`, and sorts
after all other ready jobs until the full throttles have room.

The limit of a throttle is a note of the engine. The holders and the waiting jobs are computed from
the jobs, like the other indexes. A job may leave its worker without a call to Qless, so holders are
checked again when a throttle seems full, and by `settle` if a job waits for it. Throttles apply
only to workers that pop over Qless. Workers of other protocols ignore them.
"""

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.engine.job import QLESS, Job
from millrace.engine.ready import ReadyQueue
from millrace.engine.states import LEASED, READY

from . import lua_values as lua
from .arguments import Args, number, text, texts
from .job_view import Throttled, part_of, read_part, waits_since

if TYPE_CHECKING:
    from .state import Qless

#: Prefixes of the notes, and of the throttle names of queues.
NOTE: Final = "qless/throttle/"
OF_QUEUE: Final = "ql:q:"
#: Rank below every priority.
LAST: Final = -(1 << 62)


#: Start time of the wait, jid, seq.
Heap = list[tuple[int, str, int]]


class Limit(msgspec.Struct, array_like=True, gc=False):
    #: Maximum number of jobs. 0: unlimited.
    maximum: float
    #: Expiry time, by the callers' clocks. 0: never.
    expires: int = 0


class Throttles:
    def __init__(self, q: "Qless") -> None:
        self.q = q
        self.limits: dict[str, Limit] = {}
        #: Holders of each throttle that has a limit. Some entries may be out of date.
        self._held: dict[str, set[int]] = {}
        #: Jobs that wait for each throttle, the longest waiting first. Some entries may be out of
        #: date. Jobs under "" were released from their throttle and wait for the next pop.
        self.pending: dict[str, Heap] = {}
        self._rebuilt = False
        #: Number of limits at which expired ones are removed.
        self._enough = 64

    def __bool__(self) -> bool:
        """Return whether jobs are or may be throttled."""
        return bool(self.limits or self.pending)

    # Building

    def build(self, notes: dict[str, bytes]) -> None:
        self.limits = {
            key[len(NOTE) :]: msgspec.msgpack.decode(value, type=Limit)
            for key, value in notes.items()
            if key.startswith(NOTE)
        }
        self._held, self.pending = {}, {}
        self._rebuilt = True

    def index(self, job: Job) -> None:
        if job.state == LEASED and job.actor == QLESS:
            if self.limits:
                self._take(job)
        elif job.extra is not None and job.extra.own is not None:
            aside = read_part(job).throttled
            if aside is not None:
                heappush(self.pending.setdefault(aside.throttle, []), _entry(job, aside))

    # Limits

    def limit(self, tid: str, now: int) -> Limit | None:
        found = self.limits.get(tid)
        if found is None or (found.expires and found.expires <= now):
            return None
        return found

    def maximum(self, tid: str, now: int) -> float:
        limit = self.limit(tid, now)
        return 0 if limit is None else limit.maximum

    def ttl(self, tid: str, now: int) -> int:
        """Return the seconds to live, as in Redis: -1 for a permanent limit, -2 for none."""
        limit = self.limit(tid, now)
        if limit is None:
            return -2
        return (limit.expires - now + 500_000) // 1_000_000 if limit.expires else -1

    def set(self, tid: str, maximum: float, expires: int, now: int) -> None:
        """Set a limit. Without a new time to live, the current one remains."""
        if len(self.limits) >= self._enough:
            self._sweep(now)
        known = self.limit(tid, now)
        if not expires and known is not None:
            expires = known.expires
        limit = self.limits[tid] = Limit(maximum, expires)
        self.q.engine.note(NOTE + tid, msgspec.msgpack.encode(limit))
        self._held[tid] = {job.seq for job in self.holders(tid)}
        self._relieve(tid, now)

    def delete(self, tid: str, now: int) -> None:
        if self.limits.pop(tid, None) is not None:
            self._held.pop(tid, None)
            self.q.engine.note(NOTE + tid, None)
            self._relieve(tid, now)

    def _sweep(self, now: int) -> None:
        """Remove expired limits."""
        for tid in [tid for tid in self.limits if self.limit(tid, now) is None]:
            self.delete(tid, now)
        self._enough = 2 * len(self.limits) + 64

    # Holders and waiting jobs

    def holders(self, tid: str) -> list[Job]:
        """Return the jobs that hold a throttle, by jid."""
        leased = [job for job in self.q.engine.leased.values() if _holds(job, tid)]
        return sorted(leased, key=lambda job: job.jid)

    def some_holders(self, tid: str, most: int) -> list[Job]:
        """Return some jobs that hold a limited throttle, without a scan of all leased jobs."""
        jobs = self.q.engine.jobs
        found = map(jobs.get, list(self._held.get(tid, ())))
        return list(islice((job for job in found if job and _holds(job, tid)), most))

    def some_waiting(self, tid: str, most: int) -> list[Job]:
        """Return some jobs that wait for a throttle, including the longest waiting ones."""
        entries = sorted(self.pending.get(tid, [])[: 4 * most])
        found = (self._aside(tid, entry) for entry in entries)
        return list(islice((job for job in found if job is not None), most))

    def waiting(self, tid: str) -> list[Job]:
        """Jobs that wait for a throttle, the longest waiting first."""
        entries = sorted(self.pending.get(tid, ()))
        return [job for entry in entries if (job := self._aside(tid, entry)) is not None]

    def throttled(self, queue: str) -> list[Job]:
        """Return the throttled jobs of a queue, the longest waiting first."""
        found = [
            (entry, job)
            for tid, heap in self.pending.items()
            for entry in heap
            if (job := self._aside(tid, entry)) is not None
            and (job.queue, job.state) == (queue, READY)
        ]
        return [job for _, job in sorted(found, key=lambda each: each[0])]

    def counted(self) -> Counter[str]:
        """Return the number of throttled jobs of each queue."""
        found = (self._aside(tid, entry) for tid, heap in self.pending.items() for entry in heap)
        return Counter(job.queue for job in found if job is not None and job.state == READY)

    def _aside(self, tid: str, entry: tuple[int, str, int]) -> Job | None:
        """Return the job of an entry if it still waits."""
        job = self.q.engine.jobs.get(entry[2])
        aside = None if job is None else read_part(job).throttled
        if aside is None or (aside.throttle, aside.since) != (tid, entry[0]):
            return None
        return job

    def settle(self, now: int) -> None:
        """Make jobs ready that wait for a throttle with free places."""
        if not self.pending or self.q.engine.halted:
            return
        rebuilt, self._rebuilt = self._rebuilt, False
        for tid in [tid for tid in self.pending if tid]:
            if rebuilt or not self.maximum(tid, now):
                self._relieve(tid, now)
            else:
                self._taken(tid, now)

    def release(self, tid: str, jid: str, now: int) -> None:
        """Release a job from a throttle that it holds or waits for."""
        job = self.q.find(jid)
        if job is None:
            return
        part = part_of(job)
        if _holds(job, tid):
            part.freed.append(tid)
            self.q.engine.touch(job)
            if tid in self.limits:
                self._taken(tid, now)
        elif part.throttled is not None and part.throttled.throttle == tid:
            part.throttled.throttle = ""
            heappush(self.pending.setdefault("", []), _entry(job, part.throttled))
            self.q.engine.touch(job)
            self._relieve(tid, now)

    def _taken(self, tid: str, now: int) -> int:
        """Return the number of holders of a throttle that has a limit. Former holders are removed,
        and waiting jobs take their place.
        """
        held = self._held.setdefault(tid, set())
        jobs = self.q.engine.jobs
        left = [seq for seq in held if (job := jobs.get(seq)) is None or not _holds(job, tid)]
        if left:
            held.difference_update(left)
            self._relieve(tid, now)
        return len(held)

    def _relieve(self, tid: str, now: int) -> None:
        """Make jobs that wait for a throttle ready, up to the number of free places."""
        heap = self.pending.get(tid)
        if heap is None:
            return
        maximum = self.maximum(tid, now)
        room = maximum - len(self._held.get(tid, ())) if maximum else len(heap)
        while heap and room >= 1:
            job = self._aside(tid, heappop(heap))
            if job is not None:
                self._wake(job, now)
                room -= 1
        if not heap:
            del self.pending[tid]

    def _wake(self, job: Job, now: int) -> None:
        """Make a throttled job ready, ahead of jobs that return at the same time."""
        part = part_of(job)
        assert part.throttled is not None
        rank, part.throttled = part.throttled.rank, None
        self.q.engine.rerank(job, rank, now - 1)

    # Popping

    def room(self, queue: str, now: int) -> bool:
        """Return whether the throttle of the queue admits another job."""
        return self._admits(OF_QUEUE + queue, now)

    def _admits(self, tid: str, now: int) -> bool:
        maximum = self.maximum(tid, now)
        if not maximum or len(self._held.get(tid, ())) < maximum:
            return True
        return self._taken(tid, now) < maximum

    def full(self, job: Job, now: int) -> str | None:
        """Return the first full throttle of a job."""
        return next((tid for tid in names_of(job) if not self._admits(tid, now)), None)

    def lease(self, queue: str, worker: str, now: int, until: int, most: float) -> list[Job]:
        """Lease ready jobs that are not throttled. Each round examines one job for each job still
        wanted. `max-pop-retry` is the number of rounds, so a pop may return fewer jobs than
        possible.
        """
        known = self.q.engine.queues.get(queue)
        if known is None or most <= 0:
            return []
        self.settle(now)  # some jobs may just have lost their locks
        self._look_again(queue, now)
        local = self.q.local(queue)
        rounds = self.q.setting(f"{local}-max-pop-retry", self.q.setting("max-pop-retry", 1))
        popped: list[Job] = []
        while rounds > 0 and len(popped) < most:
            found = _first(known.ready, most - len(popped))
            if not found:
                break
            for job in found:
                tid = self.full(job, now)
                if tid is None:
                    self.q.engine.lease_this(job, worker, QLESS, now, until, waits_since)
                    part_of(job).freed.clear()
                    self._take(job)
                    popped.append(job)
                else:
                    self.set_aside(job, tid, now)
            rounds -= 1
        return popped

    def set_aside(self, job: Job, tid: str, now: int) -> None:
        part = part_of(job)
        if part.stalled:  # its position ahead of all jobs applies only once
            part.stalled, job.rank = False, part.rank
        part.throttled = Throttled(tid, now, job.rank)
        heap = self.pending.setdefault(tid, [])
        heappush(heap, _entry(job, part.throttled))
        if len(heap) > 64 + 2 * len(self.q.engine.jobs):
            heap[:] = sorted(entry for entry in set(heap) if self._aside(tid, entry) is not None)
        if not part.history or part.history[-1][1] != "throttled":
            part.add("throttled", now, self.q.max_history, {"queue": self.q.local(job.queue)})
        self.q.engine.rerank(job, LAST, job.place)

    def _take(self, job: Job) -> None:
        for tid in names_of(job):
            if tid in self.limits:
                self._held.setdefault(tid, set()).add(job.seq)

    def _look_again(self, queue: str, now: int) -> None:
        found = self.waiting("") if "" in self.pending else []
        for job in found:
            if job.queue == queue and job.state == READY and self.full(job, now) is None:
                self._wake(job, now)
        if found:
            still = [e for e in self.pending.pop("") if self._aside("", e) is not None]
            if still:
                self.pending[""] = still


def names_of(job: Job) -> list[str]:
    """Return the throttles of a job: the specified throttles and the throttle of its queue."""
    own = OF_QUEUE + job.queue
    if job.extra is None or job.extra.own is None:
        return [own]  # no Qless client has changed it yet
    return [*(tid for tid in read_part(job).throttles if tid != own), own]


def _holds(job: Job, tid: str) -> bool:
    if job.state != LEASED or job.actor != QLESS:
        return False
    part = read_part(job)
    return (tid in part.throttles or tid == OF_QUEUE + job.queue) and tid not in part.freed


def _entry(job: Job, aside: Throttled) -> tuple[int, str, int]:
    return (aside.since, job.jid, job.seq)


def _first(ready: ReadyQueue, most: float) -> list[Job]:
    """Return the first ready jobs that are not throttled. Throttled jobs, of which there may be a
    large number, sort last.
    """
    found: list[Job] = []
    while len(found) < most and (job := ready.pop()) is not None:
        found.append(job)
        if read_part(job).throttled is not None:
            break
    for job in found:
        ready.add(job)
    return [job for job in found if read_part(job).throttled is None]


# Commands


def _tid(q: "Qless", args: Args) -> str:
    """Return the engine's name of a throttle."""
    return q.scoped_throttle(text(args, 0, "Throttle(): no tid provided"))


def get(q: "Qless", now: int, args: Args) -> bytes:
    """throttle"""
    tid = _tid(q, args)
    maximum, ttl = q.throttles.maximum(tid, now), q.throttles.ttl(tid, now)
    return b'{"id":%b,"maximum":%b,"ttl":%d}' % (
        lua.string(q.local_throttle(tid)),
        lua.number(maximum),
        ttl,
    )


def set_(q: "Qless", now: int, args: Args) -> None:
    """throttle, maximum, seconds to live"""
    tid = _tid(q, args)
    complaint = 'Throttle(): Arg "{}" missing or not a number: '
    maximum = number(args, 1, complaint.format("maximum"))
    seconds = number(args, 2, complaint.format("expiration"), 0)
    expires = now + lua.moment(seconds) if seconds > 0 else 0
    q.throttles.set(tid, maximum, expires, now)


def delete(q: "Qless", now: int, args: Args) -> None:
    """throttle"""
    q.throttles.delete(_tid(q, args), now)


def locks(q: "Qless", now: int, args: Args) -> list[str]:
    """throttle"""
    return [q.local(job.jid) for job in q.throttles.holders(_tid(q, args))]


def pending(q: "Qless", now: int, args: Args) -> list[str]:
    """throttle"""
    return [q.local(job.jid) for job in q.throttles.waiting(_tid(q, args))]


def ttl(q: "Qless", now: int, args: Args) -> int:
    """throttle"""
    return q.throttles.ttl(_tid(q, args), now)


def release(q: "Qless", now: int, args: Args) -> None:
    """throttle, jids"""
    tid = _tid(q, args)
    for jid in texts(args, 1):
        q.throttles.release(tid, jid, now)


#: Commands of dialect D. Earlier scripts have no other names for them.
COMMANDS: Final[dict[str, Callable[["Qless", int, Args], Any]]] = {
    "throttle.get": get,
    "throttle.set": set_,
    "throttle.delete": delete,
    "throttle.locks": locks,
    "throttle.pending": pending,
    "throttle.ttl": ttl,
    "throttle.release": release,
}
READING: Final = frozenset({"throttle.get", "throttle.locks", "throttle.pending", "throttle.ttl"})
