"""Workloads of producers and workers on the real engine with a virtual clock.

A workload is a function of its seed: the same jobs arrive and take the same time with any number of
workers. So a recording with other workers is the truth for a scenario.
"""

import math
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, Final, NamedTuple

from millrace.engine.engine import Engine
from millrace.engine.events import EventTuple
from millrace.engine.job import BEFORE_ARRIVALS, FOREVER, Job, NewJob
from millrace.engine.states import LEASED
from millrace.engine.waiters import Waiter
from millrace.protocols.registry import FAKTORY, GOQUEUE, HTTP, MASENKO, QLESS, WORKQ
from millrace.protocols.spec import protocol_rules

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
#: 2026-11-12 12:00 UTC.
START: Final = 1_794_484_800 * SECOND


class Jobs(NamedTuple):
    """A stream of jobs: its rate per second as a function of the time in seconds."""

    queue: str
    kind: str
    origin: int
    rate: Callable[[float], float]
    #: Median and spread of the run time, in seconds.
    run: float
    spread: float = 0.5
    rank: float = 0.0
    failures: float = 0.0
    #: Share of jobs with a due time, and their mean delay in seconds.
    scheduled: float = 0.0
    delay: float = 60.0
    retries: int = 5


class Workers(NamedTuple):
    """A worker process with threads. With `poll` it polls at this interval in seconds while it is
    idle; otherwise it waits for jobs. It is connected from `start` to `stop`, in seconds.
    """

    name: str
    protocol: int
    queues: tuple[str, ...]
    threads: int
    poll: float = 0.0
    start: float = 0.0
    stop: float = math.inf
    #: Mean time between the end of a job and the next request, in seconds.
    pause: float = 0.001
    shuffled: bool = False


class Workload(NamedTuple):
    name: str
    seconds: float
    jobs: tuple[Jobs, ...]
    workers: tuple[Workers, ...]


