"""The roles of clients. Each is a coroutine that connects, works, and connects again after a
cut.
"""

import asyncio
from collections.abc import Callable
from random import Random
from uuid import UUID

from callers import Call, Cut
from fault_plan import LIMITS, PROTOCOLS, WORK
from promises import Lease, TrackedJob
from simulated_world import World

from speakers import SPEAKERS, Answer, Held, Leased, Work

#: More jobs than one command executes in one slice.
LARGE = (101, 150)
#: Protocols in which an unanswered push can be sent again unchanged.
REPEATABLE = frozenset({"workq", "faktory", "qless"})
#: For each protocol, the origins of the jobs that it can cancel by their ids.
CANCELS = {
    "workq": frozenset({"workq", "faktory", "qless"}),
    "qless": frozenset({"workq", "faktory", "qless"}),
    "goqueue": frozenset({"goqueue", "masenko"}),
}


class Client:
    """A client that connects again and again until the run is over."""

    def __init__(self, world: World, name: str, protocol: str) -> None:
        self.world = world
        self.name = name
        self.protocol = protocol
        self.over = False
        self._call: Call | None = None

    @property
    def random(self) -> Random:
        return self.world.random

    @property
    def call(self) -> Call:
        """The current connection."""
        assert self._call is not None
        return self._call

    async def live(self) -> None:
        while not self.over:
            try:
                self._call = Call(self.world, self.protocol, self.name)
                hello = self.call.speaker.hello()
                if hello:
                    await self.call.ask("hello", hello)
                await self.work()
            except Cut:
                pass
            if not self.over:
                await asyncio.sleep(self.random.choice((0.01, 0.5, 3.0)))
        if self._call is not None:
            self._call.hang_up()

    async def work(self) -> None:
        """Do this client's work until the run is over, or raise Cut."""
        raise NotImplementedError

    async def pause(self, mean: float) -> None:
        await asyncio.sleep(min(self.random.expovariate(1 / mean), 10 * mean))

    def queue(self) -> str:
        return self.random.choice(self.world.plan.queues)


class Producer(Client):
    def __init__(self, world: World, name: str, protocol: str) -> None:
        super().__init__(world, name, protocol)
        self._unanswered: list[TrackedJob] = []

    async def work(self) -> None:
        await self._push(self._take_again())
        while not self.over:
            await self.pause(self.world.plan.pace)
            if len(self.world.promises.jobs) >= self.world.plan.max_jobs:
                await self._wait()
            else:
                await self._push([self._track() for _ in range(self._count())])

    async def _wait(self) -> None:
        await asyncio.sleep(1.0)
        if self.protocol == "masenko":
            await self.call.ask("ping", self.call.speaker.ping())

    def _take_again(self) -> list[TrackedJob]:
        """The unanswered pushes: repeated where the protocol permits it, else abandoned."""
        lost, self._unanswered = self._unanswered, []
        return [job for job in lost if self.protocol in REPEATABLE and self.random.random() < 0.8]

    def _count(self) -> int:
        """The number of jobs of the next push."""
        large = self.protocol in {"masenko", "faktory"} and self.world.plan.large
        if large and self.random.random() < large:
            return self.random.randint(*LARGE)
        return self.random.choice((1, 1, 1, 2, 5))

    def _track(self) -> TrackedJob:
        return self.world.promises.track(self.protocol, lambda n: drawn(self, n))

    async def _push(self, jobs: list[TrackedJob]) -> None:
        """Send all pushes before the first reply."""
        together = len(jobs) > 5 or (len(jobs) > 1 and self.random.random() < 0.5)
        if self.protocol == "masenko" and together:
            await self._push_as_one(jobs)
            return
        if self.protocol == "faktory" and together:
            await self._push_many(jobs)
            return
        speaker, now = self.call.speaker, self.call.now
        sent = [(job, self.call.send("push", speaker.push(job.work, now), job=job)) for job in jobs]
        cut: Cut | None = None
        for job, answer in sent:
            try:
                await answer
            except Cut as error:
                self._unanswered.append(job)
                cut = error
        if cut is not None:
            raise cut

    async def _push_as_one(self, jobs: list[TrackedJob]) -> None:
        lines = b"".join(SPEAKERS["masenko"]().push(job.work, self.call.now) for job in jobs)
        data = self.call.speaker._ask("atomic", "", b"ATOMIC\n" + lines + b"DONE\n")
        await self.call.ask("atomic", data, jobs=jobs)

    async def _push_many(self, jobs: list[TrackedJob]) -> None:
        data = self.call.speaker.push_many([job.work for job in jobs])
        try:
            await self.call.ask("push many", data, jobs=jobs)
        except Cut:
            self._unanswered += jobs
            raise


