"""A realistic history: the real engine on a virtual clock, with producers, workers and operators of
all five protocols, over several days. The engine's own state is the expected result.
"""

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, Final, NamedTuple

from engine_loads import LOADS, SECOND, Load, error, push

from millrace.engine.engine import Engine
from millrace.engine.events import EventTuple
from millrace.engine.job import FOREVER, NO_PROTOCOL, Job
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED, STATE_NAMES
from millrace.engine.statistics import Statistics
from millrace.engine.waiters import Waiter
from millrace.protocols.registry import FAKTORY, GOQUEUE, MASENKO, QLESS, WORKQ
from millrace.protocols.spec import protocol_rules

#: 2026-11-12 18:00 UTC: not at the start of a day.
START: Final = 1_794_506_400 * SECOND
DAY: Final = 86_400 * SECOND
DAYS: Final = 4
#: Approximate number of events per job; it determines the number of pushed jobs.
_EVENTS_A_JOB: Final = 3.0
_TAKE: Final = 2_000

#: Receives the number of the first event, and the events.
Sink = Callable[[int, list[EventTuple]], None]


class Known(NamedTuple):
    """The final state of a job in the engine."""

    state: str
    queue: str


class History(NamedTuple):
    """The result for a server: its number of events, and the engine's final state."""

    server: str
    events: int
    statistics: Statistics
    jobs: dict[int, Known]


class Worker:
    """A worker of a queue; Qless workers have their own clock."""

    __slots__ = ("load", "protocol", "skew", "wid")

    def __init__(self, wid: str, protocol: int, load: Load, skew: int) -> None:
        self.wid = wid
        self.protocol = protocol
        self.load = load
        self.skew = skew


