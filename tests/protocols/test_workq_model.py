"""A model of Workq on complete commands agrees with the server, byte for byte."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random

import pytest
from workq_conversation import NOT_FOUND, OK, START, TIMEOUT, WorkqWorld, uid

MS = 1000
SECOND = 1_000_000
NEW, COMPLETED, FAILED, PENDING, LEASED = range(5)
NAMES = (b"a", b"b")
CLIENTS = 5


def error(text: str) -> bytes:
    return b"-CLIENT-ERROR %b\r\n" % text.encode()


def time_of(moment: int) -> bytes:
    return datetime.fromtimestamp(moment // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()


@dataclass(eq=False)
class ModelJob:
    number: int
    jid: bytes
    name: bytes
    ttr: int
    ttl: int
    payload: bytes
    created: int
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0
    #: The time of a scheduled job; it has none if it was added or run.
    time: int | None = None
    runs: bool = False
    state: int = NEW
    attempts: int = 0
    fails: int = 0
    result: bytes = b""
    is_due: bool = True
    deadline: int = 0

    @property
    def expires_at(self) -> int:
        return (self.created if self.time is None else self.time) + self.ttl * MS

    @property
    def waits(self) -> bool:
        return self.state in {NEW, PENDING}

    def outcome(self) -> bytes:
        line = b"%b %d %d" % (self.jid, self.state == COMPLETED, len(self.result))
        return b"+OK 1\r\n%b\r\n%b\r\n" % (line, self.result)

    def shown(self) -> bytes:
        times = [b"time %b" % time_of(self.time)] if self.time is not None else []
        lines = (
            b"%b %d" % (self.jid, 12 + len(times)),
            b"name %b" % self.name,
            b"ttr %d" % self.ttr,
            b"ttl %d" % self.ttl,
            b"payload-size %d" % len(self.payload),
            b"payload %b" % self.payload,
            b"max-attempts %d" % self.max_attempts,
            b"attempts %d" % self.attempts,
            b"max-fails %d" % self.max_fails,
            b"fails %d" % self.fails,
            b"priority %d" % self.priority,
            b"state %d" % self.state,
            b"created %b" % time_of(self.created),
            *times,
            b"",
        )
        return b"\r\n".join(lines)


@dataclass(eq=False)
class Wait:
    """A client that waits: for a job of a queue, or for the end of a job."""

    client: int
    until: int
    name: bytes = b""
    job: ModelJob | None = None


@dataclass
class Model:
    """All jobs in one dictionary, searched linearly."""

    now: int = START
    number: int = 0
    evicted: int = 0
    jobs: dict[bytes, ModelJob] = field(default_factory=dict)
    names: set[bytes] = field(default_factory=set)
    waits: list[Wait] = field(default_factory=list)
    heard: dict[int, bytes] = field(default_factory=dict)

    def reply(self, client: int, data: bytes) -> None:
        self.heard[client] = self.heard.get(client, b"") + data

    def end_wait(self, wait: Wait, data: bytes) -> None:
        self.waits.remove(wait)
        self.reply(wait.client, data)

    def awaited(self, job: ModelJob) -> list[Wait]:
        return [wait for wait in self.waits if wait.job is job]

    def ready(self, name: bytes) -> list[ModelJob]:
        found = [j for j in self.jobs.values() if j.name == name and j.waits and j.is_due]
        return sorted(found, key=lambda j: (-j.priority, j.time or 0, j.number))

    def scheduled(self, name: bytes) -> list[ModelJob]:
        found = [j for j in self.jobs.values() if j.name == name and j.waits and not j.is_due]
        return sorted(found, key=lambda j: (-j.priority, j.time or 0, j.number))

    def serve(self) -> None:
        for wait in list(self.waits):
            if wait.name and (found := self.ready(wait.name)):
                self.end_wait(wait, self.leased(found[0]))

    def leased(self, job: ModelJob) -> bytes:
        job.state, job.deadline = LEASED, self.now + job.ttr * MS
        job.attempts += 1
        line = b"%b %b %d" % (job.jid, job.name, len(job.payload))
        return b"+OK 1\r\n%b\r\n%b\r\n" % (line, job.payload)

    def end(self, job: ModelJob, state: int, result: bytes) -> None:
        job.state, job.result = state, result
        if job.runs:
            del self.jobs[job.jid]
        for wait in self.awaited(job):
            self.end_wait(wait, job.outcome())

    # Time

    def advance(self, microseconds: int) -> None:
        """Handle what is due in its order: ends of jobs and leases, due jobs, timeouts. Jobs that
        become ready at the same time are ready together: a waiter gets the highest priority, as a
        lease at that time would.
        """
        until = self.now + microseconds
        serves = False
        while True:
            due = [(j.expires_at, 0, j.number, j) for j in self.jobs.values() if not j.runs]
            due += [(j.deadline, 1, j.number, j) for j in self.jobs.values() if j.state == LEASED]
            due += [
                (j.time or 0, 2, j.number, j)
                for j in self.jobs.values()
                if j.waits and not j.is_due
            ]
            waits = [(wait.until, 3, n, wait) for n, wait in enumerate(self.waits)]
            first = min((*due, *waits), key=lambda each: each[:3], default=None)
            if serves and (first is None or first[0] > self.now or isinstance(first[3], Wait)):
                self.serve()
                serves = False
                continue
            if first is None or first[0] > until:
                break
            self.now = max(self.now, first[0])
            if isinstance(first[3], Wait):
                self.time_out(first[3])
            else:
                (self.evict, self.expire, self.wake)[first[1]](first[3])
                serves = True
        self.now = until

    def evict(self, job: ModelJob) -> None:
        self.evicted += job.state in {NEW, PENDING, LEASED}
        del self.jobs[job.jid]
        for wait in self.awaited(job):
            self.end_wait(wait, TIMEOUT)

    def expire(self, job: ModelJob) -> None:
        if job.runs:
            owner = next(wait for wait in self.awaited(job) if wait.name == b"")
            self.end_wait(owner, TIMEOUT)
            self.end(job, FAILED, b"")
        elif 0 < job.max_attempts <= job.attempts:
            self.end(job, FAILED, b"")
        else:
            job.state = PENDING

    def wake(self, job: ModelJob) -> None:
        for each in self.jobs.values():
            each.is_due = each.is_due or each.time == job.time

    def time_out(self, wait: Wait) -> None:
        job = wait.job
        owns = job is not None and job.runs and self.awaited(job)[0] is wait
        if owns and job is not None and self.jobs.get(job.jid) is job:
            if job.state == LEASED and job.deadline > self.now:
                wait.until = job.deadline
                return
            del self.jobs[job.jid]
        self.end_wait(wait, TIMEOUT)

    # Commands: the reply, or None if the client waits

    def push(self, job: ModelJob) -> bytes:
        if job.time is not None:
            if job.expires_at <= self.now:
                return error("Invalid Time")
            job.is_due = job.time <= self.now
        if job.jid in self.jobs:
            return error("Duplicate job")
        self.number = job.number
        self.names.add(job.name)
        self.jobs[job.jid] = job
        return OK

    def run(self, client: int, job: ModelJob, wait: int) -> bytes | None:
        reply = self.push(job)
        if reply != OK:
            return reply
        self.waits.append(Wait(client, self.now + wait * MS, job=job))
        return None

    def lease(self, client: int, name: bytes, wait: int) -> bytes | None:
        self.names.add(name)
        if found := self.ready(name):
            return self.leased(found[0])
        if not wait:
            return TIMEOUT
        self.waits.append(Wait(client, self.now + wait * MS, name=name))
        return None

    def result(self, client: int, jid: bytes, wait: int) -> bytes | None:
        job = self.jobs.get(jid)
        if job is None:
            return NOT_FOUND
        if job.state in {COMPLETED, FAILED}:
            return job.outcome()
        if not wait:
            return TIMEOUT
        self.waits.append(Wait(client, self.now + wait * MS, job=job))
        return None

    def end_attempt(self, jid: bytes, result: bytes, *, succeeds: bool) -> bytes:
        job = self.jobs.get(jid)
        if job is None:
            return NOT_FOUND
        if job.state in {COMPLETED, FAILED}:
            return error("Duplicate result")
        if succeeds:
            self.end(job, COMPLETED, result)
            return OK
        job.fails += 1
        if job.fails >= job.max_fails or 0 < job.max_attempts <= job.attempts:
            self.end(job, FAILED, result)
        else:
            job.state = PENDING
        return OK

    def delete(self, jid: bytes) -> bytes:
        return NOT_FOUND if self.jobs.pop(jid, None) is None else OK

    def queues(self) -> bytes:
        lengths = [(n, len(self.ready(n)), len(self.scheduled(n))) for n in sorted(self.names)]
        lines = [b"%b 2\r\nready-len %d\r\nscheduled-len %d\r\n" % each for each in lengths]
        return b"+OK %d\r\n" % len(lines) + b"".join(lines)


class Walk:
    """Random commands to a server and to the model."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.model, self.world = Model(), WorkqWorld({})
        self.clients = [self.world.connect() for _ in range(CLIENTS)]

    def step(self) -> None:
        choose = self.random.choice
        if choose((True, False)):
            microseconds = choose((0, 1, 700, 10_007, 50_021, 200_003, 1_000_003))
            self.world.advance(microseconds)
            self.model.advance(microseconds)
        waiting = {wait.client for wait in self.model.waits}
        if free := [client for client in range(CLIENTS) if client not in waiting]:
            client = choose(free)
            command, reply = self.command(client)
            if reply is not None:
                self.model.reply(client, reply)
            self.model.serve()
            self.clients[client].receive(command)
        for number, wire in enumerate(self.clients):
            assert bytes(wire.heard) == self.model.heard.get(number, b"")

    def new_job(self) -> ModelJob:
        # The numbers keep two TTRs from ending at the same time.
        choose, number = self.random.choice, self.model.number + 1
        ttr, ttl = choose((1, 300, 600)) + number, choose((3, 111, 1021, 3001))
        payload = choose((b"", b"x", b"abc\r\ndef"))
        jid, name = uid(choose(range(1, 16))), choose(NAMES)
        job = ModelJob(number, jid, name, ttr, ttl, payload, self.model.now)
        job.priority, job.max_attempts = choose((0, 0, 5, -5)), choose((0, 0, 1, 2))
        job.max_fails = choose((0, 0, 1, 2, 3))
        return job

    def command(self, client: int) -> tuple[bytes, bytes | None]:
        choose, model = self.random.choice, self.model
        job, jid, name = self.new_job(), uid(choose(range(1, 16))), choose(NAMES)
        block = b"%d -priority=%d" % (len(job.payload), job.priority)
        flags = b" -max-attempts=%d -max-fails=%d" % (job.max_attempts, job.max_fails)
        end = b"\r\n%b\r\n" % job.payload
        wait = choose((0, 53, 207, 1009))
        match choose((*("add", "schedule", "lease") * 3, "run", "complete", "fail", "fail", "")):
            case "add":
                line = b"add %b %b %d %d " % (job.jid, job.name, job.ttr, job.ttl)
                return line + block + flags + end, model.push(job)
            case "schedule":
                job.time = (model.now // SECOND + choose((-1, 0, 1, 2))) * SECOND
                times = b"%d %d %b" % (job.ttr, job.ttl, time_of(job.time))
                line = b"schedule %b %b %b " % (job.jid, job.name, times)
                return line + block + flags + end, model.push(job)
            case "run":
                job.runs, job.ttl, job.max_attempts, job.max_fails = True, 0, 0, 0
                line = b"run %b %b %d %d " % (job.jid, job.name, job.ttr, wait)
                return line + block + end, model.run(client, job, wait)
            case "lease":
                return b"lease %b %d\r\n" % (name, wait), model.lease(client, name, wait)
            case "complete" | "fail" as verb:
                result = choose((b"", b"done"))
                reply = model.end_attempt(jid, result, succeeds=verb == "complete")
                line = b"%b %b %d\r\n%b\r\n" % (verb.encode(), jid, len(result), result)
                return line, reply
        return self.query(client, jid, name, wait)

    def query(self, client: int, jid: bytes, name: bytes, wait: int) -> tuple[bytes, bytes | None]:
        choose, model = self.random.choice, self.model
        match choose(("result", "delete", "job", "jobs", "scheduled-jobs", "queues", "server")):
            case "result":
                return b"result %b %d\r\n" % (jid, wait), model.result(client, jid, wait)
            case "delete":
                return b"delete %b\r\n" % jid, model.delete(jid)
            case "job":
                job = model.jobs.get(jid)
                reply = NOT_FOUND if job is None else b"+OK 1\r\n" + job.shown()
                return b"inspect job %b\r\n" % jid, reply
            case "queues":
                return b"inspect queues 0 100\r\n", model.queues()
            case "server":
                counts = b"active-clients %d\r\nevicted-jobs %d" % (CLIENTS, model.evicted)
                head = b"+OK 1\r\nserver 3\r\n%b\r\n" % counts
                return b"inspect server\r\n", head + b"started %b\r\n" % time_of(START)
            case what:
                offset, limit = choose((0, 0, 1)), choose((1, 2, 100))
                jobs = model.ready(name) if what == "jobs" else model.scheduled(name)
                found = jobs[offset : offset + limit]
                reply = b"+OK %d\r\n" % len(found) + b"".join(job.shown() for job in found)
                line = b"inspect %b %b %d %d\r\n" % (what.encode(), name, offset, limit)
                return line, reply if name in model.names else NOT_FOUND


@pytest.mark.parametrize("seed", range(40))
def test_a_model_agrees(seed):
    walk = Walk(seed)
    for _ in range(250):
        walk.step()
    jobs = walk.world.engine.jobs.values()
    assert {job.jid.encode() for job in jobs} == set(walk.model.jobs)