def drawn(client: Client, number: int) -> Work:
    """A job that a client of this protocol can push."""
    random, world, protocol = client.random, client.world, client.protocol
    can = client.call.can
    rank = random.choice((0, 0, 0, -1, -2, 1, 2)) if "priority" in can else 0
    due = 0
    if "schedule" in can and random.random() < 0.2:
        due = world.their_clock() + int(random.uniform(0.5, 30) * 1_000_000)
    size = random.choice((0, 10, 10, 100, 100, 5000))
    after: tuple[str, ...] = ()
    jobs = world.promises.jobs
    if "dependency" in can and random.random() < 0.25:
        known = [job for job in jobs[-20:] if job.protocol == protocol and job.accepted]
        known = [job for job in known if job.shown]
        after = tuple(job.shown for job in random.sample(known, min(len(known), 2)))
    limits: tuple[str, ...] = ()
    if protocol == "qless" and random.random() < 0.5:
        limits = random.choice((LIMITS[:1], LIMITS[1:], LIMITS))
    tags = random.choice(((), (), ("blue",), ("blue", "red")))
    return Work(
        id=str(UUID(int=random.getrandbits(128), version=4)),
        queue=client.queue(),
        payload=b'["job-%d-","%b"]' % (number, b"x" * size),
        kind=f"kind-{random.randrange(3)}",
        rank=min(rank, 0) if protocol == "goqueue" else rank,
        due=due,
        ttr=random.choice((60, 90) if protocol == "faktory" else (1, 3, 10, 60)),
        ttl=random.choice((10 * 86_400, 10 * 86_400, 20)) if protocol == "workq" else 10 * 86_400,
        retries=random.choice((0, 1, 2, 3)),
        after=after,
        limits=limits,
        tags=tags if protocol in {"qless", "faktory"} else (),
        keep_result=random.choice((0, 86_400)) if protocol == "faktory" else 0,
    )