class Past:
    """The days of one server."""

    def __init__(self, server: str, events: int, seed: int, sink: Sink, *, flush: bool) -> None:
        self.server = server
        self.random = Random(seed)
        self.engine = Engine(self.random, protocol_rules(), dead_max=40 + events // 5_000)
        self.now = START
        self.end = START + DAYS * DAY
        self.made = 0
        self._sink = sink
        self._plans: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0
        #: Leases of Qless workers that may expire: jobs by queue, with a grace period or not.
        self._locks: dict[str, deque[tuple[int, Job, int, bool]]] = {}
        jobs = events / _EVENTS_A_JOB
        for load in LOADS:
            self._people(load, jobs * load.share / (DAYS * DAY))
        self._at(START + DAY // 7, self._operate, max(SECOND, int(DAYS * DAY / (jobs / 15))))
        self._at(START + 2 * DAY + 5 * SECOND, self._restart)
        moments = [self.end - 60 * SECOND]
        if flush:
            moments.append(START + int(1.7 * DAY))
            self._at(moments[-1] + 60 * SECOND, self._flush)
        for when in moments:
            self._at(when, self._arrive_late)

    def run(self) -> History:
        engine, plans = self.engine, self._plans
        while plans[0][0] < self.end:
            timer = engine.next_timer()
            if timer is not None and timer <= plans[0][0]:
                self.now = max(self.now, timer)
                engine.tick(self.now)
            else:
                when, _, act, args = heappop(plans)
                self.now = max(self.now, when)
                act(*args)
            if engine.waiters.deliveries:
                self._deliver()
            if len(engine.change_set.events) > _TAKE:
                self._take()
        self._take()
        jobs = {seq: Known(STATE_NAMES[job.state], job.queue) for seq, job in engine.jobs.items()}
        return History(self.server, self.made, engine.current_statistics(), jobs)

    def _take(self) -> None:
        rows = self.engine.take_changes().events
        if rows:
            self._sink(self.made + 1, rows)
            self.made += len(rows)

    def _at(self, when: int, act: Callable[..., None], *args: Any) -> None:
        self._planned += 1
        heappush(self._plans, (when, self._planned, act, args))

    # Producers

    def _people(self, load: Load, rate: float) -> None:
        """Create the producers and workers of a load; the rate is in jobs per microsecond."""
        self._at(START + int(self.random.expovariate(rate / load.burst)), self._arrive, load, rate)
        mean = load.run * math.exp(load.spread**2 / 2) * SECOND
        count = max(len(load.workers), math.ceil(rate * mean / 0.6))
        for number in range(count):
            protocol = load.workers[number % len(load.workers)]
            names = protocol not in {WORKQ, GOQUEUE}
            wid = f"{load.queue}-{number}" if names else ""
            worker = Worker(wid, protocol, load, load.skews[number % len(load.skews)])
            if protocol == MASENKO:
                self.engine.leases.holders.add(wid)
            self._at(START + number, self._seek, worker)

    def _arrive(self, load: Load, rate: float) -> None:
        random, engine, now = self.random, self.engine, self.now
        count = 1 + int(random.expovariate(1 / load.burst))
        skew = random.choice(load.skews)
        made = [push(load, random, now + skew) for _ in range(count)]
        if made[0].origin == QLESS:
            self._as(skew)
        else:
            skew = 0
        if count > 2 and load.fails > 4:
            for each in made[1:]:
                if each.origin in {MASENKO, QLESS} and random.random() < 0.3:
                    each.blockers = [-1]
        jobs = engine.push_many(made, now + skew)
        engine.skew = 0
        if load.queue == "thumbs" and random.random() < 0.02:
            self._at(now + SECOND, self._lose_client, jobs[0])
        busy = 1 + 0.8 * math.sin((now % DAY) / DAY * 2 * math.pi)
        self._at(
            now + int(random.expovariate(rate * busy / (1 + load.burst))), self._arrive, load, rate
        )

    def _arrive_late(self) -> None:
        """Long jobs shortly before the end: some are still leased then."""
        load = next(load for load in LOADS if load.queue == "nightly")
        engine, now = self.engine, self.now
        jobs = engine.push_many([push(load, self.random, now) for _ in range(20)], now)
        for job in [job for job in jobs if job.state == READY][:5]:
            engine.lease_job(job, "late", FAKTORY, now)

    def _lose_client(self, job: Job) -> None:
        if self.engine.jobs.get(job.seq) is job:
            self.engine.cancel(job, self.now, deferrable=True)

    # Workers

    def _as(self, skew: int) -> None:
        """From here on, serve a client with a clock that is ahead by `skew`."""
        self.engine.skew = self.engine.theirs = skew

    def _seek(self, worker: Worker) -> None:
        """A worker requests a job: Qless workers poll, all other workers wait."""
        if worker.protocol != QLESS:
            queues = (
                (worker.load.queue, "graves") if worker.load.fails > 20 else (worker.load.queue,)
            )
            self.engine.add_waiter(Waiter(queues, worker.wid, worker.protocol, worker), FOREVER)
            for name in queues:
                queue = self.engine.queues.get(name)
                if queue is not None:
                    self.engine.assignments.serve_waiters(queue, self.now)
            return
        self._as(worker.skew)
        now = self.now + worker.skew
        queues = (worker.load.queue, worker.load.queue + "-2")
        for name in queues:
            self._invalidate(name, now)
        lasts = int(max(3.0, worker.load.run * 12) * SECOND)
        job = self.engine.lease(queues, worker.wid, QLESS, now, now + lasts)
        self.engine.skew = 0
        if job is None:
            self._at(self.now + self.random.randrange(SECOND, 120 * SECOND), self._seek, worker)
            return
        locks = self._locks.setdefault(job.queue, deque())
        locks.append((now + lasts, job, job.leased_at, False))
        self._begin(worker, job)

    def _invalidate(self, queue: str, now: int) -> None:
        """Expired jobs continue: after a grace period, or immediately."""
        locks = self._locks.get(queue)
        while locks and (locks[0][0] <= now or not _holds(self.engine, locks[0][1], locks[0][2])):
            _, job, leased_at, warned = locks.popleft()
            if not _holds(self.engine, job, leased_at):
                continue
            if not warned and self.random.random() < 0.5:
                self.engine.renew(job, now + 10 * SECOND, now, expired=True)
                locks.append((now + 10 * SECOND, job, leased_at, True))
            else:
                words = f"failed-retries-{queue}", f'Job exhausted retries in queue "{queue}"'
                cause = "failed" if job.origin == QLESS else "expired"
                self.engine.fail(job, now, QLESS, *words, [], cause=cause)

    def _deliver(self) -> None:
        deliveries, self.engine.waiters.deliveries = self.engine.waiters.deliveries, []
        for waiter, job in deliveries:
            self._begin(waiter.owner, job)

    def _begin(self, worker: Worker, job: Job) -> None:
        """A worker has a job: draw its outcome."""
        random, load, now = self.random, worker.load, self.now
        takes = int(load.run * math.exp(load.spread * random.gauss(0, 1)) * SECOND)
        fate = random.randrange(1000)
        args = (worker, job, job.leased_at)
        if fate < load.hangs * 10:
            self._at(now + 40 * takes, self._lose, *args)
        elif fate < (load.hangs + load.fails) * 10:
            self._at(now + takes, self._fail, *args)
        elif fate > 990:
            self._at(now + takes // 10, self._drop, *args)
        else:
            if fate > 960 and worker.protocol != GOQUEUE:
                self._at(now + takes // 2, self._renew, *args)
            self._at(now + takes, self._complete, *args)

    def _complete(self, worker: Worker, job: Job, leased_at: int) -> None:
        engine, now = self.engine, self.now
        if _holds(engine, job, leased_at):
            if worker.protocol == QLESS:
                self._complete_qless(worker, job)
            else:
                keep = now + 300 * SECOND if self.random.random() < 0.05 else 0
                engine.complete(job, now, worker.protocol, keep_until=keep)
        elif worker.protocol == WORKQ and _waits(engine, job):
            engine.complete(job, now, WORKQ, allow_unleased=True)
        self._seek(worker)

    def _complete_qless(self, worker: Worker, job: Job) -> None:
        engine, now = self.engine, self.now + worker.skew
        self._as(worker.skew)
        if self.random.random() < 0.1:
            engine.complete(job, now, QLESS, advances=True)
            due = now + 60 * SECOND if self.random.random() < 0.2 else 0
            engine.move(job, worker.load.queue + "-2", now, QLESS, due=due)
        else:
            engine.complete(job, now, QLESS)
        while len(engine.done_untrimmed) > 100:
            engine.cancel(next(iter(engine.done_untrimmed.values())), now, QLESS)
        engine.skew = 0

    def _fail(self, worker: Worker, job: Job, leased_at: int) -> None:
        engine, protocol = self.engine, worker.protocol
        now = self.now + worker.skew
        mine = _holds(engine, job, leased_at)
        if mine or (protocol == WORKQ and _waits(engine, job)):
            if protocol == QLESS:
                self._as(worker.skew)
            final = protocol == QLESS and self.random.random() < 0.3
            again = now + 30 * SECOND if self.random.random() < 0.1 else None
            group, message = error(self.random)
            engine.fail(
                job, now, protocol, group, message, [],
                allow_unleased=not mine, final=final, retry_at=again,
            )  # fmt: skip
            engine.skew = 0
        self._seek(worker)

    def _renew(self, worker: Worker, job: Job, leased_at: int) -> None:
        if _holds(self.engine, job, leased_at):
            now = self.now + worker.skew
            self.engine.renew(job, now + job.lease_duration, now)

    def _lose(self, worker: Worker, job: Job, leased_at: int) -> None:
        """A worker that was silent for long reconnects without its job."""
        if worker.protocol == MASENKO and _holds(self.engine, job, leased_at):
            self.engine.leases.end_after_disconnect(job, self.now, "the connection was lost")
        self._seek(worker)

    def _drop(self, worker: Worker, job: Job, leased_at: int) -> None:
        """The job did not reach its worker, or was taken from it."""
        if _holds(self.engine, job, leased_at):
            if self.random.random() < 0.7:
                self.engine.release(job, self.now)
            else:
                self.engine.cancel(job, self.now, worker.protocol)
        self._seek(worker)

    # Operators

    def _operate(self, every: int) -> None:
        """An operator acts on some job."""
        engine, random, now = self.engine, self.random, self.now
        self._at(now + int(random.expovariate(1 / every)), self._operate, every)
        places = [engine.scheduled, engine.blocked, engine.leased, engine.dead, engine.done]
        place = random.choice(places)
        if random.random() < 0.1:
            name = random.choice(LOADS).queue
            engine.pause(name, paused=True, now=now)
            self._at(now + 60 * SECOND, self._resume, name)
        queue = engine.queues.get(random.choice(LOADS).queue)
        job = None if queue is None or random.random() < 0.7 else queue.ready.peek()
        if job is None:
            if not place:
                return
            job = next(iter(place.values()))
        deed = random.randrange(4)
        if deed == 0 and job.state in {SCHEDULED, DEAD}:
            engine.retry_now(job, now)
        elif deed == 1 and job.state not in {LEASED, DONE}:
            engine.kill(job, now)
        elif deed == 2:
            engine.cancel(job, now, random.choice((NO_PROTOCOL, FAKTORY)))
        elif job.state == BLOCKED and job.extra is not None:
            engine.unblock(job, list(job.extra.blockers), now)
        else:
            due = now + 600 * SECOND if random.random() < 0.3 else 0
            engine.move(job, random.choice(LOADS).queue, now, QLESS, due=due)

    def _resume(self, name: str) -> None:
        self.engine.pause(name, paused=False, now=self.now)

    def _restart(self) -> None:
        self.engine.restoration.after_restart(self.now)

    def _flush(self) -> None:
        self.engine.flush(self.now)


def _holds(engine: Engine, job: Job, leased_at: int) -> bool:
    """Whether that lease still exists."""
    return job.state == LEASED and job.leased_at == leased_at and engine.jobs.get(job.seq) is job


def _waits(engine: Engine, job: Job) -> bool:
    """Whether its lease expired and no other worker has it yet."""
    return job.state in {READY, SCHEDULED} and engine.jobs.get(job.seq) is job


#: The second one is flushed on its second day.
SERVERS: Final = ("a11ce0a11ce00001", "b0b0b0b0b0b00002")


def live(events: int, seed: int, sink: Callable[[str], Sink]) -> list[History]:
    """The histories of both servers, with at least this number of events in total, three to one."""
    shares = (events * 3 // 4, events - events * 3 // 4)
    return [
        Past(server, share, seed + number, sink(server), flush=number == 1).run()
        for number, (server, share) in enumerate(zip(SERVERS, shares, strict=True))
    ]


def collect(events: int, seed: int = 7) -> tuple[list[History], dict[str, list[EventTuple]]]:
    """The same with the rows themselves."""
    rows: dict[str, list[EventTuple]] = {server: [] for server in SERVERS}
    histories = live(events, seed, lambda server: lambda _, some: rows[server].extend(some))
    return histories, rows
