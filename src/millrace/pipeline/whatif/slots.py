"""Slots: the capacity of the workers, inferred from the leases of a period.

A slot is one thread of a worker: it holds at most one job. The leases of a worker are divided among
as many slots as it held jobs at once. Between two leases a slot is idle. If a job of its queues
waited for long in this time, the slot was absent for that queue. A shorter time is a property of
the worker: the turnaround after a job, or the delay until an idle worker, which may poll, takes a
job.

A replay with these slots and delays repeats the recording. A scenario adds or removes slots.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations, pairwise
from random import Random
from typing import Final, NamedTuple

from .intervals import Interval, IntervalCount, containing, difference, gaps, intersection, union
from .visits import NEVER, Period, Visit, VisitKey

#: Minimum wait of a job that shows that an idle slot is absent, in microseconds.
MIN_ABSENCE: Final = 100_000
#: A slot that takes a job so soon after its previous one did not wait for it, in microseconds.
#: Idle slots that take a job so soon do not poll.
SHORT_DELAY: Final = 10_000
#: A slot that waits for a job gets it within this time, in microseconds.
_LATENCY: Final = 500
#: A lease that has not ended may be lost if it takes this multiple of the time of most others.
_LOST_FACTOR: Final = 10
#: A slot is absent if it leaves a job waiting for this multiple of the usual delay.
_ABSENCE_FACTOR: Final = 2
#: The share of leases against the order of the queues of a worker with a fixed order.
_MAX_EXCEPTIONS: Final = 0.1
#: Workers with fewer leases than this on average have a new name for each job.
_MIN_LEASES: Final = 3

#: The slots with the same protocol, worker and queues are interchangeable.
SlotKey = tuple[str, str, tuple[str, ...]]


class Preferences(NamedTuple):
    """The queues of a worker. Some workers have a fixed order, others choose again each time."""

    #: In the order in which the worker prefers them.
    queues: tuple[str, ...]
    #: The relative chances of the queues to be first; empty if the worker has a fixed order.
    weights: tuple[float, ...] = ()
    #: The times at which the worker took a job while another queue had jobs, and the queue it took.
    choices: tuple[tuple[int, str], ...] = ()

    def draw(self, random: Random) -> list[str]:
        """An order of the queues for one request."""
        if not self.weights:
            return list(self.queues)
        keys = [random.random() ** (1 / weight) for weight in self.weights]
        numbers = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)
        return [self.queues[number] for number in numbers]


@dataclass(slots=True, eq=False)
class SlotRecord:
    """A slot: its queues, its leases in order, and the times in which it took no jobs."""

    holder: str
    worker: str
    preferences: Preferences
    leases: list[Visit] = field(default_factory=list)
    #: The worker was present from `first` to `last`.
    first: int = 0
    last: int = 0
    #: The times at which the slot abandoned a job whose lease expired later.
    freed: dict[VisitKey, int] = field(default_factory=dict)
    #: The times in which the slot took no jobs, by queue.
    blocked: dict[str, list[Interval]] = field(default_factory=dict)

    @property
    def queues(self) -> tuple[str, ...]:
        return self.preferences.queues

    @property
    def key(self) -> SlotKey:
        return self.holder, self.worker, self.queues

    def is_blocked(self, queue: str, time: int) -> bool:
        return containing(self.blocked[queue], time) is not None

    def with_free_times(self) -> Iterator[tuple[int, Visit]]:
        """The leases, each with the time since which the slot was free before it."""
        free = self.first
        for visit in self.leases:
            yield free, visit
            free = self.free_at(visit)

    def free_at(self, visit: Visit) -> int:
        """The time at which the slot has ended one of its leases."""
        return self.freed.get(visit.key, visit.ended)

    @property
    def free(self) -> int:
        return self.free_at(self.leases[-1])


class Pickup(NamedTuple):
    """The delay until one of several idle slots takes a job."""

    delay: int
    idle: int

    def with_idle(self, idle: int) -> int:
        """The delay with another number of idle slots, of which the first takes the job."""
        return self.delay if idle == self.idle else self.delay * (self.idle + 1) // (idle + 1)


class Pool(NamedTuple):
    """The slots of a period, and the observed delays of its visits."""

    slots: list[SlotRecord]
    turnarounds: dict[VisitKey, int]
    #: The median turnaround by queue.
    usual_turnarounds: dict[str, int]
    pickups: dict[VisitKey, Pickup]
    #: The times at which a worker abandoned a job whose lease expired later.
    freed: dict[VisitKey, int]


def infer(visits: Sequence[Visit], period: Period) -> Pool:
    """Infer the slots of the workers from the visits of a period."""
    by_queue: dict[str, list[Visit]] = defaultdict(list)
    for visit in visits:
        by_queue[visit.queue].append(visit)
    waiting = {
        queue: IntervalCount((each.ready, min(each.leased, each.ended)) for each in found)
        for queue, found in by_queue.items()
    }
    leases = [each for each in visits if each.is_leased and each.leased < period.end]
    slots = _partition(leases, by_queue, waiting, period)
    tolerances = _tolerances(slots)
    long_waits: dict[tuple[str, int], list[Interval]] = {}
    by_worker: dict[SlotKey, list[SlotRecord]] = defaultdict(list)
    for slot in slots:
        by_worker[slot.key].append(slot)
    for (holder, worker, queues), of_worker in by_worker.items():
        limit = tolerances[holder, worker]
        for queue in queues:
            if (queue, limit) not in long_waits:
                long_waits[queue, limit] = _long_waits(by_queue[queue], limit)
        _extend_presence(of_worker, [long_waits[queue, limit] for queue in queues])
        for slot in of_worker:
            for queue in queues:
                slot.blocked[queue] = _absences(slot, long_waits[queue, limit], limit, period)
    idle = _idle_counts(slots, period)
    pickups: dict[VisitKey, Pickup] = {}
    for slot in slots:
        for free, visit in slot.with_free_times():
            was_idle = free <= visit.ready and not slot.is_blocked(visit.queue, visit.ready)
            count = idle[visit.queue].at(visit.ready)
            if was_idle or count > 0:
                pickups[visit.key] = Pickup(visit.wait, max(1, count))
    freed = {key: time for slot in slots for key, time in slot.freed.items()}
    return Pool(slots, *_turnarounds(slots, by_queue), pickups, freed)


def _turnarounds(
    slots: Sequence[SlotRecord], visits: Mapping[str, Sequence[Visit]]
) -> tuple[dict[VisitKey, int], dict[str, int]]:
    """The delays between the end of a lease and the next request of its slot, and their median by
    queue. If jobs waited from the end of one lease to the start of the next, the delay is the time
    between them. Otherwise it is the median within limits: if jobs waited for a part of this time
    and other slots took them, the delay was longer than this part, because the slot would have
    taken a job; and a slot that got a job as soon as it was ready requested it before.
    """
    waits = {queue: _long_waits(found, 0) for queue, found in visits.items()}
    backlogs: dict[tuple[str, ...], list[Interval]] = {}
    known: dict[VisitKey, int] = {}
    limits: dict[VisitKey, tuple[str, int, int]] = {}
    by_queue: dict[str, list[int]] = defaultdict(list)
    for slot in slots:
        for before, visit in pairwise(slot.leases):
            free = slot.free_at(before)
            served = tuple(each for each in slot.queues if not slot.is_blocked(each, free))
            if served not in backlogs:
                backlogs[served] = union(wait for each in served for wait in waits[each])
            backlog = containing(backlogs[served], free)
            waited = min(visit.leased, backlog[1]) if backlog else free
            late = visit.wait > _LATENCY and visit.leased - free < SHORT_DELAY
            if waited == visit.leased or late:
                known[before.key] = visit.leased - free
                by_queue[before.queue].append(visit.leased - free)
            else:
                latest = visit.leased if visit.wait > _LATENCY else max(free, visit.ready)
                limits[before.key] = before.queue, max(0, waited + 1 - free), latest - free
    usual = {queue: sorted(found)[len(found) // 2] for queue, found in by_queue.items()}
    for key, (queue, low, high) in limits.items():
        known[key] = min(high, max(low, usual.get(queue, 0)))
    return known, usual


def _partition(
    leases: list[Visit],
    visits: Mapping[str, Sequence[Visit]],
    waiting: Mapping[str, IntervalCount],
    period: Period,
) -> list[SlotRecord]:
    """Divide the leases of each worker among slots that hold one job at a time."""
    leases.sort(key=lambda each: (each.leased, each.ended))
    lost, runs = _lost(leases, period), _quantiles(leases, 0.5)
    workers: dict[tuple[str, str], list[Visit]] = defaultdict(list)
    unnamed = _unnamed(leases)
    for visit in leases:
        workers[visit.holder, "" if visit.holder in unnamed else visit.worker].append(visit)
    found: list[SlotRecord] = []
    for (holder, worker), of_worker in workers.items():
        parts = [of_worker] if worker else _separate(of_worker, visits, lost, runs)
        for part in parts:
            found += _slots(holder, worker, part, lost, runs, _preferences(part, waiting))
    return found


def _slots(
    holder: str,
    worker: str,
    leases: Sequence[Visit],
    lost: Collection[VisitKey],
    runs: Mapping[str, int],
    preferences: Preferences,
) -> list[SlotRecord]:
    """The slots of a worker. A lost job occupies its slot for the usual run time, or until the
    worker takes a job while it holds as many as it can.
    """
    capacity = _capacity(leases, lost)
    slots: list[SlotRecord] = []
    for visit in leases:
        free = [slot for slot in slots if slot.free <= visit.leased]
        abandoned = [slot for slot in slots if slot.leases[-1].key in lost]
        if free:
            slot = max(free, key=lambda each: each.free)
        elif abandoned and len(slots) >= capacity:
            slot = min(abandoned, key=lambda each: each.leases[-1].leased)
            slot.freed[slot.leases[-1].key] = visit.leased
        else:
            slot = SlotRecord(holder, worker, preferences)
            slots.append(slot)
        slot.leases.append(visit)
        if visit.key in lost:
            slot.freed[visit.key] = min(visit.ended, visit.leased + runs.get(visit.kind, 0))
    for slot in slots:
        slot.first = leases[0].leased
    return slots


def _lost(leases: Iterable[Visit], period: Period) -> set[VisitKey]:
    """The leases of jobs that their worker may have abandoned: those that expired, and those that
    have not ended and take far longer than others of their kind.
    """
    runs = _quantiles(leases, 0.95)
    return {
        visit.key
        for visit in leases
        if visit.outcome == "expired"
        or (
            visit.ended == NEVER
            and period.end - visit.leased > _LOST_FACTOR * runs.get(visit.kind, NEVER)
        )
    }


def _capacity(leases: Iterable[Visit], lost: Collection[VisitKey]) -> int:
    """The maximum number of jobs that were held at once and not lost."""
    changes: Counter[int] = Counter()
    for visit in leases:
        if visit.key not in lost:
            changes[visit.leased] += 1
            changes[visit.ended] -= 1
    return max(accumulate(change for _, change in sorted(changes.items())), default=1)


def _quantiles(leases: Iterable[Visit], share: float) -> dict[str, int]:
    """A quantile of the run times by kind."""
    found: dict[str, list[int]] = defaultdict(list)
    for visit in leases:
        if visit.outcome != "expired" and visit.ended < NEVER:
            found[visit.kind].append(visit.ended - visit.leased)
    return {kind: sorted(times)[int(len(times) * share)] for kind, times in found.items()}


def _separate(
    leases: Sequence[Visit],
    visits: Mapping[str, Sequence[Visit]],
    lost: Collection[VisitKey],
    runs: Mapping[str, int],
) -> list[list[Visit]]:
    """The leases of workers without names: all together, or by queue. They belong together if this
    explains better why jobs waited, namely because the workers were busy.
    """
    by_queue: dict[str, list[Visit]] = defaultdict(list)
    for visit in leases:
        by_queue[visit.queue].append(visit)
    waits = {queue: _long_waits(visits[queue], 0) for queue in by_queue}
    idle = _idle_times(leases, lost, runs)
    together = sum(_overlap(found, idle) for found in waits.values())
    apart = sum(
        _overlap(found, _idle_times(by_queue[queue], lost, runs)) for queue, found in waits.items()
    )
    return [list(leases)] if together < apart else list(by_queue.values())


def _overlap(some: Sequence[Interval], others: Sequence[Interval]) -> int:
    return sum(end - start for start, end in intersection(some, others))


def _idle_times(
    leases: Sequence[Visit], lost: Collection[VisitKey], runs: Mapping[str, int]
) -> list[Interval]:
    """The times in which workers held fewer jobs than they can."""
    capacity, changes = _capacity(leases, lost), Counter[int]()
    for visit in leases:
        usual = visit.leased + runs.get(visit.kind, 0)
        changes[visit.leased] += 1
        changes[min(usual, visit.ended) if visit.key in lost else visit.ended] -= 1
    found, held = [], 0
    times = sorted(changes)
    for time, until in pairwise((-NEVER, *times, NEVER)):
        held += changes[time]
        if held < capacity:
            found.append((time, until))
    return found


def _extend_presence(slots: Sequence[SlotRecord], long_waits: Iterable[Sequence[Interval]]) -> None:
    """Set the time in which a worker was present: from its first to its last lease, and before and
    after it for as long as the worker once was idle between two leases, unless a job waited for
    long in that time.
    """
    ends = sorted((visit.leased, slot.free_at(visit)) for slot in slots for visit in slot.leases)
    longest, (first, last) = 0, ends[0]
    for leased, free in ends:
        longest = max(longest, leased - last)
        last = max(last, free)
    earliest, latest = first - longest, min(NEVER, last + longest)
    for waits in long_waits:
        number = bisect_left(waits, (first,))
        if number:
            earliest = max(earliest, min(first, waits[number - 1][1]))
        number = bisect_left(waits, (last,))
        if number and waits[number - 1][1] > last:
            latest = last
        elif number < len(waits):
            latest = min(latest, waits[number][0])
    for slot in slots:
        slot.first, slot.last = earliest, latest


def _unnamed(leases: Sequence[Visit]) -> set[str]:
    """The protocols whose workers have no names, or a new name for each job."""
    counts: dict[str, int] = defaultdict(int)
    names: dict[str, set[str]] = defaultdict(set)
    for visit in leases:
        counts[visit.holder] += 1
        names[visit.holder].add(visit.worker)
    return {
        holder
        for holder, count in counts.items()
        if count > 2 * _MIN_LEASES and count < _MIN_LEASES * len(names[holder])
    }


def _preferences(leases: Sequence[Visit], waiting: Mapping[str, IntervalCount]) -> Preferences:
    """The order of the queues of a worker, from its choices among queues with waiting jobs."""
    queues = sorted({visit.queue for visit in leases})
    if len(queues) == 1:
        return Preferences(tuple(queues))
    chosen: Counter[tuple[str, str]] = Counter()
    choices = []
    for visit in leases:
        others = [
            queue
            for queue in queues
            if queue != visit.queue and waiting[queue].at(visit.leased) > 0
        ]
        chosen.update((visit.queue, queue) for queue in others)
        if others:
            choices.append((visit.leased, visit.queue))
    wins = {queue: sum(chosen[queue, other] for other in queues) for queue in queues}
    losses = {queue: sum(chosen[other, queue] for other in queues) for queue in queues}
    ordered = tuple(sorted(queues, key=lambda each: losses[each] - wins[each]))
    against = sum(chosen[ordered[j], ordered[i]] for i, j in combinations(range(len(queues)), 2))
    if against <= _MAX_EXCEPTIONS * sum(wins.values()):
        return Preferences(ordered)
    weights = tuple((wins[queue] + 1) / (losses[queue] + 1) for queue in ordered)
    return Preferences(ordered, weights, tuple(choices))


def _tolerances(slots: Sequence[SlotRecord]) -> dict[tuple[str, str], int]:
    """The wait of a job after which an idle slot counts as absent, by worker. A worker that polls
    leaves jobs waiting for longer than one that waits for jobs.
    """
    delays: dict[tuple[str, str], list[int]] = defaultdict(list)
    for slot in slots:
        found = delays[slot.holder, slot.worker]
        found += [visit.wait for free, visit in slot.with_free_times() if free <= visit.ready]
    tolerances = {}
    for worker, found in delays.items():
        found.sort()
        usual = found[len(found) * 19 // 20] if found else 0
        tolerances[worker] = max(MIN_ABSENCE, _ABSENCE_FACTOR * usual)
    return tolerances


def _long_waits(visits: Iterable[Visit], limit: int) -> list[Interval]:
    """The times in which a job waited that waited for more than `limit` in total."""
    ends = ((each.ready, min(each.leased, each.ended)) for each in visits)
    return union((ready, left) for ready, left in ends if left - ready > limit)


def _gaps(slot: SlotRecord, period: Period) -> list[Interval]:
    """The times between leases while the worker is present."""
    leases = ((visit.leased, slot.free_at(visit)) for visit in slot.leases)
    return gaps(leases, max(slot.first, period.start), min(slot.last, period.end))


def _absences(
    slot: SlotRecord, long_waits: Sequence[Interval], limit: int, period: Period
) -> list[Interval]:
    """The times in which a slot was idle while jobs of a queue waited for long."""
    found = intersection(_gaps(slot, period), long_waits)
    found = [(start, end) for start, end in found if end - start > limit]
    if slot.first > period.start:
        found.insert(0, (period.start, slot.first))
    if slot.last < period.end:
        found.append((slot.last, NEVER))
    return found


def _idle_counts(slots: Sequence[SlotRecord], period: Period) -> dict[str, IntervalCount]:
    """The number of idle slots that would take a job, by queue."""
    found: dict[str, list[Interval]] = defaultdict(list)
    for slot in slots:
        idle = _gaps(slot, period)
        for queue in slot.queues:
            found[queue] += difference(idle, slot.blocked[queue])
    return {queue: IntervalCount(intervals) for queue, intervals in found.items()}