class World:
    """Runs a workload."""

    def __init__(self, load: Workload, seed: int) -> None:
        self.load, self.seed = load, seed
        self.random = Random(seed)
        self.engine = Engine(Random(seed), protocol_rules())
        self.rows: list[EventTuple] = []
        self.now = START
        self._plans: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        for number, jobs in enumerate(load.jobs):
            self._arrivals(jobs, Random(f"{seed} {number}"))
        for workers in load.workers:
            for thread in range(workers.threads):
                begin = START + int(workers.start * SECOND) + thread
                self._at(begin, self._seek, workers, Random(f"{seed} {workers.name} {thread}"))

    def _at(self, when: int, act: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heappush(self._plans, (when, self._count, act, args))

    def _arrivals(self, jobs: Jobs, random: Random) -> None:
        at, peak = 0.0, max(jobs.rate(s) for s in range(0, int(self.load.seconds), 5))
        while True:
            at += random.expovariate(peak)
            if at >= self.load.seconds:
                return
            if random.random() * peak < jobs.rate(at):
                due = random.expovariate(1 / jobs.delay) if random.random() < jobs.scheduled else 0
                self._at(START + int(at * SECOND), self._push, jobs, due, random.getrandbits(64))

    def _push(self, jobs: Jobs, due: float, seed: int) -> None:
        at = self.now + int(due * SECOND) if due else 0
        self.engine.push(
            NewJob(
                "", jobs.kind, b"%d" % seed, jobs.origin, jobs.queue, jobs.retries, FOREVER,
                rank=jobs.rank, due_at=at,
                position=BEFORE_ARRIVALS + at if at and jobs.origin == MASENKO else 0,
            ),
            self.now,
        )  # fmt: skip

    def run(self) -> list[EventTuple]:
        end = START + int(self.load.seconds * SECOND)
        engine = self.engine
        while self._plans and self._plans[0][0] < end:
            timer = engine.next_timer()
            if timer is not None and timer <= self._plans[0][0]:
                self.now = max(self.now, timer)
                engine.tick(self.now)
            else:
                when, _, act, args = heappop(self._plans)
                self.now = max(self.now, when)
                act(*args)
            deliveries, engine.waiters.deliveries = engine.waiters.deliveries, []
            for waiter, job in deliveries:
                self._begin(*waiter.owner, job)
            if len(engine.change_set.events) > 2_000:
                self.rows += engine.take_changes().events
        self.rows += engine.take_changes().events
        return self.rows

    def _seek(self, workers: Workers, random: Random) -> None:
        if (self.now - START) / SECOND >= workers.stop:
            return
        queues = list(workers.queues)
        if workers.shuffled:
            random.shuffle(queues)
        name = "" if workers.protocol in {WORKQ, GOQUEUE} else workers.name
        job = self.engine.lease(queues, name, workers.protocol, self.now, FOREVER)
        if job is not None:
            self._begin(workers, random, job)
        elif workers.poll:
            self._at(self.now + int(workers.poll * SECOND), self._seek, workers, random)
        else:
            waiter = Waiter(tuple(queues), name, workers.protocol, (workers, random))
            waiter.lease_duration = 10**15
            until = START + int(min(workers.stop, 10**9) * SECOND)
            self.engine.add_waiter(waiter, until)

    def _begin(self, workers: Workers, random: Random, job: Job) -> None:
        """A thread has a job: its seed decides how long it takes and how it ends."""
        jobs = next(each for each in self.load.jobs if each.kind == job.kind)
        fate = Random(f"{job.inline_payload!r} {job.failures}")
        takes = jobs.run * math.exp(jobs.spread * fate.gauss(0, 1))
        fails = fate.random() < jobs.failures
        self._at(self.now + int(takes * SECOND), self._end, workers, random, job, fails)

    def _end(self, workers: Workers, random: Random, job: Job, fails: bool) -> None:
        if job.state == LEASED:
            if fails:
                self.engine.fail(job, self.now, workers.protocol, "Error", "failed", [])
            else:
                self.engine.complete(job, self.now, workers.protocol)
        pause = int(random.expovariate(1 / workers.pause) * SECOND)
        self._at(self.now + pause, self._seek, workers, random)


def _steady(rate: float) -> Callable[[float], float]:
    return lambda _: rate


def _bursts(rate: float, peak: float, every: float, length: float) -> Callable[[float], float]:
    return lambda at: peak if at % every < length else rate


def _wave(mean: float, every: float) -> Callable[[float], float]:
    return lambda at: mean * (1 + 0.8 * math.sin(at / every * 2 * math.pi))


def scaled(load: Workload, factor: float) -> Workload:
    """The same workload with more or fewer threads."""
    workers = tuple(
        each._replace(threads=max(1, round(each.threads * factor))) for each in load.workers
    )
    return load._replace(workers=workers)


WORKLOADS: Final = (
    Workload(
        "steady", 1800,
        (Jobs("mail", "send", FAKTORY, _steady(7.2), 0.4),),
        (Workers("w1", FAKTORY, ("mail",), 2), Workers("w2", FAKTORY, ("mail",), 2)),
    ),
    Workload(
        "bursty", 3600,
        (Jobs("thumbs", "resize", WORKQ, _bursts(0.5, 30, 600, 20), 0.5, 0.8),),
        (Workers("w", WORKQ, ("thumbs",), 4),),
    ),
    Workload(
        "idle", 3600,
        (Jobs("mail", "send", FAKTORY, _steady(1.0), 0.3),),
        (Workers("w1", FAKTORY, ("mail",), 8),),
    ),
    Workload(
        "poll", 3600,
        (Jobs("tasks", "", GOQUEUE, _wave(1.5, 1200), 1.0),),
        (Workers("w", GOQUEUE, ("tasks",), 4, poll=2.0),),
    ),
    Workload(
        "queues", 3600,
        (
            Jobs("critical", "pay", FAKTORY, _wave(2.0, 900), 0.3),
            Jobs("default", "mail", FAKTORY, _wave(3.0, 1500), 0.6),
            Jobs("low", "report", FAKTORY, _steady(0.3), 4.0),
        ),
        (
            Workers("w1", FAKTORY, ("critical", "default", "low"), 3),
            Workers("w2", FAKTORY, ("default", "critical"), 2, shuffled=True),
        ),
    ),
    Workload(
        "priorities", 3600,
        (
            Jobs("index", "crawl", QLESS, _bursts(1, 12, 500, 60), 0.9),
            Jobs("index", "urgent", QLESS, _steady(0.4), 0.5, rank=10.0),
        ),
        (Workers("w1", QLESS, ("index",), 3, poll=1.0), Workers("w2", QLESS, ("index",), 2, poll=5.0)),
    ),
    Workload(
        "failures", 3600,
        (Jobs("hooks", "post", MASENKO, _wave(2.5, 1200), 0.7, 1.0, failures=0.3, scheduled=0.1),),
        tuple(Workers(f"c{n}", MASENKO, ("hooks",), 1) for n in range(3)),
    ),
    Workload(
        "scheduled", 3600,
        (
            Jobs("jobs", "later", HTTP, _steady(1.2), 0.8, scheduled=0.8, delay=300),
            Jobs("jobs", "now", FAKTORY, _bursts(0.2, 5, 700, 60), 0.8),
        ),
        (Workers("w1", FAKTORY, ("jobs",), 2),),
    ),
    Workload(
        "changing workers", 3600,
        (Jobs("mail", "send", FAKTORY, _steady(4.0), 0.6),),
        (
            Workers("w1", FAKTORY, ("mail",), 2),
            Workers("w2", FAKTORY, ("mail",), 2, stop=1500),
            Workers("w3", FAKTORY, ("mail",), 3, start=1900, stop=2700),
            Workers("w4", FAKTORY, ("mail",), 1, start=2500),
        ),
    ),
    Workload(
        "mixed", 3600,
        (
            Jobs("shared", "a", FAKTORY, _wave(1.0, 700), 0.8, failures=0.05),
            Jobs("shared", "b", WORKQ, _steady(0.8), 0.5, rank=2.0),
            Jobs("shared", "c", QLESS, _steady(0.5), 1.5),
            Jobs("shared", "d", GOQUEUE, _bursts(0.1, 3, 400, 60), 0.6, rank=-1.0),
        ),
        (
            Workers("f1", FAKTORY, ("shared",), 1),
            Workers("q", WORKQ, ("shared",), 1, poll=0.5),
            Workers("m1", MASENKO, ("shared",), 1),
            Workers("g", GOQUEUE, ("shared",), 1, poll=1.0),
        ),
    ),
)  # fmt: skip


def record(load: Workload, seed: int = 1) -> list[EventTuple]:
    return World(load, seed).run()
