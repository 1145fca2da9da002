"""Clients of other features than push and work: limits, tags, recurring jobs, loads, FLUSH."""

from collections.abc import Callable
from hashlib import sha1

from fault_plan import (
    LIMITS,
    PROTOCOLS,
    QUEUE_LIMIT,
    RECURRING_QUEUE,
    RECURRING_WORKERS,
)
from promises import Load, Recurring
from roles import ROLES, Client, Configurer, DiligentWorker, Resumer, Worker, drawn
from simulated_world import World

from speakers import Refused
from speakers.qless import _request

#: A script of the Qless generation that has limits.
SCRIPT = b"QlessThrottle = {} QlessAPI.put = function(now, me, queue, jid, klass, data) end"
SHA = sha1(SCRIPT, usedforsecurity=False).hexdigest()


class Limiter(Client):
    """Sets and deletes limits, including limits of queues."""

    async def work(self) -> None:
        await self.call.ask(
            "load", self.call.speaker._ask("load", "", _request("SCRIPT", "LOAD", SCRIPT))
        )
        while not self.over:
            await self.pause(4.0)
            queues = [QUEUE_LIMIT + queue for queue in (*self.world.plan.queues, RECURRING_QUEUE)]
            await self._set(self.random.choice((*LIMITS, *queues)))

    async def _set(self, key: str) -> None:
        maximum = self.random.choice((0, 1, 1, 2, 5))
        words: tuple[object, ...] = ("throttle.set", key, maximum, 0)
        if not maximum:
            words = ("throttle.delete", key)
        name, *given = words
        seconds = f"{self.call.now / 1_000_000:.6f}"
        data = _request("EVALSHA", SHA, 0, name, seconds, *given)
        data = self.call.speaker._ask("limit", "", data)
        await self.call.ask("limit", data, subject=key, value=maximum)


class Tagger(Client):
    """Adds tags to jobs of several protocols, and removes them."""

    async def work(self) -> None:
        while not self.over:
            await self.pause(1.5)
            jobs = [
                job
                for job in self.world.promises.jobs[-30:]
                if job.accepted and job.protocol in {"workq", "faktory", "qless"}
                if not job.fleeting
            ]
            if jobs:
                job, tag = self.random.choice(jobs), self.random.choice(("blue", "red"))
                add = self.random.random() < 0.6
                verb = "add" if add else "remove"
                data = self.call.speaker._call(
                    "tag", "", "tag", self.call.now, verb, job.shown, tag
                )
                command = "tag" if add else "untag"
                await self.call.ask(command, data, subject=(job.number, tag), value=add)


class Recurrer(Client):
    """Creates recurring jobs, and deletes them after a while."""

    def __init__(self, world: World, name: str, protocol: str) -> None:
        super().__init__(world, name, protocol)
        self._made: list[Recurring] = []

    async def work(self) -> None:
        while not self.over:
            await self.pause(8.0)
            if self._made and self.random.random() < 0.5:
                await self.end(self._made[0])
                self._made.pop(0)
            elif len(self._made) < 3:
                await self._begin()

    async def _begin(self) -> None:
        limits = self.random.choice(((), LIMITS[:1])) if self.protocol == "qless" else ()
        interval = self.random.choice((2, 5, 10))
        made = self.world.promises.track_recurring(RECURRING_QUEUE, interval, limits)
        self._made.append(made)
        if self.protocol == "qless":
            options = ["backlog", 3, "retries", 3]
            if limits:
                options += ["throttles", '["limit-0"]']
            given = (made.queue, made.id, "kind", made.payload, "interval", interval, 0, *options)
            data = self.call.speaker._call("recur", "", "recur", self.call.now, *given)
            await self.call.ask("recur", data, subject=made.id, value=True)
        else:
            fields = {"id": made.id, "jobtype": "kind", "every": interval, "queue": made.queue}
            args = [made.payload.decode()[2:-2]]
            data = self.call.speaker.extension("recur", {"recur": {**fields, "args": args}})
            await self.call.ask("millrace recur", data, subject=made.id, value=True)

    async def end(self, made: Recurring) -> None:
        if self.protocol == "qless":
            data = self.call.speaker._call("unrecur", "", "unrecur", self.call.now, made.id)
            await self.call.ask("unrecur", data, subject=made.id, value=False)
        else:
            data = self.call.speaker.extension("unrecur", {"unrecur": made.id})
            await self.call.ask("millrace unrecur", data, subject=made.id, value=False)