class Worker(Client):
    """Completes most jobs, fails some, and abandons some."""

    #: Probability that a Masenko worker completes a task together with pushes.
    follows_up = 0.1

    def __init__(self, world: World, name: str, protocol: str) -> None:
        super().__init__(world, name, protocol)
        self._unsaid: list[tuple[Held, Lease]] = []

    async def work(self) -> None:
        unsaid, self._unsaid = self._unsaid, []
        for held, lease in unsaid:
            await self._end("complete", held, lease)
        while not self.over:
            asked = [self._lease(nth) for nth in range(self.random.choice((1, 1, 1, 3)))]
            found = [await self._work_on(future) for future in asked]
            if not any(found):
                await self.rest()

    async def _work_on(self, future: "asyncio.Future[Answer]") -> bool:
        answer = await future
        if not isinstance(answer, Leased):
            return False
        lease = future.request.lease  # type: ignore[attr-defined]
        try:
            await self._do(answer.held, lease)
        except Cut:
            if self.random.random() < 0.7:
                self._unsaid.append((answer.held, lease))
            raise
        return True

    async def rest(self) -> None:
        """Wait after a lease without a job."""
        await self.pause(1.0 if self.protocol == "qless" else 0.2)

    def _lease(self, nth: int) -> "asyncio.Future[Answer]":
        """Send a lease request after `nth` other requests."""
        call = self.call
        wait = max(self.wait() if "wait" in call.can else 0, call.speaker.least_wait)
        data = call.speaker.lease(self.queue(), call.now, wait)
        return call.send("lease", data, wait=wait + 10 * nth)

    def wait(self) -> float:
        return self.random.choice((0, 0.1, 2, 10))

    async def _do(self, held: Held, lease: Lease) -> None:
        random, can = self.random, self.call.can
        (work,) = random.choices(WORK, self.world.plan.work_weights)
        lasts = self.world.plan.heartbeat if self.protocol == "qless" else lease.job.work.ttr
        if work == "complete":
            await self.pause(random.choice((0.001, 0.1, 1.0)))
        elif work == "fail":
            commands = [command for command in ("fail", "bury", "release") if command in can]
            if commands:
                await self._end(random.choice(commands), held, lease)
            return
        elif work == "late":
            await asyncio.sleep(min(lasts * random.uniform(0.9, 2), 40))  # or almost
        elif work == "renew" and "renew" in can:
            await asyncio.sleep(lasts * random.uniform(0, 0.8))
            await self._end("renew", held, lease)
            await asyncio.sleep(lasts * random.uniform(0, 0.8))
        elif work == "leave":
            self.call.hang_up(rudely=random.random() < 0.5)
            raise Cut
        else:
            return
        await self._end("complete", held, lease)

    async def _end(self, command: str, held: Held, lease: Lease) -> None:
        call = self.call
        text = b""
        jobs: list[TrackedJob] = []
        if command == "complete":
            if self.protocol in {"workq", "faktory"}:
                text = b"result-%d" % self.random.randrange(1000)
            if self.protocol == "faktory":
                data = call.speaker.complete_with(held, text)
            else:
                data = call.speaker.complete(held, call.now, text)
            if self.protocol == "masenko" and self.random.random() < self.follows_up:
                jobs = [self._follow_up() for _ in range(self.random.choice((1, 3)))]
                data = self._as_one(data, jobs)
        else:
            data = getattr(call.speaker, command)(held, call.now)
        await call.ask(command, data, job=lease.job, lease=lease, text=text, jobs=jobs)

    def _follow_up(self) -> TrackedJob:
        return self.world.promises.track(self.protocol, lambda n: drawn(self, n))

    def _as_one(self, complete: bytes, jobs: list[TrackedJob]) -> bytes:
        """Complete a task and push its successors, all or none."""
        pushes = (SPEAKERS["masenko"]().push(job.work, self.call.now) for job in jobs)
        return b"ATOMIC\n" + complete + b"".join(pushes) + b"DONE\n"


class DiligentWorker(Worker):
    """For the end of a run: leases from one queue and completes every job."""

    follows_up = 0.0

    def __init__(self, world: World, name: str, protocol: str, queue: str) -> None:
        super().__init__(world, name, protocol)
        self._queue = queue

    def queue(self) -> str:
        return self._queue

    def wait(self) -> float:
        return 20

    async def rest(self) -> None:
        await self.pause(20.0)

    async def _do(self, held: Held, lease: Lease) -> None:
        await self._end("complete", held, lease)


class Configurer(Client):
    """Sets the lease duration of Qless workers once."""

    async def work(self) -> None:
        for key, value in (("heartbeat", self.world.plan.heartbeat), ("grace-period", 1)):
            now = self.call.now
            data = self.call.speaker._call("set", "", "config.set", now, key, value)
            await self.call.ask("set", data)
        self.over = True


