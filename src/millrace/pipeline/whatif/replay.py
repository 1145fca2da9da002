"""Replays visits through the engine on a virtual clock.

The replay pushes each job at its recorded time. A slot leases the next job that the engine offers
when its previous job has ended and its turnaround is over. The job ends after its recorded run time
with its recorded outcome, and retries follow with their recorded delays, unless the scenario
changes them. The engine decides which job a slot gets.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import Any, Final

from millrace.engine.engine import Engine
from millrace.engine.job import BEFORE_ARRIVALS, FOREVER, NO_PROTOCOL, Job, NewJob
from millrace.engine.limits import QUEUE_KEY_PREFIX
from millrace.engine.states import LEASED, READY, SCHEDULED
from millrace.protocols.registry import HTTP, MASENKO, PROTOCOLS
from millrace.protocols.spec import protocol_rules

from .results import MINUTE, QueueResult
from .scenario import Scenario, apply_workers, factor
from .slots import SHORT_DELAY, Pickup, Pool, SlotKey, SlotRecord, infer
from .visits import NEVER, RETURNS, Period, Visit, VisitKey

_CODES: Final = {row.name: row.code for row in PROTOCOLS}
#: The order of actions at the same time. Absences begin before jobs are ready; they end after the
#: slots that were present took the jobs.
_BLOCK, _END, _PUSH, _DUE, _REMOVE, _FREE, _OFFER, _UNBLOCK, _SAMPLE = range(9)
_BATCH_EVENTS: Final = 5_000
_UNLIMITED: Final = 1 << 30
#: A recorded choice among queues applies to requests within this time of it.
_CHOICE_TOLERANCE: Final = 1_000_000
#: Copies of jobs arrive within this time of the original.
_JITTER: Final = 30_000_000


class _Group:
    """The slots of a worker, which are interchangeable."""

    __slots__ = ("actor", "blocks", "choice", "idle", "preferences", "slots")

    def __init__(self, record: SlotRecord) -> None:
        self.preferences = record.preferences
        #: The number of the next recorded choice.
        self.choice = 0
        self.actor = _CODES.get(record.holder, HTTP)
        self.slots = 0
        #: The number of slots without a job.
        self.idle = 0
        #: The number of idle slots that take no job of a queue, because they are absent.
        self.blocks = dict.fromkeys(record.queues, 0)

    def takes(self, queue: str) -> bool:
        return self.idle > self.blocks[queue]

    def order(self, now: int, random: Random) -> list[str]:
        """The order of the queues for a request: as recorded at about this time, or random."""
        order, choices = self.preferences.draw(random), self.preferences.choices
        while self.choice < len(choices) and choices[self.choice][0] < now - _CHOICE_TOLERANCE:
            self.choice += 1
        if self.choice < len(choices) and choices[self.choice][0] <= now + _CHOICE_TOLERANCE:
            first = choices[self.choice][1]
            order.sort(key=lambda each: each != first)
        return order


class _Chain:
    """A job of the replay: its recorded visits, and the one that is current."""

    __slots__ = ("at", "attempts", "job", "lease", "origin", "ready", "repeats", "visits")

    def __init__(self, visits: list[Visit]) -> None:
        self.visits = visits
        self.at = 0
        self.attempts = 0
        self.origin = _CODES.get(visits[0].origin, HTTP)
        self.job: Job | None = None
        self.ready = 0
        #: The recorded lease that the current one repeats.
        self.lease = visits[0]
        #: The job has more attempts than the recording.
        self.repeats = False

    @property
    def visit(self) -> Visit:
        return self.visits[self.at]

    @property
    def following(self) -> Visit | None:
        return self.visits[self.at + 1] if self.at + 1 < len(self.visits) else None

    def advance(self) -> None:
        """Go to the next visit; without one, the last visit stays current."""
        if self.following is None or self.following.queue != self.visit.queue:
            self.repeats = True
        else:
            self.at += 1


class Replay:
    """One replay of a period."""

    def __init__(
        self,
        visits: Sequence[Visit],
        period: Period,
        scenario: Scenario,
        *,
        seed: int = 0,
        pool: Pool | None = None,
    ) -> None:
        self.period, self.scenario = period, scenario
        self.random = Random(seed)
        self.engine = Engine(Random(seed), protocol_rules())
        self.pool = infer(visits, period) if pool is None else pool
        self.results: dict[str, QueueResult] = defaultdict(QueueResult)
        self.slots = apply_workers(self.pool.slots, scenario.workers)
        self.groups: dict[SlotKey, _Group] = {}
        self._serving: dict[str, list[_Group]] = defaultdict(list)
        #: The worker that took the job of a visit in the recording.
        self._takers: dict[VisitKey, _Group] = {}
        self._chains: dict[int, _Chain] = {}
        self._heap: list[tuple[int, int, int, Any]] = []
        self._number = 0
        #: The visits of each job in order.
        self._jobs: dict[int, list[Visit]] = defaultdict(list)
        for visit in sorted(visits, key=lambda each: each.ready):
            self._jobs[visit.seq].append(visit)
        self._observe(visits)
        for queue, maximum in scenario.limits.items():
            self.engine.set_limit(QUEUE_KEY_PREFIX + queue, maximum, 0, period.start)
        self._plan_slots()
        self._plan_jobs()
        for queue in {visit.queue for visit in visits}:
            _ = self.results[queue]
        self._at(period.start - period.start % MINUTE + MINUTE, _SAMPLE, None)

    def _observe(self, visits: Iterable[Visit]) -> None:
        """Collect delays and leases for cases that the recording does not have."""
        self._pickups: dict[str, list[Pickup]] = defaultdict(list)
        #: Ended leases by kind, and those of retries.
        self._ended: dict[str, list[Visit]] = defaultdict(list)
        self._retried: dict[str, list[Visit]] = defaultdict(list)
        #: The delay between the end of a lease and the retry of its job in the same queue. A lease
        #: without one is the last: its job ended, was removed, or was not due in the period.
        self._retry_delays: dict[VisitKey, int] = {}
        for found in self._jobs.values():
            for visit, following in pairwise(found):
                if following.queue == visit.queue:
                    self._retry_delays[visit.key] = max(0, following.ready - visit.ended)
        seen: set[int] = set()
        for visit in visits:
            if (pickup := self.pool.pickups.get(visit.key)) is not None:
                self._pickups[visit.queue].append(pickup)
            if visit.is_leased and visit.ended < NEVER:
                self._ended[visit.kind].append(visit)
                if visit.seq in seen:
                    self._retried[visit.kind].append(visit)
                seen.add(visit.seq)

    # The plan

    def _at(self, time: int, action: int, argument: Any) -> None:
        self._number += 1
        heappush(self._heap, (time, action, self._number, argument))

    def _plan_jobs(self) -> None:
        for found in self._jobs.values():
            for copy in range(self._copies(found[0].queue)):
                shift = 0 if not copy else self.random.randrange(-_JITTER, _JITTER)
                chain = _Chain([_shifted(each, shift) for each in found] if shift else found)
                visit = chain.visit
                held = visit.leased < self.period.start
                pushed = visit.ready if held else min(visit.created, visit.ready)
                self._at(pushed, _PUSH, (chain, visit.ready))

    def _copies(self, queue: str) -> int:
        wanted = factor(self.scenario.arrivals, queue)
        return int(wanted) + (self.random.random() < wanted % 1 if wanted % 1 else 0)

    def _plan_slots(self) -> None:
        start = self.period.start
        for slot in self.slots:
            group = self._group(slot)
            group.slots += 1
            for visit in slot.leases:
                self._takers[visit.key] = group
            for queue, windows in slot.blocked.items():
                for began, over in windows:
                    self._at(max(start, began), _BLOCK, (group, queue))
                    if over < self.period.end:
                        self._at(over, _UNBLOCK, (group, queue))
            if not slot.leases or slot.leases[0].leased >= start:
                self._at(start, _FREE, group)

    def _group(self, slot: SlotRecord) -> _Group:
        found = self.groups.get(slot.key)
        if found is None:
            found = self.groups[slot.key] = _Group(slot)
            for queue in slot.queues:
                self._serving[queue].append(found)
        return found

    # The run

    def run(self) -> dict[str, QueueResult]:
        """Replay the period and return the results by queue."""
        engine, heap, end = self.engine, self._heap, self.period.end
        actions = (
            self._block, self._end, self._push, self._due, self._remove, self._free,
            self._offer, self._unblock, self._sample,
        )  # fmt: skip
        while heap and heap[0][0] < end:
            time, action, _, argument = heappop(heap)
            actions[action](argument, time)
            if len(engine.change_set.events) > _BATCH_EVENTS:
                engine.take_changes()
        for name, result in self.results.items():
            result.unserved = self._ready(name)
        return self.results

    def _push(self, argument: tuple[_Chain, int], now: int) -> None:
        """Push a job, to be ready at the given time."""
        chain, ready = argument
        visit = chain.visit
        due = ready if ready > now else 0
        rank = self.scenario.priorities.get(visit.kind, visit.priority)
        position = BEFORE_ARRIVALS + due if due and chain.origin == MASENKO else 0
        push = NewJob(
            "", visit.kind, b"", chain.origin, visit.queue, _UNLIMITED, FOREVER, rank=rank,
            due_at=due, position=position,
        )  # fmt: skip
        job = self.engine.push(push, now)
        chain.job = job
        self._chains[job.seq] = chain
        if visit.leased < self.period.start and job.state == READY:
            self._resume(chain, now)
        elif job.state == SCHEDULED:
            self._at(due, _DUE, chain)
        else:
            self._became_ready(chain, now)

    def _resume(self, chain: _Chain, now: int) -> None:
        """Lease a job that a worker holds at the start of the period."""
        visit, job = chain.visit, chain.job
        assert job is not None
        group = self._takers.get(visit.key)
        self.engine.lease_job(job, "slot", group.actor if group else HTTP, now, FOREVER)
        chain.attempts += 1
        chain.lease = visit
        if visit.ended < NEVER:
            self._at(max(visit.ended, self.period.start), _END, (group, chain))

    def _due(self, chain: _Chain, now: int) -> None:
        """A scheduled job is due."""
        self._tick(now)
        if chain.job is not None and chain.job.state == READY:
            self._became_ready(chain, now)

    def _tick(self, now: int) -> None:
        engine = self.engine
        timer = engine.next_timer()
        while timer is not None and timer <= now:
            engine.tick(now)
            timer = engine.next_timer()

    def _became_ready(self, chain: _Chain, now: int) -> None:
        visit = chain.visit
        chain.ready = now
        self._at(max(self.period.start, now + self._pickup_delay(visit)), _OFFER, chain)
        if not visit.is_leased and visit.ended < NEVER:
            self._at(max(now, visit.ended), _REMOVE, chain)

    def _remove(self, chain: _Chain, now: int) -> None:
        """A client or the end of its time to live removes a job that waits."""
        if chain.job is not None and chain.job.state == READY:
            self._leave(chain, now)
            self._continue(chain, now)

    def _pickup_delay(self, visit: Visit) -> int:
        """The delay until an idle slot takes a job, as recorded or as of another job."""
        pickup = self.pool.pickups.get(visit.key)
        if pickup is None:
            some = self._pickups[visit.queue]
            if not some:
                return 0
            pickup = self.random.choice(some)
        if pickup.delay < SHORT_DELAY:
            return pickup.delay
        serving = self._serving[visit.queue]
        idle = sum(max(0, group.idle - group.blocks[visit.queue]) for group in serving)
        return pickup.with_idle(max(1, idle))

    # Slots

    def _block(self, argument: tuple[_Group, str], now: int) -> None:
        group, queue = argument
        group.blocks[queue] += 1

    def _unblock(self, argument: tuple[_Group, str], now: int) -> None:
        group, queue = argument
        group.blocks[queue] -= 1
        self._fetch(group, now)

    def _free(self, group: _Group, now: int) -> None:
        """A slot is idle and requests a job."""
        group.idle += 1
        self._fetch(group, now)

    def _offer(self, chain: _Chain, now: int) -> None:
        """Idle slots request jobs until one gets this job."""
        job = chain.job
        while job is not None and job is chain.job and job.state == READY:
            group = self._takers.get(chain.visit.key)
            if group is None or not group.takes(job.queue):
                serving = self._serving[job.queue]
                group = next((each for each in serving if each.takes(job.queue)), None)
            if group is None or not self._fetch(group, now):
                return  # no slot is idle, or a limit keeps the job

    def _fetch(self, group: _Group, now: int) -> bool:
        """An idle slot requests a job."""
        queues = [queue for queue in group.order(now, self.random) if group.takes(queue)]
        is_choice = sum(self._ready(queue) > 0 for queue in queues) > 1
        job = self.engine.lease(queues, "slot", group.actor, now, FOREVER)
        if job is None:
            return False
        group.idle -= 1
        group.choice += is_choice
        chain = self._chains[job.seq]
        chain.attempts += 1
        result = self.results[job.queue]
        early = 0 if chain.repeats else chain.visit.early
        result.add_wait(max(0, now - job.ready_at) + early)
        chain.lease = self._lease_of(chain)
        run = self._run_time(chain.lease)
        result.busy += min(run, self.period.end - now)
        if chain.lease.key in self.pool.freed:
            freed = self.pool.freed[chain.lease.key] - chain.lease.leased
            self._release_slot(group, chain.lease, now + freed)
            self._at(now + run, _END, (None, chain))
        else:
            self._at(now + run, _END, (group, chain))
        return True

    def _ready(self, name: str) -> int:
        """The number of ready jobs of a queue."""
        queue = self.engine.queues.get(name)
        return 0 if queue is None else queue.counts[READY]

    def _lease_of(self, chain: _Chain) -> Visit:
        """The recorded lease that the current one repeats, or that of another job of its kind."""
        visit = chain.visit
        some = self._ended[visit.kind]
        if visit.is_leased and not chain.repeats:
            if visit.ended < NEVER or visit.key in self.pool.freed:
                return visit
            # It had not ended at the end of the recording.
            elapsed = self.period.end - visit.leased
            some = [each for each in some if each.ended - each.leased >= elapsed]
            return self.random.choice(some) if some else visit
        if chain.attempts > 1 and (visit.is_leased or self._retried[visit.kind]):
            some = self._retried[visit.kind]
        return self.random.choice(some) if some else visit

    def _run_time(self, lease: Visit) -> int:
        if not lease.is_leased or lease.ended >= NEVER:
            return NEVER if lease.is_leased else 0
        return round((lease.ended - lease.leased) * factor(self.scenario.runs, lease.kind))

    def _end(self, argument: tuple[_Group | None, _Chain], now: int) -> None:
        """A lease ends as recorded, and its slot requests the next job after its turnaround."""
        group, chain = argument
        visit = chain.visit
        self._finish(chain, now)
        if group is not None:
            self._release_slot(group, visit, now)
        if visit.queue in self.scenario.limits:
            for other in self._serving[visit.queue]:
                if other.takes(visit.queue) and self._fetch(other, now):
                    return

    def _release_slot(self, group: _Group, visit: Visit, at: int) -> None:
        """Free a slot after the turnaround of a visit."""
        usual = self.pool.usual_turnarounds.get(visit.queue, 0)
        self._at(at + self.pool.turnarounds.get(visit.key, usual), _FREE, group)

    # Ends of leases

    def _finish(self, chain: _Chain, now: int) -> None:
        job, lease = chain.job, chain.lease
        assert job is not None
        assert job.state == LEASED
        if lease.outcome not in RETURNS:
            self.engine.complete(job, now, job.holder_protocol)
            self._leave(chain, now)
            self._continue(chain, now)
        elif lease.outcome == "released":
            self.engine.release(job, now)
            self._return(chain, now)
        else:
            self._fail(chain, now)

    def _fail(self, chain: _Chain, now: int) -> None:
        """End a failed lease. The recorded policy, or that of the scenario, decides on a retry."""
        job, visit, lease, scenario = chain.job, chain.visit, chain.lease, self.scenario
        assert job is not None
        self.results[visit.queue].failures += 1
        delay = self._retry_delays.get(lease.key)
        retried = delay is not None
        retry_at = None if delay is None else now + delay
        if scenario.retries is not None:
            retried = chain.attempts <= scenario.retries
        if scenario.retry_delay is not None:
            retry_at = now + scenario.retry_delay
        self.engine.fail(
            job, now, job.holder_protocol, "", "", [], cause=lease.outcome, final=not retried,
            retry_at=retry_at,
        )  # fmt: skip
        if not retried:
            self._leave(chain, now)
            if scenario.retries is None and lease is visit:
                self._continue(chain, now)
        elif job.state == READY:
            self._return(chain, now)
        else:
            if chain.origin == MASENKO:
                self.engine.set_rank(job, job.rank, BEFORE_ARRIVALS + job.due_at)
            chain.advance()
            self._at(job.due_at, _DUE, chain)

    def _return(self, chain: _Chain, now: int) -> None:
        """A job is ready again at once."""
        chain.advance()
        self._became_ready(chain, now)

    def _leave(self, chain: _Chain, now: int) -> None:
        """Remove a job from the engine."""
        job = chain.job
        assert job is not None
        if self.engine.jobs.get(job.seq) is job:
            self.engine.cancel(job, now, NO_PROTOCOL)
        self._chains.pop(job.seq, None)
        chain.job = None

    def _continue(self, chain: _Chain, now: int) -> None:
        """Push the next visit of a job that left its queue, after the recorded delay."""
        following = chain.following
        if following is not None:
            ready = now + max(0, following.ready - chain.visit.ended)
            chain.at += 1
            chain.repeats = False
            self._at(ready, _PUSH, (chain, ready))

    def _sample(self, _: None, now: int) -> None:
        """Record the backlog of each queue at the end of a minute."""
        for name, result in self.results.items():
            result.backlog[now - MINUTE] = self._ready(name)
        self._at(now + MINUTE, _SAMPLE, None)


def _shifted(visit: Visit, by: int) -> Visit:
    """The visit of a copy of a job."""
    leased = visit.leased + by if visit.leased < NEVER else NEVER
    ended = visit.ended + by if visit.ended < NEVER else NEVER
    return visit._replace(
        created=visit.created + by, ready=visit.ready + by, leased=leased, ended=ended
    )