class RecurrenceEnder(Recurrer):
    """Deletes all recurring jobs at the end."""

    async def work(self) -> None:
        while not self.over:
            for made in self.world.promises.recurring:
                await self.end(made)
            await self.pause(60.0)


class RecurringWorker(Worker):
    def queue(self) -> str:
        return RECURRING_QUEUE


class Loader(Client):
    """Stages jobs in loads, and releases or discards each load."""

    def __init__(self, world: World, name: str, protocol: str) -> None:
        super().__init__(world, name, protocol)
        self._load: Load | None = None
        self._steps: list[str] = []

    async def work(self) -> None:
        while not self.over:
            if self._load is None:
                await self.pause(10.0)
                if len(self.world.promises.jobs) < self.world.plan.max_jobs:
                    self._begin()
            elif not self._steps:
                self._load = None
            elif await self._carry_out(self._load, self._steps[0]):
                self._steps.pop(0)

    def _begin(self) -> None:
        count = self.random.choice((1, 5, 60))
        self._load = self.world.promises.track_load([lambda n: drawn(self, n)] * count)
        end = self.random.choice(("release", "release", "discard"))
        self._steps = ["open", "stage", end]

    async def _carry_out(self, load: Load, step: str) -> bool:
        """Send one command. Returns whether the step is done."""
        jobs = load.jobs if step == "stage" else []
        fields: dict[str, object] = {step: load.name}
        if step in {"release", "discard"}:
            fields["most"] = self.random.choice((2, 1000))
        works = [job.work for job in jobs] if jobs else None
        data = self.call.speaker.extension(step, fields, works)
        answer = await self.call.ask(f"millrace {step}", data, load=load, jobs=jobs)
        if isinstance(answer, Refused):
            if "no such load" in answer.text:
                load.over = True  # a flush has removed it
                self._steps = []
                return False
            await self.pause(1.0)
            return False
        return step in {"open", "stage"} or load.over


class LoadFinisher(Loader):
    """Releases or discards every load at the end."""

    async def work(self) -> None:
        while not self.over:
            for load in self.world.promises.loads:
                discarded = any(each.command == "millrace discard" for each in load.requests)
                while not load.over:
                    await self._carry_out(load, "discard" if discarded else "release")
            await self.pause(60.0)


class Flusher(Client):
    """Flushes the server."""

    async def work(self) -> None:
        while not self.over:
            await self.pause(20.0)
            await self.call.ask("flush", self.call.speaker._ask("flush", "", b"FLUSH\r\n"))


FEATURE_ROLES: dict[str, tuple[Callable[[World, str, str], Client], tuple[str, ...]]] = {
    "limiter": (Limiter, ("qless",)),
    "tagger": (Tagger, ("qless",)),
    "recurrer": (Recurrer, ("qless", "faktory")),
    "recurring worker": (RecurringWorker, RECURRING_WORKERS),
    "loader": (Loader, ("faktory",)),
    "flusher": (Flusher, ("faktory",)),
}


def all_clients(world: World) -> list[Client]:
    """All clients of a plan with their protocols."""
    clients: list[Client] = [Configurer(world, "configurer", "qless")]
    roles = {**ROLES, **FEATURE_ROLES}
    for role, count in world.plan.clients.items():
        kind, spoken = roles[role]
        some = world.random.sample(spoken, len(spoken))
        if role == "worker":
            some = world.plan.working
        name = role.replace(" ", "-")
        clients += [kind(world, f"{name}-{n}", some[n % len(some)]) for n in range(count)]
    return clients


def final_clients(world: World) -> list[Client]:
    """Clients that finish all work at the end."""
    queues = [(protocol, queue) for protocol in PROTOCOLS for queue in world.plan.queues]
    queues += [(protocol, RECURRING_QUEUE) for protocol in RECURRING_WORKERS]
    return [
        Resumer(world, "resumer", "faktory"),
        LoadFinisher(world, "load-finisher", "faktory"),
        RecurrenceEnder(world, "recurrence-ender", "faktory"),
        *(DiligentWorker(world, f"diligent-{p}-{queue}", p, queue) for p, queue in queues),
    ]