class Pauser(Client):
    """Pauses queues for a while."""

    async def work(self) -> None:
        while not self.over:
            await self.resume_all()
            await self.pause(5.0)
            queue = self.queue()
            # Pausing an unknown queue has no effect. The job of a Workq `run` may be undone before
            # the command ends, and its queue with it.
            jobs = [job for job in self.world.promises.jobs if job.accepted and not job.fleeting]
            if any(job.work.queue == queue for job in jobs):
                await self._say("pause", queue)
                await self.pause(3.0)
        await self.resume_all()

    async def resume_all(self) -> None:
        for queue in self.world.plan.queues:
            await self._say("resume", queue)

    async def _say(self, command: str, queue: str) -> None:
        line = f"QUEUE {command.upper()} {queue}\r\n".encode()
        data = self.call.speaker._ask(command, queue, line)
        await self.call.ask(command, data, subject=queue, value=command == "pause")


class Resumer(Pauser):
    """Resumes all queues at the end, also after a pause request that arrives late."""

    async def work(self) -> None:
        while not self.over:
            await self.resume_all()
            await self.pause(60.0)


class Canceller(Client):
    async def work(self) -> None:
        while not self.over:
            await self.pause(3.0)
            jobs = [
                job
                for job in self.world.promises.jobs[-30:]
                if job.accepted
                and job.shown
                and job.protocol in CANCELS[self.protocol]
                and not job.fleeting
            ]
            if jobs:
                job = self.random.choice(jobs)
                data = self.call.speaker.cancel(job.shown, self.call.now)
                await self.call.ask("cancel", data, job=job)


class StatusReader(Client):
    """Sends read-only commands."""

    async def work(self) -> None:
        while not self.over:
            await self.pause(2.0)
            await self.call.ask("look", self._look())

    def _look(self) -> bytes:
        speaker = self.call.speaker
        if self.protocol == "qless":
            return speaker._call("look", "", "queues", self.call.now)
        return speaker._ask(
            "look", "", {"faktory": b"INFO\r\n", "masenko": b"INFO\n"}[self.protocol]
        )


class Waiter(Client):
    """Waits for results: runs jobs, or waits for the results of other clients' jobs."""

    async def work(self) -> None:
        while not self.over:
            await self.pause(2.0)
            if self.random.random() < 0.5:
                await self._run()
            else:
                await self._ask()

    async def _run(self) -> None:
        if len(self.world.promises.jobs) >= self.world.plan.max_jobs:
            return
        job = self.world.promises.track("workq", lambda n: drawn(self, n), fleeting=True)
        wait = self.random.choice((0.1, 5.0))
        data = self.call.speaker.run(job.work, self.call.now, wait)
        await self.call.ask("run", data, job=job, wait=wait + job.work.ttr)

    async def _ask(self) -> None:
        jobs = [job for job in self.world.promises.jobs[-30:] if job.protocol == "workq"]
        if jobs:
            job = self.random.choice(jobs)
            wait = self.random.choice((0.0, 5.0))
            data = self.call.speaker.result(job.work.id, self.call.now, wait)
            await self.call.ask("result", data, job=job, wait=wait)


class ResultPoller(Client):
    """Polls the results of Faktory jobs, and cancels some of them."""

    async def work(self) -> None:
        while not self.over:
            await self.pause(2.0)
            jobs = [job for job in self.world.promises.jobs[-30:] if job.protocol == "faktory"]
            if not jobs:
                continue
            job = self.random.choice(jobs)
            speaker = self.call.speaker
            if job.accepted and not job.load and self.random.random() < 0.2:
                data = speaker.extension("cancel", {"cancel": [job.shown]})
                await self.call.ask("millrace cancel", data, job=job)
            else:
                wait = self.random.choice((0, 5))
                data = speaker.extension("result", {"result": {"jid": job.shown, "wait": wait}})
                await self.call.ask("millrace result", data, job=job, wait=wait)


ROLES: dict[str, tuple[Callable[[World, str, str], Client], tuple[str, ...]]] = {
    "producer": (Producer, PROTOCOLS),
    "worker": (Worker, PROTOCOLS),
    "canceller": (Canceller, tuple(CANCELS)),
    "looker": (StatusReader, ("faktory", "masenko", "qless")),
    "waiter": (Waiter, ("workq",)),
    "pauser": (Pauser, ("faktory",)),
    "asker": (ResultPoller, ("faktory",)),
}
